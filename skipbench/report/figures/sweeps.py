"""One number against a setting: sweeps of an axis, with the papers' values where their text prints
them.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import labels
from skipbench.report.figures.style import legend, line_styles, new_figure, star, whisker
from skipbench.report.published import Row
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _adapt_share(run: Run) -> float:
    seconds = run.measured.seconds.by_phase
    return seconds["adapt"] / sum(seconds.values())


def _memory_saved(run: Run, first: Run) -> float | None:
    """Against the first run; the peak of a process without a GPU is of all its cells and says
    nothing of one.
    """
    ours, base = (r.measured.peak_memory_bytes for r in (run, first))
    return 1 - ours / base if run.origin.device != "cpu" and ours and base else None


Value = Callable[[Run, Run], float | None]
"""Of a run and the first run of its line."""
VALUES: dict[str, tuple[str, Value]] = {
    "alpha": ("acceptance rate", lambda r, _: r.measured.alpha),
    "tau": ("tau (tokens per round)", lambda r, _: r.measured.tau),
    "M": ("M (tokens a verification)", lambda r, _: r.measured.M),
    "speedup": ("speedup (x)", lambda r, _: r.measured.speedup.paired),
    "tokens_per_s": ("throughput (tokens/s)", lambda r, _: r.measured.tokens_per_s),
    "TPT": ("TPT (tokens/s)", lambda r, _: r.measured.tpt),
    "share": ("share of layer selection", lambda r, _: _adapt_share(r)),
    "share_saved": (
        "share of layer selection saved",
        lambda r, first: (
            1 - (r.measured.seconds.adapt or 0) / first.measured.seconds.adapt
            if first.measured.seconds.adapt
            else None
        ),
    ),
    "memory_saved": ("memory saved", _memory_saved),
}


def setting(run: Run, key: str) -> Any:
    """The value of `method.interval` and the like in the run's settings; a group gives its name.

    Raises:
        SkipbenchError: the run has no such setting.
    """
    found: Any = run.settings
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            raise SkipbenchError(
                f"{run.folder} has no setting {key!r}; its groups: {', '.join(run.settings)}"
            )
        found = found[part]
    return found["name"] if isinstance(found, dict) else found


def sweep(
    runs: list[Run],
    published: list[Row],
    axis: str,
    columns: list[str],
    label: str = "",
    key: str = "",
    mark: str = "best",
) -> "Figure":
    """`columns` of `VALUES` against one setting, a line per method and dataset; 95 % intervals on
    the speedup.

    Published values stand as stars where `key` (default: last name of the axis) places them on the
    axis, else as dashed lines; a printed value of the axis itself is a dotted vertical line, and
    `mark` says what the paper says of it.
    """
    figure, axes = new_figure(1, len(columns), (2.4 + 3.0 * len(columns), 3.4))
    key = key or axis.removesuffix(".name").rpartition(".")[2]
    places, texts = _places(runs, axis)
    lines: dict[str, list[Run]] = {}
    for run, name in zip(runs, labels(runs, (axis,)), strict=True):
        lines.setdefault(name, []).append(run)
    styles = line_styles([members[0].method for members in lines.values()])
    for here, column in zip(axes[0], columns, strict=True):
        for (name, members), style in zip(lines.items(), styles, strict=True):
            members.sort(key=lambda r: places[setting(r, axis)])
            known = [
                (places[setting(r, axis)], VALUES[column][1](r, members[0]), r) for r in members
            ]
            known = [(x, y, r) for x, y, r in known if y is not None]
            here.plot([x for x, _, _ in known], [y for _, y, _ in known], label=name, **style)
            if column == "speedup":
                for x, _, r in known:
                    whisker(here, x, r.measured, style["color"])
            if not known:
                here.set_title("measured on a GPU only", fontsize=8, loc="left")
                here.set_xlim(min(places.values()), max(places.values()))
        _published(here, runs, published, column, axis, key, mark, places)
        here.set(xlabel=label or axis, ylabel=VALUES[column][0])
        _ticks(here, places, texts)
    legend(figure)
    return figure


def _places(runs: list[Run], axis: str) -> tuple[dict[Any, float], bool]:
    """Where each value stands on the axis, and whether values are names."""
    values = sorted({setting(run, axis) for run in runs}, key=lambda v: (isinstance(v, str), v))
    texts = any(isinstance(v, str) for v in values)
    return {v: i if texts else v for i, v in enumerate(values)}, texts


def _ticks(here: Any, places: dict[Any, float], texts: bool) -> None:
    if texts:
        here.set_xticks(list(places.values()), list(places), rotation=20)
        return
    numbers = sorted(places.values())
    if (
        all(isinstance(v, int) for v in numbers)
        and numbers[0] > 0
        and numbers[-1] / numbers[0] >= 16
    ):
        here.set_xscale("log", base=2)  # such as intervals, which are powers of two
        here.set_xticks(numbers, [str(v) for v in numbers], fontsize=7)
        here.minorticks_off()


def _published(
    here: Any,
    runs: list[Run],
    published: list[Row],
    column: str,
    axis: str,
    key: str,
    mark: str,
    places: dict[Any, float],
) -> None:
    by_key = {run.keys.get(key): places[setting(run, axis)] for run in runs}
    for row in published:
        if row["value"] is None:
            continue
        if row["column"] == key:
            text = f"paper: {mark} {row['value']:g}"
            here.axvline(
                by_key.get(row["value"], row["value"]),
                color="black",
                linestyle=":",
                linewidth=1,
                label=text,
            )
        if row["column"] != column:
            continue
        at = by_key.get(row.get(key), places.get(row.get(key), row.get(key)))
        percent = column in ("share", "memory_saved")
        text = f"{100 * row['value']:g}%" if percent else f"{row['value']:g}"
        if isinstance(at, int | float) and math.isfinite(at):
            star(here, at, row["value"], text)
        else:
            told = f"paper: {row.get(key, row.get('method', ''))} {text}"
            here.axhline(row["value"], color="black", linestyle="--", linewidth=0.8, label=told)
