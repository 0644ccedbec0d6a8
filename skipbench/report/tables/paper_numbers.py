"""The numbers of a paper's table: each printed one with the measured one beside it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from skipbench.report.columns import MISSING
from skipbench.report.compared import winners
from skipbench.report.definitions import STAND_INS, UNITS
from skipbench.report.measured import SCORES, Measured, measure, unmeasured
from skipbench.report.published import Printed
from skipbench.report.tables.paper_rows import OVERALL, Group, Half, Id, value_of

# columns of which the papers print the best in bold
BEST = ("speedup", "tokens_per_s", "TPT", "expected_speedup")
OUTSIDE = (
    "*: the paper's value lies outside the measured 95 % interval; without a star, where an "
    "interval stands, inside it"
)
Place = tuple[Id, Group, str]
"""Row, group and column of a number."""
# rows with the same of these are compared
_BLOCK = ("model", "dataset", "subtask", "temperature", "top_p")


@dataclass(frozen=True)
class Number:
    """A measured number beside the paper's.

    Args:
        keys: what the number is of, in the names of `published()`.
        measured: the value, or the reason why there is none.
        printed: without a value where the paper prints none.
        digits: decimals that the paper prints.
        run: folder of the run of the measured value, or of the one that should have given it.
        best_measured: the measured value is set in bold.
        best_published: the printed one is.
    """

    keys: Mapping[str, Any]
    measured: Measured
    printed: Printed
    digits: int
    run: str | None
    best_measured: bool = False
    best_published: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.printed.column]

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        ours, theirs = self.measured.value, self.printed.value
        return None if ours is None or theirs is None else ours - theirs

    @property
    def inside(self) -> bool | None:
        """True if the published value lies in the measured interval; None without either."""
        ends, value = self.measured.interval, self.printed.value
        return None if ends is None or value is None else ends[0] <= value <= ends[1]

    @property
    def percent(self) -> float | None:
        """The difference in percent of the published value, for speedups."""
        if self.unit == "x" and self.difference and self.printed.value:
            return 100 * self.difference / self.printed.value
        return None

    def measured_text(self) -> str:
        """`1.37x [1.30, 1.44]`, with as many decimals as the paper prints, at least two."""
        value, interval, _ = self.measured
        if value is None:
            return MISSING
        ends = f" [{', '.join(map(self._shown, interval))}]" if interval else ""
        return f"{self._shown(value)}{self._x}{ends}"

    def published_text(self) -> str:
        """The number with the paper's decimals; a dash where it prints none."""
        value, spread = self.printed.value, self.printed.spread
        if value is None:
            return MISSING
        more = "" if spread is None else f" \u00b1 {spread:.{self.digits}f}"
        return f"{value:.{self.digits}f}{self._x}{more}"

    def difference_text(self) -> str:
        """`+0.03 (+2 %)`, with a star where the published value lies outside the measured interval;
        a dash where one of the two is missing.
        """
        if self.difference is None:
            return MISSING
        percent = f" ({self.percent:+.0f} %)" if self.percent is not None else ""
        star = " *" if self.inside is False else ""
        return f"{self._shown(self.difference, '+')}{percent}{star}"

    def _shown(self, value: float, sign: str = "") -> str:
        return f"{value:{sign}.{max(self.digits, 2)}f}"

    @property
    def _x(self) -> str:
        return "x" if self.unit == "x" else ""


def numbers(half: Half, scale: str) -> dict[Place, Number]:
    """All numbers of `half` by their place, the best ones marked."""
    found: dict[Place, Number] = {}
    usual = {
        column: Counter(
            n.digits for n in half.numbers if n.column == column and n.digits is not None
        )
        for _, column in half.columns
    }
    for place in [(row, *column) for row in half.ids for column in half.columns]:
        row, group, column = place
        keys = {**half.settings, **dict(row), **({half.across: group} if half.across else {})}
        printed = half.printed.get(place) or Printed(keys=keys, column=column)
        digits = printed.digits
        if digits is None:  # as the paper prints most numbers of the column
            digits = usual[column].most_common(1)[0][0] if usual[column] else 2
        run = half.runs.get((row, group))
        found[place] = Number(
            keys, _measured(half, place, scale), printed, digits, run.id if run else None
        )
    return _with_best(found)


def _measured(half: Half, place: Place, scale: str) -> Measured:
    row, group, column = place
    if reason := unmeasured(column):
        return Measured(reason=reason)
    run, settings = half.runs.get((row, group)), half.settings | dict(row)
    if run is None:
        if group == OVERALL:
            return _mean(half, place, scale)
        model = group if half.across == "model" else settings.get("model")
        elsewhere = scale != "paper" and model not in STAND_INS
        return Measured(reason=f"not run at scale={scale}" if elsewhere else "not run yet")
    if not run.metrics:
        return Measured(reason=run.reason or "not run yet")
    found = measure(run.metrics, column, settings.get("phase"), settings.get("part"))
    # A run that waits for its scores gives the better reason for a missing score.
    if found.reason and column in SCORES and run.reason:
        return Measured(reason=run.reason)
    return found


def _mean(half: Half, place: Place, scale: str) -> Measured:
    """The paper's overall values: the mean over its tasks, only where all of them were measured."""
    row, _, column = place
    groups = [g for g in dict.fromkeys(g for g, _ in half.columns) if g != OVERALL]
    tasks = {str(g): _measured(half, (row, g, column), scale) for g in groups}
    values = [task.value for task in tasks.values() if task.value is not None]
    if len(values) == len(groups):
        return Measured(fmean(values))
    reasons = {task.reason for task in tasks.values() if task.reason}
    if not values and len(reasons) == 1:
        return Measured(reason=reasons.pop())
    missing = ", ".join(name for name, task in tasks.items() if task.value is None)
    return Measured(reason=f"the mean needs {missing} too")


def _with_best(grid: Mapping[Place, Number]) -> dict[Place, Number]:
    """Marks per block and column the measured winner and the highest printed values."""
    blocks = {
        (row, group, column): (*(value_of(row, key) for key in _BLOCK), group, column)
        for row, group, column in grid
        if column in BEST
    }
    best = winners(
        {
            place: (block, str(n.keys.get("method")), n.measured.interval)
            for place, block in blocks.items()
            if (n := grid[place]).measured.value is not None
        }
    )
    printed: dict[tuple[Any, ...], list[float]] = {}
    for place, block in blocks.items():
        if (value := grid[place].printed.value) is not None:
            printed.setdefault(block, []).append(value)
    marked = dict(grid)
    for place, block in blocks.items():
        values, n = printed.get(block, []), grid[place]
        highest = len(values) > 1 and n.printed.value == max(values)
        marked[place] = replace(n, best_measured=place in best, best_published=highest)
    return marked
