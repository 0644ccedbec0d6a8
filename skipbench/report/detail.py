"""One run in detail, for the terminal and as Markdown."""

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import asdict
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from skipbench.report import columns
from skipbench.report.columns import MISSING, main_cells, markdown_grid, number
from skipbench.report.definitions import LEGEND, caution, definitions_for
from skipbench.runs.measures import GroupScores, Metrics, Score, Skipped

_SEPARATOR = "; "
DRAFTS = ("accepted share", "passes / round", "rows / round", "worst tenth")
PERCENT_SCORES = ("bleu", "sentence_bleu")


def cell_lines(metrics: Metrics, header: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and text (items separated by `; `) of the header and the lines below the main row."""
    named = {**header, "samples": header.get("samples") or columns.sample_count(metrics)}
    by, more = metrics.speedup, columns.more_cells(metrics)
    skipped = metrics.skipped if more["skipped"] != MISSING else None
    speedups = {"micro": by.micro, "macro": by.macro, "s/token": by.s_per_token}
    speedups["micro with prefill"] = by.end_to_end
    alphas = {name: getattr(metrics, f"alpha_{name}") for name in ("macro", "chain", "cond")}
    phases, total = metrics.seconds.by_phase, math.fsum(metrics.seconds.by_phase.values())
    lines = {
        "time": [
            f"{name} {number(s / total, 0, '%', 100)} {number(s, 2, 's')}"
            for name, s in phases.items()
            if total
        ],
        **{
            name: [f"{text} ms (p50 / p90 / p99)" if "->" in text else text]
            for name, text in columns.waits_cells(metrics).items()
        },
        "decode only": [columns.ratio_text(by.paired, by.ci95)],
        "speedup by": [f"{name} {number(value, 2, 'x')}" for name, value in speedups.items()],
        "search": columns.search_phases(metrics),
        "alpha": [f"{name} {number(value, 3)}" for name, value in alphas.items()],
        **{name: [more[name]] for name in DRAFTS},
        "by position": [*map(number, metrics.accepted_by_position)],
        "tau_draft": [number(metrics.tau_draft)],
        "lossless": columns.exceptions(metrics),
        "score": _scores(metrics),
        "skipped": [f"{k} {number(v)}" for k, v in asdict(skipped or Skipped()).items()],
        "roofline": [
            number(metrics.roofline_fraction_vanilla, 0, "% of it reached by vanilla", 100)
        ],
        "memory": [number(metrics.peak_memory_bytes, 0, " MiB at the peak", 2**-20)],
        MISSING: [*columns.missing_reasons(metrics).values()],
    }
    head = [f"{name} {text or MISSING}" for name, text in named.items()]
    # Lines of nothing but dashes are left out; the last line says why a value is missing.
    return [("cell", _SEPARATOR.join(head))] + [
        (label, _SEPARATOR.join(items))
        for label, items in lines.items()
        if any(item and not item.endswith(MISSING) for item in items)
    ]


def render_cell(metrics: Metrics, header: Mapping[str, str]) -> RenderableType:
    """The cell for the terminal: header, main row, details. Fits 80 columns."""
    lines = cell_lines(metrics, header)
    cells = main_cells(metrics)
    row = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in cells:
        row.add_column(column, justify="right")
    row.add_row(*(Text(text, "bold" if name == "speedup" else "") for name, text in cells.items()))
    details = Table.grid(padding=(0, 2, 0, 0))
    for label, text in lines[1:]:
        details.add_row(Text(label), _Items(text))
    head, legend = _Items(lines[0][1], "bold"), Text(LEGEND, style="dim")
    last = [Text(text, style="yellow") for text in _cautions(header)]
    said, (speedup, _), same = list[Text](), metrics.speedup.headline, metrics.lossless
    if speedup is not None:
        of, method = same.comparable, header.get("method") or "the method"
        tokens = f"; {same.identical} of {of} outputs have the same tokens" if of else ""
        said = [Text(f"{method}: {speedup:.2f} times as fast as vanilla{tokens}")]
    return Group(head, Text(), row, *said, Text(), details, Text(), legend, *last)


def markdown_cell(metrics: Metrics, header: Mapping[str, str]) -> str:
    """The cell as Markdown."""
    lines, cells = cell_lines(metrics, header), main_cells(metrics)
    parts = [
        lines[0][1],
        markdown_grid([list(cells), list(cells.values())]),
        "\n".join(f"- {label}: {text}" for label, text in lines[1:]),
        "\n".join(f"- *{name}*: {text}" for name, text in definitions_for(cells)),
        LEGEND,
        *_cautions(header),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cautions(header: Mapping[str, str]) -> list[str]:
    return caution([header.get("model") or ""], [header.get("dataset") or ""])


@dataclass(frozen=True)
class _Items:
    """Text that breaks between its items, not inside them."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glued = _SEPARATOR.join(item.replace(" ", "\xa0") for item in self.text.split(_SEPARATOR))
        text = textwrap.fill(glued, options.max_width, break_on_hyphens=False)
        yield Text(text.replace("\xa0", " "), self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max((len(item) + 1 for item in self.text.split(_SEPARATOR)), default=1)
        return Measurement(min(widest, options.max_width), min(len(self.text), options.max_width))


def _scores(metrics: Metrics) -> list[str]:
    """Mean scores; notes unequal ones of identical tokens, where a scorer contradicts itself."""
    score, counts = metrics.score or Score(), metrics.lossless
    parts: list[tuple[str, Score | GroupScores]] = [("", score)]
    for group, labels in score.by.items():
        parts += [(f"{group}={label} ({of.samples}) ", of) for label, of in labels.items()]
    items = []
    for prefix, of in parts:
        for name in dict.fromkeys([*of.vanilla, *of.method]):
            digits = 1 if name in PERCENT_SCORES else 3
            arms = (number(scores.get(name), digits) for scores in (of.vanilla, of.method))
            items.append(f"{prefix}{name} {' -> '.join(arms)}")
    if metrics.score_equal is False and counts.identical == counts.comparable + counts.sampled:
        items.append("NOT EQUAL although all tokens are identical")
    return items
