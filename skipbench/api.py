"""The Python API: `load`, `generate`, `compare`, `custom_generate`, `verify`, `frame`,
`published`."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from skipbench.bench.custom_generate import CustomGenerate
from skipbench.bench.load import encode_prompt, load_ready, make_method
from skipbench.bench.prompts import eos_ids
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.compose import compose
from skipbench.config.derived import model_words, quoted
from skipbench.config.run_config import RunConfig
from skipbench.decode.answer import Answer, Stream
from skipbench.decode.loop import stream as decode_stream
from skipbench.decode.method import Method, MethodCopies
from skipbench.decode.sampling import Sampler
from skipbench.lm.model import LM
from skipbench.oracle.outputs import from_records, read_outputs
from skipbench.oracle.page import report
from skipbench.oracle.sampling import Settings
from skipbench.oracle.verify import Oracle, Verification, result_of
from skipbench.report.published import published as published
from skipbench.runs.files import write_atomic
from skipbench.runs.run import frame as frame

if TYPE_CHECKING:
    import pandas

Prompt = str | list[dict[str, str]]


def load(
    model: str = "tiny",
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
        engine: fused, reference or cuda_graphs; by default fused.
        threads: of torch on a CPU; by default 1.
        overrides: more settings, as on the command line: `["method.window=8"]`.

    Raises:
        SkipbenchError: anything that the caller can put right, in one line.
    """
    given = {"model.dtype": dtype, "model.device": device, "engine": engine}
    words = [f"{key}={value}" for key, value in given.items() if value is not None]
    words += [] if threads is None else [f"engine.threads={threads}"]
    return load_settings([*model_words(model), *words, *overrides], method)


def load_settings(
    settings: Sequence[str], method: str | Method = DEFAULT_METHOD
) -> "LanguageModel":
    """`load` by overrides, as the command line takes them; `method` as there."""
    own = None if isinstance(method, str) else method
    config = compose([*settings, f"method={method if own is None else 'vanilla'}"])
    return LanguageModel(settings, config, *load_ready(config, own))


def compare(
    model: str,
    prompts: str | Path | Sequence[Prompt] | None = None,
    *,
    methods: Sequence[str] = (),
    minutes: float = 20.0,
    limit: int | None = None,
    results: str | Path = "results",
    overrides: Sequence[str] = (),
) -> "pandas.DataFrame":
    """Measures which method is fastest on a model, as the command `compare` does.

    Args:
        model: as `load` takes it.
        prompts: a file (.jsonl or .parquet with `prompt` or `messages`, .txt with one per line), or
            a list of texts and lists of messages; by default text that comes with Python.
        methods: only these; by default all that can run.
        minutes: budget; what does not fit is left out, with the reason.
        limit: prompts per method; by default as many as fit, 20 at most.
        results: folder of the records; what is there is not measured again.
        overrides: more settings, as on the command line.

    Returns:
        One row per method, best first: `method`, `speedup` with `low` and `high` (95 % interval),
        `tokens_per_s`, `tokens_per_s_vanilla`, `M`, `alpha`, `identical` and `samples`, `reason`
        where it was left out; vanilla against itself is the noise.

    Raises:
        SkipbenchError: a model or prompts that cannot be used.
    """
    import pandas

    from skipbench.experiments.compare import compare as run

    settings = [*model_words(model), f"results={quoted(str(results))}", *overrides]
    if prompts is not None:
        path = prompts if isinstance(prompts, str | Path) else _written(prompts, Path(results))
        settings += ["dataset=prompts", f"dataset.path={quoted(str(path))}"]
    rows, measured = [], ("tokens_per_s", "tokens_per_s_vanilla", "M", "alpha")
    for one in run(settings, 60 * minutes, methods, limit).runs:
        metrics = one.metrics
        low, high = (metrics and metrics.speedup.headline[1]) or (None, None)
        row = {
            **{"method": one.method, "speedup": one.speedup, "low": low, "high": high},
            **{key: getattr(metrics, key, None) for key in measured},
            "identical": metrics and metrics.lossless.identical,
            "samples": metrics and metrics.samples,
            "reason": one.reason,
        }
        rows.append(row)
    return pandas.DataFrame(rows)


def verify(
    outputs: str | Path | Sequence[Mapping[str, Any]],
    model: "str | LanguageModel",
    *,
    chat: Literal["none", "template"] = "none",
    own_dtype: bool = False,
    overrides: Sequence[str] = (),
) -> Verification:
    """Judges the outputs of any engine by the model's own choices, as the command `verify` does.

    Args:
        outputs: a file or a run's folder as the command takes it, or records such as
            `{"prompt": "...", "output": "..."}` in one of its formats.
        model: as `load` takes it, or one that is loaded.
        chat: form of prompts that are text: as they are, or through the chat template.
        own_dtype: computes as the model does in its dtype instead of in float32.
        overrides: more settings, as on the command line: `["model.dtype=bfloat16"]`, the engine's;
            `["decoding.temperature=0.7"]` where the records do not say.

    Returns:
        A `Verification`: `verdicts`, one per output; `counts`; `failed("wrong")`.

    Raises:
        SkipbenchError: outputs that cannot be read, or a model that cannot be used.
    """
    if isinstance(outputs, str | Path):
        found, form = read_outputs(Path(outputs))
    else:
        found, form = from_records((f"record {n}", dict(r)) for n, r in enumerate(outputs, 1))
    if isinstance(model, str):
        model = load_settings([*model_words(model), *overrides], "vanilla")
    oracle = oracle_of(model, chat, own_dtype)
    judged = list(oracle.judge(found))
    return result_of(oracle, judged, len(found), form, model.config.model)


def assert_lossless(
    model: "str | LanguageModel",
    prompts: Sequence[str],
    decode: Callable[[str], str | Sequence[int]],
    *,
    chat: Literal["none", "template"] = "none",
    fail_on: Literal["wrong", "tie"] = "wrong",
) -> Verification:
    """Decodes prompts and judges the outputs, for tests of a method or an engine.

    Args:
        model: as `verify` takes it.
        prompts: texts.
        decode: a prompt to its greedy output, a text or token ids.
        chat: as of `verify`.
        fail_on: `wrong`, or `tie` for outputs that have to be identical.

    Raises:
        AssertionError: the verdicts on outputs that fail, a line each.
    """
    records = list[dict[str, Any]]()
    for prompt in prompts:
        made = decode(prompt)
        given = {"output": made} if isinstance(made, str) else {"output_ids": list(made)}
        records.append({"prompt": prompt, **given})
    result = verify(records, model, chat=chat)
    if result.failed(fail_on):
        raise AssertionError("\n".join(report(result)))
    return result


def oracle_of(model: "LanguageModel", chat: str = "none", own_dtype: bool = False) -> Oracle:
    """The oracle of a loaded model; arguments as of `verify`."""
    decoding = model.config.decoding
    settings = Settings(decoding.temperature, decoding.top_p, decoding.top_k)
    return Oracle(model.lm, model.tokenizer, eos_ids(model.lm), chat, own_dtype, settings)


def _written(prompts: Sequence[Prompt], results: Path) -> Path:
    """The prompts as a file, whose name is their hash."""
    lines = [{"prompt": p} if isinstance(p, str) else {"messages": p} for p in prompts]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path = results / "prompts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    write_atomic(path, text)
    return path


def custom_generate(
    method: str | Method = DEFAULT_METHOD,
    *,
    engine: str = "reference",
    strict: bool = False,
    overrides: Sequence[str] = (),
) -> CustomGenerate:
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
            `generate` without it slower.
        strict: greedy tokens are those of `generate` in a low precision, too: verified rows get the
            bits that they have alone, which costs time. Proven for the model at the first call.
        overrides: settings of the method, as on the command line: `["method.ngram=2"]`.

    Raises:
        SkipbenchError: `strict` with an engine other than `reference`; at the first call, on a
            machine or in a precision where it cannot be kept.
    """
    return CustomGenerate(method, engine, overrides, strict)


class Options(TypedDict, total=False):
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: str | Sequence[str]
    chat: str | None


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
        settings = [word for word in self._settings if not word.startswith("method.")]
        config = self.config
        if isinstance(method, str):
            settings += overrides
            config = compose([*settings, f"method={method}"])
            method = make_method(config, self.lm)
        return LanguageModel(settings, config, self.lm, self.tokenizer, method)

    @overload
    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int = ...,
        *,
        stream: Literal[False] = ...,
        **options: Unpack[Options],
    ) -> Answer: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int = ...,
        *,
        stream: Literal[True],
        **options: Unpack[Options],
    ) -> Stream: ...
    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        chat: str | None = None,
        stream: bool = False,
    ) -> Answer | Stream:
        """Decodes one prompt; ends at an EOS of the model's generation config.

        Args:
            prompt: a text, which is continued as it is, or a list of messages, dicts with `role`
                and `content`, which pass the model's chat template where it has one.
            max_new_tokens: maximum length of the output.
            temperature: 0 decodes greedily: vanilla's tokens, in a low precision up to near ties
                without `engine.strict=true`. Above 0, speculative sampling with the model's own
                distribution.
            top_p, top_k: the usual limits of sampling; 1 and 0 are off.
            seed: of sampling; the same seed gives the same tokens, unless the method has learnt
                from a prompt in between.
            stop: a text, or several, before which the output ends.
            chat: `none` for plain text, `template`, `auto` or `vicuna`; by default none for a text
                and auto for messages.
            stream: returns an iterator of pieces instead of the whole answer.

        Raises:
            SkipbenchError: a prompt that does not fit, or a value out of range.
        """
        form = chat or ("none" if isinstance(prompt, str) else "auto")
        sampler = Sampler(temperature, top_p, top_k, seed)
        ids = encode_prompt(self.lm, self.tokenizer, prompt, max_new_tokens, form)
        eos = eos_ids(self.lm)
        steps = decode_stream(self.lm, self._methods, ids, max_new_tokens, eos, sampler)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        answer = Stream(steps, self.tokenizer, stops, len(ids), self.method.name)
        return answer if stream else answer.answer
