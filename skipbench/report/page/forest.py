"""Forest plots on top of the page: per model and dataset the speedups of all methods, ranked."""

import math
from collections.abc import Sequence

from msgspec import Struct

from skipbench.metrics.interval import FEWEST
from skipbench.report.columns import main_cells, sample_count, speedup_text
from skipbench.report.compared import BASELINE, Comparison, conclude, row_of
from skipbench.runs.measures import Interval
from skipbench.runs.run import Run

ROOM = 1.25  # the axis has room for this factor around a speedup; a longer interval runs out of it
TICKS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7, 10)
MOST_TICKS = 6
PLACES = ("model", "dataset", "subtask")  # keys of a paper's row of which a panel has one value


class Bar(Struct):
    """A line of a panel; places are percent of the axis."""

    name: str
    text: str
    told: str  # what is shown while the pointer is on it
    address: str
    at: float
    ends: Interval | None
    take: bool  # the fastest, or tied with it; vanilla where no method is faster than it


class Panel(Struct):
    """The methods of one row (`compared.row_of`), the fastest first."""

    title: str
    verdict: str
    arms: list[Bar]
    noise: Interval | None  # the interval of vanilla against itself
    ticks: list[tuple[str, float]]

    @property
    def grid(self) -> str:
        """The band of the noise and a line per tick, as the background of every arm in CSS."""
        colors = {"1x": "var(--faint)"}
        stripes = [
            (f"{at}%", f"calc({at}% + 1px)", colors.get(text, "var(--line)"))
            for text, at in self.ticks
        ]
        if self.noise:
            stripes.append((f"{self.noise[0]}%", f"{self.noise[1]}%", "var(--noise)"))
        each = "linear-gradient(90deg, transparent {0}, {2} {0} {1}, transparent {1})"
        return ", ".join(each.format(*stripe) for stripe in stripes)


def panels(runs: Sequence[tuple[str, Run]]) -> list[Panel]:
    """Panels by name, of runs with a speedup; `runs`: behind their addresses, the first counts."""
    named: dict[str, tuple[str, Run]] = {}
    for address, run in ((a, run) for a, run in runs if run.speedup and not run.group):
        named.setdefault(run.id or f"{run.method} {run.label} {run.keys}", (address, run))
    rows: dict[tuple[str, ...], list[tuple[str, Run]]] = {}
    for address, run in named.values():
        rows.setdefault(row_of(run), []).append((address, run))
    found = list[Panel]()
    for row in sorted(rows):
        same = [other for other in rows if other[:2] == row[:2]]
        differ = [text for text, *all_ in zip(row, *same, strict=True) if len({*all_}) > 1]
        found.append(_panel([row[1], *filter(None, differ)], rows[row]))
    return found


def _panel(where: Sequence[str], runs: Sequence[tuple[str, Run]]) -> Panel:
    """`where`: the dataset, and what tells the row from others on it."""
    ordered = sorted(runs, key=lambda pair: -(pair[1].speedup or 0))
    ranking = conclude([run for _, run in ordered])
    known = [(run, *run.measured.speedup.headline) for run in ranking.runs]
    low, high = _axis([(value, ends) for _, value, ends in known if value])

    def place(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def places(ends: Interval | None) -> Interval | None:
        return ends and (place(ends[0]), place(ends[1]))

    # one of a few prompts keeps the others from no verdict
    able = [pair for pair in ordered if len(_questions(pair[1])) >= FEWEST] or ordered
    judged = conclude([run for _, run in able])
    verdict, chosen = _verdict(judged)
    pairs = zip(able, judged.runs, strict=True)
    taken = [id(one) for (_, one), run in pairs if any(run is best for best in chosen)]
    arms = [
        Bar(
            name=" ".join([run.method, *_apart(run, ranking.runs)]),
            text=speedup_text(run.measured.speedup),
            told=_told(run),
            address=address,
            at=place(value or 1),
            ends=places(ends),
            take=id(one) in taken,
        )
        for (address, one), (run, value, ends) in zip(ordered, known, strict=True)
    ]
    noise = next((ends for run, _, ends in known if run.method == BASELINE), None)
    within = [tick for tick in TICKS if low <= tick <= high]
    step = -(-len(within) // MOST_TICKS)
    shown = [tick for at, tick in enumerate(within) if (at - within.index(1)) % step == 0]
    title = f"{runs[0][1].model} on {', '.join(where)}"
    ticks = [(f"{tick:g}x", place(tick)) for tick in shown]
    return Panel(title, verdict, arms, places(noise), ticks)


def _axis(known: Sequence[tuple[float, Interval | None]]) -> Interval:
    """Ends of the axis: vanilla's speed, all speedups and what is near of their intervals."""
    lows = [max(ends[0] if ends else value, value / ROOM) for value, ends in known]
    highs = [min(ends[1] if ends else value, value * ROOM) for value, ends in known]
    return min(0.9, *lows) / 1.03, max(1.1, *highs) * 1.03


def _apart(run: Run, runs: Sequence[Run]) -> list[str]:
    """What tells a run from those of the same method; the end of its name where nothing else."""
    words = [
        {"": one.label or "", **{k: str(v) for k, v in one.keys.items() if k not in PLACES}}
        | {"n": sample_count(one.measured), "commit": (one.origin.commit or "")[:7]}
        for one in (run, *runs)
        if one.method == run.method
    ]
    own = words[0]
    differ = {k: v for k, v in own.items() if v and any(other.get(k) != v for other in words)}
    twin = [str(run.id).rpartition("_")[2]] if words.count(own) > 2 else []
    own_names = [v if k in ("", "method") else f"{k}={v}" for k, v in differ.items()]
    return [name for name in own_names if name != run.method] + twin


def _verdict(ranking: Comparison) -> tuple[str, list[Run]]:
    """What to take, and the runs of it."""
    if ranking.best:
        return f"take {ranking.recommended}", [ranking.best, *ranking.tied]
    methods = [run for run in ranking.runs if run.method != BASELINE]
    questions = [_questions(run) for run in methods] or [set[str]()]
    if len(set.intersection(*questions)) < FEWEST:
        return f"nothing can be told apart below {FEWEST} questions that all have", []
    vanilla = [run for run in ranking.runs if run.method == BASELINE]
    return f"take {ranking.runs[0].over}: nothing is faster beyond the noise", vanilla


def _questions(run: Run) -> set[str]:
    return set(run.measured.speedup.by_question or ())


def _told(run: Run) -> str:
    metrics = run.measured
    cells = main_cells(metrics) | {"n": sample_count(metrics)}
    told = [f"{name} {cells[name]}" for name in ("speedup", "n", "M", "tok/s", "lossless")]
    return "; ".join(filter(None, [*told, run.reason]))
