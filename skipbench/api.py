"""`compare` of the Python API."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.config.catalog import quoted
from skipbench.config.derived import model_words

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
        One row per method, best first, as `frame` has it: `method`, `speedup` with `speedup_low`
        and `speedup_high` (95 % interval), `best`, `tokens_per_s`, `M`, `lossless`, ..., `note`
        where it was left out; vanilla against itself is the noise.

    Raises:
        SkipbenchError: a model or prompts that cannot be used.
    """
    from skipbench.experiments.ranking import cells_to_rank, prompts_file, run_ranked
    from skipbench.experiments.table_runs import run_entry
    from skipbench.report.compared import conclude
    from skipbench.report.frame import frame_of
    from skipbench.report.tables.runs import lines_of

    settings = [*model_words(model), f"results={quoted(str(results))}", *overrides]
    if prompts is not None:
        path = prompts if isinstance(prompts, str | Path) else prompts_file(prompts, Path(results))
        settings += ["dataset=prompts", f"dataset.path={quoted(str(path))}"]
    run_ranked(cells := cells_to_rank(settings, methods, limit), minutes)
    return frame_of(lines_of(conclude([run_entry(cell) for cell in cells]).runs)[0])
