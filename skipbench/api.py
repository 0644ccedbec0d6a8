"""The Python API: `load`, `compare`, `frame`, `published`, and what `skipbench.contrib` adds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.config.derived import model_words, quoted
from skipbench.config.extensions import load as load_extension
from skipbench.config.extensions import registered
from skipbench.language_model import LanguageModel as LanguageModel
from skipbench.language_model import load as load
from skipbench.report.published import published as published
from skipbench.runs.run import frame as frame

if TYPE_CHECKING:
    import pandas

    from skipbench.bench.ask import PromptType


def compare(
    model: str,
    prompts: "str | Path | Sequence[PromptType] | None" = None,
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
        minutes: after so many no further prompt begins; the same call goes on.
        limit: prompts per method; 20 by default.
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

    from skipbench.experiments.ranking import prompts_file, rank_methods

    settings = [*model_words(model), f"results={quoted(str(results))}", *overrides]
    if prompts is not None:
        path = prompts if isinstance(prompts, str | Path) else prompts_file(prompts, Path(results))
        settings += ["dataset=prompts", f"dataset.path={quoted(str(path))}"]
    rows = []
    for one in rank_methods(settings, minutes, methods, limit).runs:
        metrics = one.metrics
        low, high = (metrics and metrics.speedup.headline[1]) or (None, None)
        row = {
            **{"method": one.method, "speedup": one.speedup, "low": low, "high": high},
            **{key: getattr(metrics, key, None) for key in ("tokens_per_s", "M", "alpha")},
            "tokens_per_s_vanilla": metrics and metrics.baseline.tokens_per_s,
            "identical": metrics and metrics.lossless.identical,
            "samples": metrics and metrics.samples,
            "reason": one.reason,
        }
        rows.append(row)
    return pandas.DataFrame(rows)


def __getattr__(name: str) -> Any:
    if name in registered("api"):
        return load_extension("api", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
