"""`skipbench.verify`, and `assert_lossless` for tests."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from skipbench.bench.prompts import eos_ids
from skipbench.config.derived import model_words
from skipbench.contrib.oracle.judge import Oracle, Verification
from skipbench.contrib.oracle.outputs import from_records, read_outputs
from skipbench.contrib.oracle.report import report
from skipbench.contrib.oracle.sampling import Settings
from skipbench.language_model import LanguageModel, load_settings


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
