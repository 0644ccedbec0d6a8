"""Decoding inside Hugging Face: `model.generate(**inputs, custom_generate=...)`."""

import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from skipbench.bench.load import make_method
from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.config.catalog import DEFAULT_METHOD, quoted
from skipbench.config.compose import compose
from skipbench.decode.loop import stream
from skipbench.decode.method import Method, MethodCopies
from skipbench.decode.processors import process_by, until
from skipbench.decode.sampling import Sampler
from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.proof import COMMITTED
from skipbench.lm.rows import TokenRows
from skipbench.lm.traced import TOKENS, probe_tokens
from skipbench.models.generation import output, read_call, stop_criterion

REFUSED = ("assistant_model", "synced_gpus", "negative_prompt_ids")


@torch.inference_mode()
def has_own_bits(lm: LM) -> bool:
    """Compares tokens one by one after a short random prompt, bit for bit, with the logits of the
    model's own passes with its own cache: as `generate` decodes.
    """
    lm.allocate(TOKENS)
    tokens = probe_tokens(lm.model)
    lm.prefill(tokens[0, :COMMITTED].tolist())
    own, equal = lm.model(tokens[:, :COMMITTED], use_cache=True), True
    for at in range(COMMITTED, TOKENS):
        token, cache = tokens[:, at : at + 1], own.past_key_values
        own = lm.model(token, past_key_values=cache, use_cache=True)
        ours = lm.logits(token[0].tolist(), TokenRows.chain(at, 1))
        equal &= torch.equal(ours.cpu(), own.logits[0].cpu())
    return equal


class CustomGenerate:
    """A method for `generate` of a model that Hugging Face has loaded, whose weights it uses.

    `model.generate(**inputs, custom_generate=skipbench.custom_generate())` gives, in float32, the
    tokens of `generate` where it is greedy, its distribution where it samples. In bfloat16 and
    float16 the last bits of a logit depend on how many rows share a pass, so that near ties may
    fall another way than in `generate`; with `strict` they do not. Logits processors, stopping
    criteria, EOS ids and a streamer are honoured; what cannot be (beams, padding, scores, a second
    model) is refused by its name. Keep the callable: it keeps the cache and what the method learns.

    Args:
        method: as `load` takes it.
        engine: `reference` runs the model's own modules and leaves them as they are; `fused` is
            faster and gives the modules views of its own weights, which on a CPU can make
            `generate` without it slower. Weights that were replaced or changed are seen.
        strict: greedy tokens are those of `generate` in a low precision, too: verified rows get the
            bits that they have alone, which costs time. Proven for the model at the first call.
        overrides: settings of the method, as on the command line: `["method.ngram=2"]`.

    Raises:
        SkipbenchError: `strict` with an engine other than `reference`; at the first call, on a
            machine or in a precision where it cannot be kept.
    """

    def __init__(
        self,
        method: str | Method = DEFAULT_METHOD,
        *,
        engine: str = "reference",
        strict: bool = False,
        overrides: Sequence[str] = (),
    ) -> None:
        if strict and engine != "reference":
            needs = f"strict=True needs engine='reference', not {engine!r}"
            reason = "only the model's own modules give the bits of generate"
            raise SkipbenchError(f"custom_generate: {needs}: {reason}")
        self._given, self._engine, self._overrides = method, engine, tuple(overrides)
        self._strict = strict
        self._lm: LM | None = None
        self._made_of: list[Any] = []
        self._methods: MethodCopies | None = None
        self._loading = threading.Lock()

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        stop_strings: str | Sequence[str] | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """As `generate` calls it; `input_ids` [1, T] -> ids [1, T + new]. Raises SkipbenchError
        with the name of what cannot be honoured.

        Args:
            stop_strings: named here, so that `generate` hands them over: to a callable it loses the
                `tokenizer` that it wants for them.
        """
        if (count := input_ids.shape[0]) != 1:
            counted = f"{count} (beams and return sequences count)"
            raise SkipbenchError(f"custom_generate decodes one prompt at a time, not {counted}")
        # transformers 5.23 hands a callable neither the streamer nor the assistant
        frame = sys._getframe(1)
        call = dict(frame.f_locals) if frame.f_code.co_name == "generate" else {}
        others = {k: call.get(k) for k in REFUSED}
        if self._strict:  # other kernels, or prompts in other pieces: other bits
            others["use_cache=False with strict=True"] = generation_config.use_cache is False
            for key in ("cache_implementation", "prefill_chunk_size"):
                others[f"{key} with strict=True"] = getattr(generation_config, key, None)
        asked = read_call(
            logits_processor, stopping_criteria, generation_config, model_kwargs, others
        )
        streamer, criteria = call.get("streamer"), asked.criteria
        if stop_strings:
            criteria.append(stop_criterion(stop_strings, _tokenizer(frame), model))
        with self._loading:
            lm, methods = self._ready(model)
        tokens, device = input_ids[0].tolist(), input_ids.device
        limit = generation_config.max_length - len(tokens)
        lm.allocate(generation_config.max_length + SCRATCH_ROWS)
        # the seed comes from torch's generator, so that torch.manual_seed decides it
        seed = int(torch.randint(2**31, ())) if asked.sampling else 0
        sampler = Sampler(**asked.sampling, seed=seed)
        process = process_by(asked.processors, device)
        steps = stream(lm, methods, list(tokens), limit, asked.eos, sampler, process)
        for step in until(steps, input_ids[0].tolist(), criteria, device):
            tokens += step.tokens
            if streamer is not None:
                for token in step.tokens:
                    streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
        sequences = torch.tensor([tokens], device=device)
        return output(sequences, bool(generation_config.return_dict_in_generate))

    @property
    def method(self) -> Method | None:
        """None before the first call; calls at the same time use copies of it."""
        return None if self._methods is None else self._methods.first

    def _ready(self, model: Any) -> tuple[LM, MethodCopies]:
        """The primitive over the model's own weights, and the method for it; made once, and anew
        for weights and modules that were replaced.
        """
        if self._lm is None or self._made_of != self._parts(model):
            attention = getattr(model.config, "_attn_implementation", "sdpa")
            if self._engine == "reference" and attention != "sdpa":
                raise SkipbenchError(
                    f"custom_generate with engine=reference needs attn_implementation='sdpa', not "
                    f"{attention!r}; load the model with that, or give engine='fused'"
                )
            self._methods = self._lm = None
            try:
                lm = LM(model, self._engine, self._strict)
                if self._strict and not has_own_bits(lm):
                    raise NotStrictError("one row alone has other bits than the model's own pass")
            except NotStrictError as error:
                raise SkipbenchError(
                    "custom_generate: strict=True cannot be kept for this model on this machine; "
                    f"use strict=False ({error})"
                ) from error
            self._lm, self._made_of = lm, self._parts(model)
        if self._methods is None:
            method = self._given
            if isinstance(method, str):
                path = quoted(str(getattr(model.config, "_name_or_path", "")) or "model")
                words = ["model=path", f"model.path={path}", f"method={method}"]
                method = make_method(compose([*words, *self._overrides]), self._lm)
            self._methods = MethodCopies(method)
        return self._lm, self._methods

    def _parts(self, model: Any) -> list[Any]:
        """What a primitive rests on: modules, dtype, device; where the tensors lie that it has
        views of or has read, and how often each was changed.
        """
        weight = model.get_input_embeddings().weight
        parts = [model, *model.modules(), weight.dtype, weight.device]
        viewed = () if self._engine == "reference" else model.parameters()
        for one in (*model.buffers(), *viewed):
            parts += [one.data_ptr(), 0 if one.is_inference() else one._version]
        return parts


def _tokenizer(frame: FrameType | None) -> Any:
    """The `tokenizer` of a call of `generate`, whose frame is given: torch's decorator around it
    still has the arguments that it has dropped.
    """
    for _ in range(3):
        given = {} if frame is None else frame.f_locals.get("kwargs")
        if isinstance(given, dict) and given.get("tokenizer") is not None:
            return given["tokenizer"]
        frame = frame and frame.f_back
    return None
