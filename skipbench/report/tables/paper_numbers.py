"""The numbers of a paper's table: each printed one with the measured one beside it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from skipbench.report.columns import MISSING
from skipbench.report.compared import winners
from skipbench.report.definitions import STAND_INS
from skipbench.report.measured import SCORES, Measured, measure, unmeasured
from skipbench.report.published import UNITS
from skipbench.report.tables.paper_rows import OVERALL, Half, Id, value_of

# columns of which the papers print the best in bold
BEST = ("speedup", "tokens_per_s", "TPT", "expected_speedup")
OUTSIDE = (
    "*: the paper's value lies outside the measured 95 % interval; without a star, where an "
    "interval stands, inside it"
)
Place = tuple[Id, Any, str]
"""Row, group and column of a number."""
# rows with the same of these are compared
_BLOCK = ("model", "dataset", "subtask", "temperature", "top_p")


@dataclass(frozen=True)
class Number:
    """A number of the paper, the measured one, or the reason why there is none.

    Args:
        keys: what the number is of, in the names of `published()`.
        column: its column.
        unit: of all values, as in `published.UNITS`.
        measured: None only with a `reason`.
        interval: 95 % interval of the measured value.
        published: None where the paper prints none.
        spread: what the paper prints behind a plus-minus sign.
        digits: decimals that the paper prints.
        reason: why nothing was measured.
        note: note of the transcription on the printed number.
        run: folder of the run behind the measured value, or of the one that should have given it.
        best_measured: the measured value is set in bold.
        best_published: the printed one is.
    """

    keys: Mapping[str, Any]
    column: str
    unit: str
    measured: float | None
    interval: tuple[float, float] | None
    published: float | None
    spread: float | None
    digits: int
    reason: str | None
    note: str | None
    run: str | None
    best_measured: bool = False
    best_published: bool = False

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        if self.measured is None or self.published is None:
            return None
        return self.measured - self.published

    @property
    def inside(self) -> bool | None:
        """Whether the published value lies in the measured interval; None without either."""
        if self.interval is None or self.published is None:
            return None
        return self.interval[0] <= self.published <= self.interval[1]

    @property
    def percent(self) -> float | None:
        """The difference in percent of the published value, for speedups."""
        if self.unit == "x" and self.difference and self.published:
            return 100 * self.difference / self.published
        return None

    def measured_text(self) -> str:
        """`1.37x [1.30, 1.44]`, with as many decimals as the paper prints, at least two."""
        if self.measured is None:
            return MISSING
        ends = (
            f" [{self._shown(self.interval[0])}, {self._shown(self.interval[1])}]"
            if self.interval
            else ""
        )
        return f"{self._shown(self.measured)}{self._x}{ends}"

    def published_text(self) -> str:
        """The number with the paper's decimals; a dash where it prints none."""
        if self.published is None:
            return MISSING
        spread = f" \u00b1 {self.spread:.{self.digits}f}" if self.spread is not None else ""
        return f"{self.published:.{self.digits}f}{self._x}{spread}"

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
    places = [(identity, *column) for identity in half.ids for column in half.columns]
    return _with_best({place: _number(half, place, scale) for place in places})


def _number(half: Half, place: Place, scale: str) -> Number:
    identity, group, column = place
    row = half.printed.get(place, {})
    value, interval, reason = _measured(half, place, scale)
    across = {half.across: group} if half.across else {}
    return Number(
        keys={**half.settings, **dict(identity), **across},
        column=column,
        unit=UNITS[column],
        measured=value,
        interval=interval,
        published=row.get("value"),
        spread=row.get("spread"),
        digits=_usual_digits(half, column) if row.get("digits") is None else row["digits"],
        reason=reason,
        note=row.get("note"),
        run=run.id if (run := half.runs.get((identity, group))) else None,
    )


def _usual_digits(half: Half, column: str) -> int:
    """Decimals that the paper prints most often in a column."""
    printed = [
        row["digits"] for row in half.rows if row["column"] == column and row["digits"] is not None
    ]
    return Counter(printed).most_common(1)[0][0] if printed else 2


def _measured(half: Half, place: Place, scale: str) -> Measured:
    identity, group, column = place
    if reason := unmeasured(column):
        return None, None, reason
    run = half.runs.get((identity, group))
    if run is None:
        if group == OVERALL:
            return _mean(half, place, scale)
        model = group if half.across == "model" else half.settings.get("model")
        foreign = (value_of(identity, "model") or model) not in STAND_INS
        elsewhere = scale != "paper" and foreign
        return None, None, f"not run at scale={scale}" if elsewhere else "not run yet"
    if not run.metrics:
        return None, None, run.reason or "not run yet"
    phase = value_of(identity, "phase") or half.settings.get("phase")
    part = value_of(identity, "part") or half.settings.get("part")
    value, interval, reason = measure(run.metrics, column, phase, part)
    # A run that waits for its scores gives the better reason for a missing score.
    if reason and column in SCORES and run.reason:
        reason = run.reason
    return value, interval, reason


def _mean(half: Half, place: Place, scale: str) -> Measured:
    """The paper's overall values: the mean over its tasks, only where all of them were measured."""
    identity, _, column = place
    groups = [g for g in dict.fromkeys(g for g, _ in half.columns) if g != OVERALL]
    tasks = {str(g): _measured(half, (identity, g, column), scale) for g in groups}
    values = [value for value, _, _ in tasks.values() if value is not None]
    if len(values) == len(groups):
        return fmean(values), None, None
    reasons = {reason for _, _, reason in tasks.values() if reason}
    if not values and len(reasons) == 1:
        return None, None, reasons.pop()
    missing = [task for task, (value, _, _) in tasks.items() if value is None]
    return None, None, f"the mean needs {', '.join(missing)} too"


def _with_best(grid: Mapping[Place, Number]) -> dict[Place, Number]:
    """Marks per block and column the measured winner and the highest printed values."""
    compared = {place: number for place, number in grid.items() if number.column in BEST}
    blocks = {
        (identity, group, column): (*(value_of(identity, key) for key in _BLOCK), group, column)
        for identity, group, column in compared
    }
    best = winners(
        {
            place: (blocks[place], str(n.keys.get("method")), n.interval)
            for place, n in compared.items()
            if n.measured is not None
        }
    )
    printed: dict[tuple[Any, ...], list[float]] = {}
    for place, n in compared.items():
        printed.setdefault(blocks[place], []).extend([] if n.published is None else [n.published])
    marked = dict(grid)
    for place, n in compared.items():
        values = printed[blocks[place]]
        highest = len(values) > 1 and n.published == max(values)
        marked[place] = replace(n, best_measured=place in best, best_published=highest)
    return marked
