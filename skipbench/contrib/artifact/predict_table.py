"""A paper's speedups beside those that a machine's prices and the papers' own acceptance give."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from skipbench.config.architecture import Shape
from skipbench.contrib.artifact.predict import MachinePrices, Predicted, Range, predict
from skipbench.contrib.artifact.predict_papers import (
    UNKNOWN,
    PaperCell,
    cells_of,
    is_overall,
    rounded,
)
from skipbench.report.published import Paper, Printed, read_paper
from skipbench.report.tables.model import Grid, Head, Table, TableCell, TableRow
from skipbench.report.values import MISSING

NOTES = (
    "speedup = M / (gamma c + v), where c is a draft step and v a verification, in passes of "
    "vanilla. All formulas, and what both ends assume: docs/papers.md.",
    "Out of reach: the paper's value is above the high end, which takes every doubt in the "
    "method's favour. Lower: it is below the low end, which takes the other side of each doubt.",
    "Overall is the mean of the tasks. Prefill is in none of these predictions.",
)
LABELS = "model", "method", "temperature"  # of rows, where they differ
TERMS = "M", "alpha", "gamma", "c", "v", "context"


class Line(NamedTuple):
    """A published speedup, and the predicted one where there is one."""

    printed: Printed
    speedup: Range | None
    found: Predicted | None = None
    cell: PaperCell | None = None

    @property
    def verdict(self) -> str:
        """Whether the published value, before it was rounded, lies between the ends."""
        value, ends = self.printed.value, self.speedup
        if ends is None or value is None:
            return MISSING
        least, _, most = rounded(self.printed)
        if least > ends.high:
            return f"out of reach: {value:.2f} > {ends.high:.2f} at most"
        return "within" if most >= ends.low else f"lower: {value:.2f} < {ends.low:.2f}"


def lines_of(name: str, machine_for: Callable[[Shape], MachinePrices]) -> list[Line]:
    """Every speedup of the table but vanilla's, in the paper's order."""
    machines = dict[str, MachinePrices]()
    lines = list[Line]()
    for cell in cells_of(name):
        if cell.config is None or cell.known is None or cell.drafts is None:
            lines.append(Line(cell.printed, None))
            continue
        shape = cell.config.model.architecture
        assert shape is not None
        model = str(cell.printed.keys["model"])
        if model not in machines:
            machines[model] = machine_for(shape)
        found = predict(machines[model], cell.known, cell.drafts)
        lines.append(Line(cell.printed, found.speedup, found, cell))
    return [_mean(line, lines) if is_overall(line.printed) else line for line in lines]


def _mean(overall: Line, lines: Sequence[Line]) -> Line:
    """The overall speedup: the mean of the tasks in its row."""
    row = _row(overall.printed)
    ranges = [n.speedup for n in lines if n.speedup is not None and _row(n.printed) == row]
    return Line(overall.printed, Range(*map(fmean, zip(*ranges, strict=True))) if ranges else None)


def _row(printed: Printed) -> dict[str, Any]:
    return {k: v for k, v in printed.keys.items() if k not in ("dataset", "subtask")}


def predicted_table(name: str, device: str, origin: str, lines: Sequence[Line]) -> Table:
    """The table of `lines`, which says in title, columns and cautions that nothing was measured.

    Args:
        name: such as `swift-table2`.
        device: of `conf/hardware`.
        origin: where its prices are from, in words.
    """
    document = read_paper(name.rpartition("-")[0])
    title = document.tables[name.rpartition("-")[2]].title
    values = {key: {line.printed.keys.get(key) for line in lines} for key in LABELS}
    keys = [key for key in LABELS if len(values[key]) > 1]
    keys.append("subtask" if "subtask" in lines[0].printed.keys else "dataset")
    names = "published", "predicted", "from, to", "verdict", *TERMS
    columns = [Head(key, kind="label") for key in keys] + [Head(n) for n in names]
    sources: dict[str, int] = {}
    rows = [_table_row(line, keys, document, sources) for line in lines]
    return Table(
        name=f"{name}-predicted-{device}",
        title=f"PREDICTED, not measured: {document.printed('method', document.paper)} "
        f"{name.rpartition('-')[2].replace('table', 'Table ')}: {title}",
        source=f"Published speedups beside those that the prices of {device} and the papers' own "
        f"acceptance imply. {_count(lines)}",
        grids=(Grid(tuple(columns), tuple(rows)),),
        lines=(),
        cautions=(
            f"A prediction is no measurement: nothing here was run. The prices are those of "
            f"{device}, {origin}.",
        ),
        footnotes=tuple(sources),
        remarks=NOTES,
        provenance=(f"python -m skipbench predict {name} hardware={device}",),
    )


def _table_row(
    line: Line, keys: Sequence[str], document: Paper, sources: dict[str, int]
) -> TableRow:
    printed = line.printed
    source = line.cell.known.source if line.cell and line.cell.known else None
    source = source or UNKNOWN.get(printed.method)
    mark = sources.setdefault(source, len(sources) + 1) if source else None
    labels = [TableCell(document.printed(key, printed.keys.get(key))) for key in keys]
    cells = [TableCell(f"{printed.value:.2f}x")]
    if line.speedup is None:
        cells += [TableCell(MISSING, mark=mark), *[TableCell(MISSING)] * 8]
        return TableRow((*labels, *cells))
    low, value, high = line.speedup
    cells += [TableCell(f"{value:.2f}x", mark=mark), TableCell(f"{low:.2f}, {high:.2f}")]
    cells += [TableCell(line.verdict, bold=line.verdict.startswith("out"))]
    terms: Sequence[float | None] = [None] * len(TERMS)
    if (found := line.found) and (cell := line.cell) and cell.known and cell.drafts:
        alpha = cell.known.alpha and cell.known.alpha.value
        gamma, c = (found.gamma, found.c.value) if found.c else (None, None)
        terms = found.M, alpha, gamma, c, found.v.value, cell.drafts.context
    cells += [TableCell(MISSING if n is None else f"{round(n, 3):.5g}") for n in terms]
    return TableRow((*labels, *cells))


def _count(lines: Sequence[Line]) -> str:
    judged = [line.verdict for line in lines if line.speedup is not None]
    kinds = {word: sum(v.startswith(word) for v in judged) for word in ("within", "out", "lower")}
    return (
        f"Of {len(judged)} predicted cells the paper's value is between both ends in "
        f"{kinds['within']}, out of reach in {kinds['out']}, lower than the low end in "
        f"{kinds['lower']}."
    )
