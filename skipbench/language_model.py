"""`LanguageModel`: a loaded model with its tokenizer and a method, which answers prompts."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from skipbench.bench.ask import PromptType, encode_prompt, listed, sampling_of
from skipbench.bench.load import load_ready, make_method
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.compose import compose
from skipbench.config.derived import model_words
from skipbench.config.run_config import RunConfig
from skipbench.decode.answer import Answer, Stream
from skipbench.decode.loop import stream as decode_stream
from skipbench.decode.method import Method, MethodCopies
from skipbench.decode.processors import until
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM


def load(
    model: str | Path = "tiny",
    method: str | Method = DEFAULT_METHOD,
    *,
    dtype: str | None = None,
    device: str | None = None,
    engine: str | None = None,
    threads: int | None = None,
    overrides: Sequence[str] = (),
) -> "LanguageModel":
    """Loads a model with the method that it decodes with.

    Args:
        model: a folder with a Hugging Face checkpoint, a GGUF file, an id on the hub, or a name
            that `python -m skipbench list models` prints.
        method: a name that `list methods` prints, or an object with `begin`, `propose`, `adapt`.
        dtype: float32, bfloat16 or float16; by default as the model's file in `conf/model` says,
            float32 for a folder or a hub id.
        device: cpu, cuda, cuda:N or auto; by default as the model's file says, cpu for others.
        engine: fused, reference or cuda_graphs; by default cuda_graphs on a GPU, fused on a CPU.
        threads: of torch on a CPU; by default 1.
        overrides: more settings, as on the command line: `["method.window=8"]`.

    Raises:
        SkipbenchError: anything that the caller can put right, in one line.
    """
    if not isinstance(model, str | Path):
        raise SkipbenchError(
            f"load takes a folder, a file, a hub id or a name, not {type(model).__name__}; a model "
            "that Hugging Face has loaded decodes by skipbench.custom_generate()"
        )
    given = {"model.dtype": dtype, "model.device": device, "engine": engine}
    words = [f"{key}={value}" for key, value in given.items() if value is not None]
    words += [] if threads is None else [f"engine.threads={threads}"]
    return load_settings([*model_words(str(model)), *words, *overrides], method)


def load_settings(
    settings: Sequence[str], method: str | Method = DEFAULT_METHOD
) -> "LanguageModel":
    """`load` by overrides, as the command line takes them; `method` as there."""
    own = None if isinstance(method, str) else method
    config = compose([*settings, f"method={method if own is None else 'vanilla'}"])
    lm, tokenizer, method_ready = load_ready(config, own)
    return LanguageModel(settings, config, lm, tokenizer, method_ready)


class LanguageModel:
    """A loaded model, its tokenizer and a method.

    The method keeps what it learns from one prompt to the next. Requests may come from several
    threads, and streams may be interleaved: each has a K/V cache and a method of its own, and one
    round of one of them runs at a time.

    Attributes:
        lm: the model primitive over its K/V cache.
        tokenizer: Hugging Face's.
        method: the decoding method.
        config: the settings that it was made from.
    """

    def __init__(
        self, settings: Sequence[str], config: RunConfig, lm: LM, tokenizer: Any, method: Method
    ) -> None:
        """As `load` makes them; `settings` are the overrides that compose `config`."""
        self._settings = tuple(settings)
        self.config, self.lm, self.tokenizer, self.method = config, lm, tokenizer, method
        self._methods = MethodCopies(method)

    def with_method(self, method: str | Method, overrides: Sequence[str] = ()) -> "LanguageModel":
        """The same weights with another method, which may decode beside this one.

        Raises SkipbenchError for an unknown method, or one that does not fit the model.
        """
        keys = [word.partition("=")[0].lstrip("+~") for word in self._settings]
        named = zip(keys, self._settings, strict=True)
        # those of the other method, `stop@method.stop` among them
        settings = [w for k, w in named if not k.startswith("method.") and "@method." not in k]
        config = self.config
        if isinstance(method, str):
            settings += overrides
            config = compose([*settings, f"method={method}"])
            method = make_method(config, self.lm)
        return LanguageModel(settings, config, self.lm, self.tokenizer, method)

    @overload
    def generate(
        self,
        prompt: PromptType,
        max_new_tokens: int | None = ...,
        *,
        stream: Literal[False] = ...,
        **options: Any,
    ) -> Answer: ...
    @overload
    def generate(
        self,
        prompt: PromptType,
        max_new_tokens: int | None = ...,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> Stream: ...
    @overload
    def generate(
        self, prompt: Sequence[PromptType], max_new_tokens: int | None = ..., **options: Any
    ) -> list[Answer]: ...
    def generate(
        self,
        prompt: PromptType | Sequence[PromptType],
        max_new_tokens: int | None = None,
        *,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        chat: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        logprobs: int | None = None,
        stream: bool = False,
        generation_config: Any = None,
        logits_processor: Sequence[Any] = (),
        **options: Any,
    ) -> Answer | Stream | list[Answer]:
        """Decodes a prompt, or several one after the other, each up to an EOS. Greedy output is
        vanilla's, in a low precision up to near ties without `engine.strict=true`; sampled output
        has the model's own distribution.

        Args:
            prompt: a text, continued as it is; messages, dicts with `role` and `content`, for the
                model's chat template; token ids; or a list of these, for a list of answers.
            max_new_tokens: of the output; by default that of `generation_config`, else 128.
            seed: of sampling; it gives the same tokens unless the method has learnt in between.
            stop: a text, or several, before which the output ends.
            chat: `none`, `template`, `auto`, `vicuna`, or a file with a chat template; by default
                none for a text and auto for messages.
            tools: functions as JSON schemas, for the chat template.
            thinking: `enable_thinking` of the chat template.
            logprobs: keeps every token's log-probability before processors and temperature, and
                this many of the most likely.
            stream: returns an iterator of pieces instead of the whole answer.
            generation_config: Hugging Face's; what it leaves unset is the checkpoint's own.
            logits_processor: more of Hugging Face's, functions of the ids and scores alone.
            options: `temperature` (0, the default, is greedy), `top_p`, `top_k`, and every other
                field of a `GenerationConfig`; they replace those of `generation_config`.

        Raises:
            SkipbenchError: a prompt that does not fit, a value out of range, or an option, by its
                name, that cannot be honoured.
        """
        stops, config = [stop] if isinstance(stop, str) else [*stop], generation_config
        if config is not None:
            config = copy.deepcopy(config)
            stops += config.stop_strings or []
            config.stop_strings = None
            max_new_tokens = max_new_tokens or config.max_new_tokens
        limit, form = 128 if max_new_tokens is None else max_new_tokens, (chat, tools, thinking)
        if logprobs is not None and not 0 <= logprobs <= self.lm.vocabulary:
            raise SkipbenchError(f"{logprobs=}; wanted 0 to {self.lm.vocabulary}")

        def begun(one: Any) -> Stream:
            lm, ids = self.lm, encode_prompt(self.lm, self.tokenizer, one, limit, *form)
            how = sampling_of(lm, ids, limit, seed, config, logits_processor, options)
            steps = decode_stream(
                lm, self._methods, ids, limit, how.eos, how.sampler, how.process, logprobs
            )
            ended = until(steps, ids, how.criteria, lm.output_device)
            return Stream(ended, self.tokenizer, stops, len(ids), self.method.name)

        if (several := listed(prompt)) is None:
            return begun(prompt) if stream else begun(prompt).answer
        if stream:
            raise SkipbenchError("stream=True is for one prompt; give the prompts one by one")
        return [begun(one).answer for one in several]
