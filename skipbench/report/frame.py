"""`frame`: a results folder as a pandas frame."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.columns import COLUMNS, OVER, Line, numbers
from skipbench.report.tables.runs import lines_of
from skipbench.runs.reading import run_folders
from skipbench.runs.record import Round
from skipbench.runs.run import Run, read_run
from skipbench.runs.store import row_turns

if TYPE_CHECKING:
    import pandas


def frame(
    results: str | Path = "results", wide: bool = False, turns: bool = False
) -> "pandas.DataFrame":
    """The runs of a results folder, one row per run: `run` (ROW/ARM), `state`, and the columns of
    the tables of runs, unrounded, under their keys of `columns=`; `--help columns` explains them. A
    column of several numbers is several: `speedup` has `speedup_low` and `speedup_high`, the ends
    of its 95 % interval, `tokens_per_s` has `tokens_per_s_vanilla`, `lossless` has `lossless_of`.

    Args:
        wide: `best`, too, and every setting and number by its path, such as
            `settings.method.stop.max_steps` or `metrics.vanilla.tokens_per_s`.
        turns: one row per turn and arm instead, vanilla among them: `row`, `arm`, the names,
            counts of tokens and of its rounds, seconds per phase, and how many times as fast as
            vanilla it was: `speedup`, and `decode_speedup` without the prefill. A method that was
            added later took its turns with a vanilla of its own.

    Raises SkipbenchError where there are no runs, or one cannot be read.
    """
    import pandas

    runs = [read_run(folder) for folder in run_folders(Path(results))]
    if not runs:
        raise SkipbenchError(f"{results} has no runs; give a results folder")
    if turns:
        return pandas.json_normalize([*_turns(runs)])
    if not wide:
        return frame_of([Line(run) for run in runs], leave_out=("best", OVER))
    more = pandas.json_normalize([_wide(run) for run in runs])
    return pandas.concat([frame_of(lines_of(runs)[0]), more], axis=1)


def frame_of(lines: Sequence[Line], leave_out: Sequence[str] = (OVER,)) -> "pandas.DataFrame":
    """These lines as `frame` has them, in their order."""
    import pandas

    rows = []
    for line in lines:
        values = numbers({c.key: c.value(line) for c in COLUMNS if c.key not in leave_out})
        row = {name.replace(" ", "_"): value for name, value in values.items()}
        rows.append({"run": line.run.id, "state": line.run.status.state, **row})
    made = pandas.DataFrame(rows)
    return made.astype({name: float for name in made if made[name].isna().all()})


def _wide(run: Run) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(run, enc_hook=str)
    for metrics in (row.get("metrics", {}), row.get("metrics", {}).get("vanilla", {})):
        metrics.get("speedup", {}).pop("by_question", None)  # as many columns as questions
    rest = {k: v for k, v in row.items() if k not in ("id", "model", "method", "dataset")}
    return rest | {"origin": rest.pop("provenance", {})}


def _turns(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """A row per turn and arm, of the rows that the runs are of."""
    methods = {run.id: run.method for run in runs}
    rows = {run.folder.parent: run for run in runs if run.folder}
    for run in runs:
        _ = run.turns  # refused where damaged
    for folder, run in rows.items():
        for turn in row_turns(folder):
            shared = {k: v for k, v in msgspec.to_builtins(turn).items() if k != "arms"}
            for arm, of in turn.arms.items():
                sums = [sum(counts) for counts in zip(*of.rounds, strict=True)] or [0] * 5
                yield {
                    **{"row": folder.name, "arm": arm, "model": run.model, "dataset": run.dataset},
                    "method": methods.get(f"{folder.name}/{arm}", arm),
                    **shared,
                    **msgspec.to_builtins(of),
                    **dict(zip(Round._fields, sums, strict=True)),
                    **{"tokens": of.count, "rounds": len(of.rounds)},
                    "speedup": turn.ratio(run.base, arm),
                    "decode_speedup": turn.ratio(run.base, arm, prefill=False),
                }
