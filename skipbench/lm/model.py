"""`LM`: the one model primitive, `run`, over a shared K/V cache."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.families import family_of
from skipbench.lm.frame import Frames, Tables
from skipbench.lm.graphs import COST, GraphsEngine, refusal
from skipbench.lm.lean import LeanEngine
from skipbench.lm.modules import ModulesEngine, Sublayer, rotary_tables
from skipbench.lm.span import Span
from skipbench.lm.strict import prove
from skipbench.lm.upload import upload
from skipbench.lm.weights import pass_bytes
from skipbench.skipset import SkipSet


class Engine(Protocol):
    """How sub-layers are executed; what they compute is the same in every engine."""

    name: str
    sublayers: list[Sublayer]
    kernels: dict[str, str]
    """Layouts of the weights by shape `INxOUT`, where the engine chooses any."""
    notes: list[str]
    """What this machine lacks, what is used instead, and what it costs."""

    @property
    def embed(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def head(self) -> Callable[[Tensor], Tensor]: ...


MakeEngine = Callable[..., Engine]
ENGINES: dict[str, MakeEngine] = {"modules": ModulesEngine, "lean": LeanEngine, "graphs": GraphsEngine}
SPARE_MIB = 512


class LM:
    """A loaded language model, batch 1. Letters of shapes: T rows, D hidden, V vocabulary, S = 2L sub-layers."""

    def __init__(
        self, model: Any, engine: str | MakeEngine = "lean", strict: bool = False, spare_mib: int = SPARE_MIB
    ) -> None:
        """
        Args:
            model: a causal language model of Hugging Face, of a known family, in evaluation mode.
            strict: verified rows get the bits that decoding them alone would give; proven here, engine `lean` only.
            spare_mib: memory that second layouts of weights may take in every engine but `modules`, MiB.

        Where `graphs` cannot be used, `lean` is, and `note` says so.

        Raises:
            SkipbenchError: unknown family, rotary type or activation; a machine on which `strict` cannot be kept.
        """
        self.model, self.config = model, model.config
        family = family_of(self.config)
        self.layers: int = self.config.num_hidden_layers
        self.max_positions: int = self.config.max_position_embeddings
        self.dtype = model.model.embed_tokens.weight.dtype
        self.devices = [layer.self_attn.q_proj.weight.device for layer in model.model.layers]
        self.input_device = model.model.embed_tokens.weight.device
        self.output_device = model.lm_head.weight.device
        head_dim = model.model.layers[0].self_attn.head_dim
        self.cache = KVCache(self.devices, self.config.num_key_value_heads, head_dim, self.dtype)
        self._weight_bytes = pass_bytes(model)
        if strict and engine != "lean":
            raise SkipbenchError(
                f"engine.strict=true needs engine=lean, not {engine}: it alone can take rows through attention one by one"
            )
        self._note = ""
        if engine == "graphs" and (why := refusal(model)):
            engine = self._fall_back(why)
        more: dict[str, Any] = {} if engine == "modules" else {"spare_mib": spare_mib}
        make = ENGINES[engine] if isinstance(engine, str) else engine
        self.engine: Engine = make(model, family, self.cache, **(more | {"strict": True} if strict else more))
        self.strict = strict
        self.strict_cost: float | None = None
        """Verifying 9 rows strictly, against the same without it."""
        self._one_device = len({*self.devices, self.input_device, self.output_device}) == 1
        self._tables: dict[torch.device, Tables] = {}
        self._chosen: dict[tuple[SkipSet | None, int, int], list[int]] = {}
        if strict:
            self.strict_cost = prove(self)

    @property
    def sublayers(self) -> int:
        """S = 2L."""
        return 2 * self.layers

    def notes(self) -> list[str]:
        """Lines on what this machine lacks and what is used instead, and on the cost of `strict`."""
        cost = (
            [] if self.strict_cost is None else [f"strict: 9 rows take {self.strict_cost:.2f} times as long to verify"]
        )
        return [*self.engine.notes, *cost, *filter(None, [self.note])]

    def allocate(self, capacity: int) -> None:
        """Makes room in the cache for `capacity` tokens and prepares the tables; what the cache held is lost."""
        before = self.cache.rows
        self.cache.allocate(capacity)
        for device in dict.fromkeys(self.devices):
            if device not in self._tables or self._tables[device].positions < capacity:
                self._tables[device] = Tables(*rotary_tables(self.model, capacity, self.dtype, device), self.dtype)

        if isinstance(self.engine, GraphsEngine) and self.cache.rows is not before:
            why = self.engine.prove(self._tables)
            if why:
                self._fall_back(why)
                self.engine = self.engine.lean

    @property
    def note(self) -> str:
        """What is used instead of the engine that was asked for, and what it costs; empty where nothing is."""
        if isinstance(self.engine, GraphsEngine) and self.engine.failed:
            return f"engine=graphs: {self.engine.failed}; passes not yet recorded run as engine=lean: {COST}"
        return self._note

    def _fall_back(self, why: str) -> str:
        self._note = f"engine=graphs: {why}; engine=lean is used instead: {COST}"
        return "lean"

    def embed(self, tokens: list[int] | Tensor) -> Tensor:
        """Token ids, on the host or already on the device, -> hidden states [T, D]."""
        if not isinstance(tokens, Tensor):
            tokens = torch.tensor(tokens)
        return self.engine.embed(upload(tokens, self.input_device))

    def head(self, hidden: Tensor) -> Tensor:
        """Hidden states [T, D] -> logits [T, V] through the final norm."""
        return self.engine.head(hidden if self._one_device else hidden.to(self.output_device))

    def frames(self, span: Span) -> Frames:
        """Positions and masks of a span, for several calls of `run` over the same rows."""
        return Frames(span, self._tables)

    def run(
        self,
        hidden: Tensor,
        span: Span | Frames,
        skip: SkipSet | None = None,
        first: int = 0,
        last: int | None = None,
        taps: list[Tensor] | None = None,
    ) -> Tensor:
        """Runs the sub-layers `first .. last - 1` that are not in `skip` over the rows of `span`.

        Args:
            hidden: [T, D], the input of sub-layer `first`.
            span: the rows; prepared by `frames` where several passes share them.
            taps: when given, receives the state [T, D] before the first and after every sub-layer that ran.

        Returns:
            [T, D], the output of the last one. The K/V rows `span.start ..` of every attention that ran are overwritten.

        Raises:
            SkipbenchError: the span does not fit into the cache.
        """
        hidden = self._pass(hidden, span, skip, first, last, taps)
        return hidden.clone() if isinstance(self.engine, GraphsEngine) else hidden

    def _pass(
        self,
        hidden: Tensor,
        span: Span | Frames,
        skip: SkipSet | None,
        first: int,
        last: int | None,
        taps: list[Tensor] | None,
    ) -> Tensor:
        """`run`, whose result may be a buffer that the next pass overwrites."""
        frames = self.frames(span) if isinstance(span, Span) else span
        self.cache.check(frames.end)
        sublayers = self.engine.sublayers
        in_place = isinstance(self.engine, GraphsEngine)
        if taps is not None:
            taps.append(hidden)
        frame = frames.on(self.devices[0])
        for s in self._choose(skip, first, self.sublayers if last is None else last):
            if not self._one_device:
                device = self.devices[s // 2]
                hidden = hidden.to(device)
                frame = frames.on(device)
            hidden = sublayers[s](hidden, frame)
            if taps is not None:
                taps.append(hidden.clone() if in_place else hidden)
        return hidden

    def _choose(self, skip: SkipSet | None, first: int, last: int) -> list[int]:
        key = (skip, first, last)
        if key not in self._chosen:
            left_out = skip.skipped if skip is not None else frozenset()
            self._chosen[key] = [s for s in range(first, last) if s not in left_out]
        return self._chosen[key]

    def prefill(self, tokens: list[int]) -> Tensor:
        """Fills the cache with a prompt from row 0 and commits it. Returns the logits [1, V] behind its last token."""
        hidden = self.run(self.embed(tokens), Span.chain(0, len(tokens)))
        self.cache.length = len(tokens)
        return self.head(hidden[-1:])

    def logits(
        self,
        tokens: list[int] | Tensor,
        span: Span | Frames,
        skip: SkipSet | None = None,
        taps: list[Tensor] | None = None,
    ) -> Tensor:
        """Logits [T, V] of the rows of `span`, which hold `tokens`."""
        return self.head(self._pass(self.embed(tokens), span, skip, 0, None, taps))

    def weight_bytes(self) -> int:
        """Bytes that one decoding step must read: all weights but the embedding table, which it only looks one row up in."""
        return self._weight_bytes
