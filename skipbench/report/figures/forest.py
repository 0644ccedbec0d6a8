"""Forest plots: for each row of a comparison the speedup of every arm with its interval."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from skipbench.errors import SkipbenchError
from skipbench.metrics.interval import FEWEST
from skipbench.report.compared import BASELINE, Comparison, conclude, row_of
from skipbench.report.definitions import caution
from skipbench.report.figures import style
from skipbench.report.values import count, speedup
from skipbench.runs.run import Run

ROOM = 1.25  # the axis has room for this factor around a speedup; a longer interval runs out of it
TICKS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7, 10)
MOST_TICKS = 9


def rows_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs with a speedup, each once, by the title of their row: its model and dataset, and
    what tells it from other rows on them.
    """
    known = [run for run in runs if run.speedup and not run.group]
    once = {run.id or f"{run.method} {run.label} {run.keys}": run for run in reversed(known)}
    rows: dict[tuple[str, ...], list[Run]] = {}
    for run in reversed(once.values()):
        rows.setdefault(row_of(run), []).append(run)
    told, found = {row: _told(own[0]) for row, own in rows.items()}, dict[str, list[Run]]()
    for row, own in rows.items():
        same = [of for of in told.values() if of[0] == told[row][0]]
        differ = [text for text, *all_ in zip(told[row], *same, strict=True) if len({*all_}) > 1]
        title = ", ".join(filter(None, [told[row][0], *differ]))
        found[f"{title}, {row[0].rpartition('_')[2]}" if title in found else title] = own
    return found


def _told(run: Run) -> tuple[str, ...]:
    """The model and dataset of a row; and what may tell it from others on them."""
    temperature = run.setting("decoding.temperature") or run.keys.get("temperature") or 0
    how = f"temperature {temperature}" if temperature else "greedy"
    return f"{run.model} on {run.dataset}", how, run.origin.dtype or "", *row_of(run)[1:]


def forest(rows: dict[str, list[Run]]) -> Figure:
    """A panel per row of `rows_of`, the fastest arm first, on one axis of speedups over vanilla.
    Filled are the fastest and what is not significantly slower; the band is vanilla against itself.
    Raises SkipbenchError without a row.
    """
    if not rows:
        raise SkipbenchError("no run of it has a speedup; run what is missing first")
    with style.styled():
        return _drawn(rows)


def _drawn(rows: dict[str, list[Run]]) -> Figure:
    sizes = [len(own) for own in rows.values()]
    height = 0.7 + 0.45 * len(rows) + 0.27 * sum(sizes)
    figure, axes = style.new_figure(len(rows), 1, (7.2, height), sizes)
    ends = list[float]()
    for axis, (title, own) in zip(axes[:, 0], rows.items(), strict=True):
        ends += _panel(axis, title, own)
    last = axes[-1, 0]
    low, high = min(0.9, *ends) / 1.03, max(1.1, *ends) * 1.03
    last.set(xlim=(low, high), xlabel=f"speedup over {next(iter(rows.values()))[0].over} (x)")
    within = [tick for tick in TICKS if low <= tick <= high]
    step = -(-len(within) // MOST_TICKS)
    shown = [tick for at, tick in enumerate(within) if (at - within.index(1)) % step == 0]
    for axis in axes[:, 0]:
        axis.set_xscale("log")
        axis.set_xlim(low, high)
        axis.xaxis.set_major_locator(FixedLocator(shown))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}")
    return figure


def below(runs: Sequence[Run]) -> str:
    """The line below a forest plot: device and engine, and whether it replicates nothing."""
    known = [run for run in runs if run.speedup]
    parts = [
        f"{name} {', '.join(sorted({str(getattr(run.origin, name)) for run in known}))}"
        for name in ("device", "engine")
    ]
    if caution((run.model for run in known), (run.dataset for run in known)):
        parts.append("embedded model or data: not a replication")
    how = "filled: the fastest and what is not significantly slower; band: vanilla against itself"
    return f"{'; '.join(parts)}\n{how}"


def _panel(axis: Axes, title: str, runs: Sequence[Run]) -> list[float]:
    """Draws a row; returns what the axis must hold."""
    # one of a few prompts keeps the others from no verdict
    able = [run for run in runs if len(run.measured.speedup.by_question or ()) >= FEWEST] or runs
    verdict, taken = _verdict(conclude(able))
    ordered, held = sorted(runs, key=lambda run: -(run.speedup or 0)), list[float]()
    texts, chosen = list[str](), {run.id for run in taken}
    for place, run in enumerate(ordered):
        value, ends = run.measured.speedup.headline
        assert value is not None
        color = style.method_style(run.method).color
        if run.method == BASELINE and ends:
            axis.axvspan(*ends, color=style.GREY, alpha=0.15, linewidth=0)
        if ends:
            axis.plot(ends, [place, place], color=color, linewidth=1.6)
            held += [max(ends[0], value / ROOM), min(ends[1], value * ROOM)]
        face = color if run.id in chosen else "white"
        axis.plot([value], [place], "o", color=color, markerfacecolor=face, markersize=6)
        held.append(value)
        texts.append(f"{speedup(run.measured.speedup).text}  n {count(run.measured).text}")
    axis.axvline(1.0, color=style.GREY, linewidth=0.8)
    axis.set_yticks(range(len(ordered)), _names(ordered), fontsize=8)
    axis.set_ylim(len(ordered) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.set_title(f"{title}:\n{verdict}", fontsize=8, loc="left")
    for place, text in enumerate(texts):
        where = axis.get_yaxis_transform()
        axis.text(1.01, place, text, transform=where, va="center", fontsize=7.5)
    return held


def _verdict(ranking: Comparison) -> tuple[str, list[Run]]:
    """What to take, and the runs of it."""
    if ranking.best:
        return f"take {ranking.recommended}", [ranking.best, *ranking.tied]
    methods = [run for run in ranking.runs if run.method != BASELINE]
    questions = [{*(run.measured.speedup.by_question or ())} for run in methods] or [set[str]()]
    if len(set.intersection(*questions)) < FEWEST:
        return f"no recommendation with fewer than {FEWEST} questions that all have", []
    vanilla = [run for run in ranking.runs if run.method == BASELINE]
    return f"take {ranking.runs[0].over}, nothing is faster beyond the noise", vanilla


def _names(runs: Sequence[Run]) -> list[str]:
    """The method of each run, and where several have one, its point or the end of its folder."""
    methods = [run.method for run in runs]
    found = []
    for run in runs:
        several = methods.count(run.method) > 1
        own = run.label or str(run.id).rpartition("_")[2] if several else ""
        found.append(" ".join(filter(None, [run.method, own])))
    return found
