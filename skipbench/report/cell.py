"""One cell, model x method x dataset, for the terminal and as Markdown.

Takes the contents of `metrics.json`.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from skipbench.report.columns import (
    MISSING,
    exceptions,
    known,
    main_cells,
    missing_reasons,
    number,
    sample_count,
    scaled,
    search_phases,
    stopped_early,
    waits_cells,
)
from skipbench.report.definitions import LEGEND, PERCENT_SCORES, caution, definitions_for
from skipbench.report.tables.markdown import markdown_grid
from skipbench.runs.reading import value_at

_SEPARATOR = "; "
WAITS_UNITS = {"TTFT": " ms (p50 / p90 / p99)", "TPOT": " ms (p50 / p90 / p99)", "J/token": ""}
"""What stands behind the values of `waits_cells` in a cell's own table."""


def cell_lines(metrics: Mapping[str, Any], header: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and text of every line but the main row, the header first; items of a text are
    separated by `; `.
    """
    named = {**header, "samples": header.get("samples") or sample_count(metrics)}
    speedups = _items(metrics, "speedup", ("micro", "macro", "s_per_token", "end_to_end"), "x")
    alphas = [f"{n} {number(metrics.get(f'alpha_{n}'), 3)}" for n in ("macro", "chain", "cond")]
    roofline = scaled(metrics.get("roofline_fraction_vanilla"), 100)
    memory = scaled(metrics.get("peak_memory_bytes"), 2**-20)
    lines = {
        "time": _join(_time(metrics)),
        **{
            name: text if text in (MISSING, "unknown") else f"{text}{WAITS_UNITS[name]}"
            for name, text in waits_cells(metrics).items()
        },
        "speedup by": _join(speedups),
        "search": _join(search_phases(metrics)),
        "until_ci": stopped_early(metrics) or "",
        "alpha": _join(alphas),
        "by position": _join(map(number, metrics.get("accepted_by_position") or ())),
        "tau_draft": number(metrics.get("tau_draft")),
        "lossless": _join(exceptions(metrics)),
        "score": _join(_scores(metrics)),
        "skipped": _join(_items(metrics, "skipped", ("attention", "mlp", "ratio"))),
        "roofline": number(roofline, 0, "% of it reached by vanilla"),
        "memory": number(memory, 0, " MiB at the peak"),
        MISSING: _join(missing_reasons(metrics).values()),
    }
    # Lines of nothing but dashes are left out; the last line says why a value is missing.
    shown = [
        (label, text)
        for label, text in lines.items()
        if any(not item.endswith(MISSING) for item in text.split(_SEPARATOR) if item)
    ]
    return [("cell", _join(f"{name} {text or MISSING}" for name, text in named.items())), *shown]


def render_cell(metrics: Mapping[str, Any], header: Mapping[str, str]) -> RenderableType:
    """The cell for the terminal: header, main row, details. Fits 80 columns."""
    lines = cell_lines(metrics, header)
    cells = main_cells(metrics)
    row = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in cells:
        row.add_column(column, justify="right")
    row.add_row(
        *(Text(text, style="bold" if column == "speedup" else "") for column, text in cells.items())
    )
    details = Table.grid(padding=(0, 2, 0, 0))
    for label, text in lines[1:]:
        details.add_row(Text(label), _Items(text))
    head = _Items(lines[0][1], "bold")
    parts: list[RenderableType] = [head, Text(), row, Text(), details, Text()]
    parts.append(Text(LEGEND, style="dim"))
    warning = _caution(header)
    return Group(*parts, *([Text(warning, style="yellow")] if warning else []))


def markdown_cell(metrics: Mapping[str, Any], header: Mapping[str, str]) -> str:
    """The cell as Markdown."""
    lines, cells = cell_lines(metrics, header), main_cells(metrics)
    warning = _caution(header)
    parts = [
        lines[0][1],
        markdown_grid([list(cells), list(cells.values())]),
        "\n".join(f"- {label}: {text}" for label, text in lines[1:]),
        "\n".join(f"- *{name}*: {text}" for name, text in _definitions(cells, lines)),
        *([warning] if warning else []),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


@dataclass(frozen=True)
class _Items:
    """Text that breaks between its items, not inside them."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glued = _SEPARATOR.join(item.replace(" ", "\xa0") for item in self.text.split(_SEPARATOR))
        yield Text(
            textwrap.fill(glued, options.max_width, break_on_hyphens=False).replace("\xa0", " "),
            self.style,
        )

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max((len(item) + 1 for item in self.text.split(_SEPARATOR)), default=1)
        return Measurement(min(widest, options.max_width), min(len(self.text), options.max_width))


def _join(items: Iterable[str]) -> str:
    return _SEPARATOR.join(items)


def _items(
    metrics: Mapping[str, Any], group: str, names: Iterable[str], unit: str = ""
) -> list[str]:
    shown = {"s_per_token": "s/token", "end_to_end": "end-to-end"}
    return [
        f"{shown.get(name, name)} {number(value_at(metrics, group, name), 2, unit)}"
        for name in names
    ]


def _definitions(cells: Mapping[str, str], lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return definitions_for([*cells, *(label for label, _ in lines)])


def _caution(header: Mapping[str, str]) -> str | None:
    return caution([header.get("model") or ""], [header.get("dataset") or ""])


def _time(metrics: Mapping[str, Any]) -> list[str]:
    seconds = {name: s for name, s in (metrics.get("seconds") or {}).items() if known(s)}
    total = math.fsum(seconds.values())
    return [
        f"{name} {number(100 * s / total, 0, '%')} {number(s, 2, 's')}"
        for name, s in seconds.items()
        if total
    ]


def _scores(metrics: Mapping[str, Any]) -> list[str]:
    score = metrics.get("score") or {}
    items = _score_items("", score)
    for group, labels in (score.get("by") or {}).items():
        for label, of in labels.items():
            items += _score_items(f"{group}={label} ({of.get('samples', 0)}) ", of)
    return items + _score_fault(metrics)


def _score_fault(metrics: Mapping[str, Any]) -> list[str]:
    """Scores may differ where tokens do.

    Where all tokens are identical, a scorer that disagrees with itself is at fault.
    """
    lossless = metrics.get("lossless") or {}
    other = any(lossless.get(name) for name in ("ties", "diverged", "unchecked", "sampled"))
    return (
        ["NOT EQUAL although all tokens are identical"]
        if metrics.get("score_equal") is False and not other
        else []
    )


def _score_items(prefix: str, of: Mapping[str, Any]) -> list[str]:
    vanilla, method = of.get("vanilla") or {}, of.get("method") or {}
    return [
        f"{prefix}{name} {_score_text(name, vanilla)} -> {_score_text(name, method)}"
        for name in dict.fromkeys([*vanilla, *method])
    ]


def _score_text(name: str, scores: Mapping[str, Any]) -> str:
    return number(scores.get(name), 1 if name in PERCENT_SCORES else 3)
