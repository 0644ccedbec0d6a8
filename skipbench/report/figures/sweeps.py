"""One number against a setting: sweeps of an axis, with the papers' values where their text prints
them.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError
from skipbench.report.figures import style
from skipbench.report.figures.runs import labels
from skipbench.report.published import Printed
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
"""A quantity of a run; the first run of its line is the second argument."""
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
    found = run.setting(key)
    if found is None:
        raise SkipbenchError(
            f"{run.folder} has no setting {key!r}; its groups: {', '.join(run.settings)}"
        )
    return found["name"] if isinstance(found, dict) else found


def sweep(
    runs: list[Run],
    published: list[Printed],
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
    figure, axes = style.new_figure(1, len(columns), (2.4 + 3.0 * len(columns), 3.4))
    key = key or axis.removesuffix(".name").rpartition(".")[2]
    values = sorted({setting(run, axis) for run in runs}, key=lambda v: (isinstance(v, str), v))
    texts = any(isinstance(value, str) for value in values)
    places: dict[Any, float] = {v: i if texts else v for i, v in enumerate(values)}
    by_key = places | {run.keys.get(key): places[setting(run, axis)] for run in runs}
    lines: dict[str, list[Run]] = {}
    for run, name in zip(runs, labels(runs, (axis,)), strict=True):
        lines.setdefault(name, []).append(run)
    styles = style.line_styles([members[0].method for members in lines.values()])
    for here, column in zip(axes[0], columns, strict=True):
        text, value = VALUES[column]
        for (name, members), look in zip(lines.items(), styles, strict=True):
            members.sort(key=lambda run: places[setting(run, axis)])
            known = [(places[setting(run, axis)], run) for run in members]
            known = [(x, run) for x, run in known if value(run, members[0]) is not None]
            y = [value(run, members[0]) for _, run in known]
            here.plot([x for x, _ in known], y, label=name, **look)
            for x, run in known if column == "speedup" else []:
                style.whisker(here, x, run.measured, look["color"])
            if not known:
                here.set_title("measured on a GPU only", fontsize=8, loc="left")
                here.set_xlim(min(places.values()), max(places.values()))
        for n in published:
            if n.value is not None and n.column == key:
                at = by_key.get(n.value, n.value)
                style.published_line(here, at, f"{mark} {n.value:g}", style=":", upright=True)
            if n.value is not None and n.column == column:
                _published(here, n, n.value, key, by_key)
        here.set(xlabel=label or axis, ylabel=text)
        _ticks(here, places, texts)
    style.legend(figure)
    return figure


def _published(
    here: "Axes", number: Printed, value: float, key: str, by_key: dict[Any, float]
) -> None:
    at = by_key.get(number.keys.get(key), number.keys.get(key))
    text = f"{100 * value:g}%" if number.column in ("share", "memory_saved") else f"{value:g}"
    if isinstance(at, int | float) and math.isfinite(at):
        style.star(here, (at, value), text)
    else:
        named = (*number.named(key), *number.named("method"), "")[0]
        style.published_line(here, value, f"{named} {text}", width=0.8)


def _ticks(here: "Axes", places: dict[Any, float], texts: bool) -> None:
    if texts:
        here.set_xticks(list(places.values()), list(places), rotation=20)
        return
    numbers = sorted(places.values())
    whole = all(isinstance(v, int) for v in numbers)
    if whole and numbers[0] > 0 and numbers[-1] / numbers[0] >= 16:
        here.set_xscale("log", base=2)  # such as intervals, which are powers of two
        here.set_xticks(numbers, [str(v) for v in numbers], fontsize=7)
        here.minorticks_off()
