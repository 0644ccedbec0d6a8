"""The Python API: `load`, `generate`, `compare`, `custom_generate`, `verify`, `frame`,
`published`."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skipbench.bench.ask import Prompt
from skipbench.bench.custom_generate import CustomGenerate
from skipbench.bench.prompts import eos_ids
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.derived import model_words, quoted
from skipbench.decode.method import Method
from skipbench.language_model import LanguageModel as LanguageModel
from skipbench.language_model import load as load
from skipbench.language_model import load_settings
from skipbench.oracle.outputs import from_records, read_outputs
from skipbench.oracle.page import report
from skipbench.oracle.sampling import Settings
from skipbench.oracle.verify import Oracle, Verification
from skipbench.report.published import published as published
from skipbench.runs.files import write_atomic
from skipbench.runs.run import frame as frame

if TYPE_CHECKING:
    import pandas


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
    model: str | LanguageModel,
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
    return oracle.result(list(oracle.judge(found)), len(found), form, model.config.model.name)


def assert_lossless(
    model: str | LanguageModel,
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


def oracle_of(model: LanguageModel, chat: str = "none", own_dtype: bool = False) -> Oracle:
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
