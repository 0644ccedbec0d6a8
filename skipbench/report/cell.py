"""One cell, model x method x dataset, for the terminal and as Markdown.

Takes the contents of `metrics.json`.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from skipbench.metrics.waits import PERCENTILES
from skipbench.report.definitions import LEGEND, PERCENT_SCORES, caution, definitions_for
from skipbench.report.tables.markdown import markdown_grid
from skipbench.runs.reading import value_at

MISSING = "\u2014"
_SEPARATOR = "; "
WAITS_UNITS = {"TTFT": " ms (p50 / p90 / p99)", "TPOT": " ms (p50 / p90 / p99)", "J/token": ""}
"""What stands behind the values of `waits_cells` in a cell's own table."""


def number(value: Any, digits: int = 2, unit: str = "") -> str:
    """`value` with `digits` decimals, or a dash for None, nan and infinities."""
    return f"{value:.{digits}f}{unit}" if _known(value) else MISSING


def figures(value: Any) -> str:
    """About three figures of a positive number, so that columns stay narrow."""
    return number(
        value, 2 if _known(value) and value < 10 else 1 if _known(value) and value < 100 else 0
    )


def sample_count(metrics: Mapping[str, Any]) -> str:
    """Prompts that were decoded, and where these were several, by how many processes."""
    repeats = metrics.get("repeats")
    shown = number(metrics.get("prompts" if repeats else "samples"), 0)
    return f"{shown} x {repeats}" if repeats else shown


def main_cells(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The main row of a cell, by column."""
    paper, measured = (
        value_at(metrics, "expected_speedup", name) for name in ("paper", "measured_cost")
    )
    tok_s = (metrics.get("tokens_per_s_vanilla"), metrics.get("tokens_per_s"))
    return {
        "M": figures(metrics.get("M")),
        "alpha": number(metrics.get("alpha"), 3),
        "tau": figures(metrics.get("tau")),
        "TPT": figures(metrics.get("tpt")),
        "E(Spd)": f"{number(paper)} / {number(measured)}"
        if _known(paper) or _known(measured)
        else MISSING,
        "speedup": _speedup(metrics),
        "tok/s": " -> ".join(map(figures, tok_s)) if any(map(_known, tok_s)) else MISSING,
        "lossless": _lossless(metrics),
    }


def waits_cells(metrics: Mapping[str, Any], shares: Sequence[int] = PERCENTILES) -> dict[str, str]:
    """What a user waits for and what it costs, vanilla -> method, by column: `shares` of the
    percentiles in milliseconds, such as `12.1 / 14.0 / 20.2 -> 8.1 / 9.9 / 21.0`.
    """

    def wait(key: str) -> str:
        found = metrics.get(key) or {}
        shown = [figures(_scaled(found.get(f"p{share}"), 1e3)) for share in shares]
        return MISSING if MISSING in shown else " / ".join(shown)

    return {
        "TTFT": _arrow(wait("ttft_s_vanilla"), wait("ttft_s")),
        "TPOT": _arrow(wait("s_per_output_token_vanilla"), wait("s_per_output_token")),
        "J/token": _joules(metrics),
    }


def _joules(metrics: Mapping[str, Any]) -> str:
    """A dash for a record that does not know the quantity, `unknown` where no counter was read."""
    if "joules_per_token" not in metrics:
        return MISSING
    both = [metrics.get(f"joules_per_token{suffix}") for suffix in ("_vanilla", "")]
    return _arrow(*map(figures, both)) if all(map(_known, both)) else "unknown"


def _arrow(vanilla: str, method: str) -> str:
    return MISSING if MISSING in (vanilla, method) else f"{vanilla} -> {method}"


def cell_lines(metrics: Mapping[str, Any], header: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and text of every line but the main row, the header first; items of a text are
    separated by `; `.
    """
    named = {**header, "samples": header.get("samples") or sample_count(metrics)}
    speedups = _items(metrics, "speedup", ("micro", "macro", "s_per_token", "end_to_end"), "x")
    alphas = [f"{n} {number(metrics.get(f'alpha_{n}'), 3)}" for n in ("macro", "chain", "cond")]
    roofline = _scaled(metrics.get("roofline_fraction_vanilla"), 100)
    memory = _scaled(metrics.get("peak_memory_bytes"), 2**-20)
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


def missing_reasons(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Why values are missing, by the name of the first one, as far as the metrics tell."""
    if not metrics.get("samples"):
        return {"samples": "no sample finished"}
    alpha, reasons = metrics.get("alpha"), dict[str, str]()
    if alpha is None:
        reasons["alpha"] = "alpha, tau and E(Spd): nothing was drafted"
    elif alpha == 0:
        reasons["E(Spd)"] = "E(Spd): no draft token was accepted"
    # Records of earlier versions lack `tpt_vanilla`, and have no TPT where nothing was drafted.
    modelled = alpha is not None or (metrics.get("M") is not None and "tpt_vanilla" in metrics)
    if modelled and metrics.get("tpt") is None:
        reasons["TPT"] = "TPT: " + (
            "alpha exceeds 1" if (alpha or 0) > 1 else "sub-layer latencies were not profiled"
        )
    if value_at(metrics, "speedup", "paired") is None:
        reasons["speedup"] = "speedup: no sample was decoded past its prefill"
    elif value_at(metrics, "speedup", "ci95") is None:
        reasons["interval"] = "interval: needs two samples"
    if _comparable(metrics) == 0 and value_at(metrics, "lossless", "sampled"):
        reasons["lossless"] = "lossless: tokens were sampled, not greedy"
    if metrics.get("roofline_fraction_vanilla") is None:
        reasons["roofline"] = "roofline: memory bandwidth was not measured"
    return reasons


def search_phases(metrics: Mapping[str, Any]) -> list[str]:
    """Speedup while a method searched its skip set and behind that, of one that searches while it
    decodes.
    """
    parts = metrics.get("speedup_by_search") or {}
    return [
        f"speedup {word} its search {_speedup({'speedup': part})} (n {part['samples']})"
        for word, part in (("during", parts.get("during")), ("after", parts.get("after")))
        if part and part["samples"]
    ]


def stopped_early(metrics: Mapping[str, Any]) -> str | None:
    """Where `until_ci` ended a run, None where it did not."""
    found = metrics.get("until_ci") or {}
    if not found.get("stopped"):
        return None
    return (
        f"stopped at {found['samples']} of {found['of']} prompts, by until_ci={found['wanted']}; "
        f"reached {number(found['half_width'], 4)}"
    )


def exceptions(metrics: Mapping[str, Any]) -> list[str]:
    """How many samples are not simply identical to vanilla's, by kind."""
    counts = {
        name: value_at(metrics, "lossless", name)
        for name in ("ties", "diverged", "unchecked", "sampled", "failed")
    }
    counts["end in a loop"] = metrics.get("looped")
    return [
        f"{count} {'tie' if (count, name) == (1, 'ties') else name}"
        for name, count in counts.items()
        if count
    ]


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


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _scaled(value: Any, factor: float) -> float | None:
    return value * factor if _known(value) else None


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


def _speedup(metrics: Mapping[str, Any]) -> str:
    ends = value_at(metrics, "speedup", "ci95")
    text = number(value_at(metrics, "speedup", "paired"), 2, "x")
    return f"{text} [{number(ends[0])}, {number(ends[1])}]" if ends and text != MISSING else text


def _comparable(metrics: Mapping[str, Any]) -> int:
    return sum(
        value_at(metrics, "lossless", name) or 0
        for name in ("identical", "ties", "diverged", "unchecked")
    )


def _lossless(metrics: Mapping[str, Any]) -> str:
    of = _comparable(metrics)
    return f"{value_at(metrics, 'lossless', 'identical') or 0}/{of}" if of else MISSING


def _time(metrics: Mapping[str, Any]) -> list[str]:
    seconds = {name: s for name, s in (metrics.get("seconds") or {}).items() if _known(s)}
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
