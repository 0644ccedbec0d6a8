"""Columns of a table as texts, from a run's metrics."""

import math
from collections.abc import Sequence
from statistics import quantiles
from typing import TypeGuard

from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import FEWEST
from skipbench.metrics.pairs import Standing
from skipbench.metrics.summary import PERCENTILES
from skipbench.runs.measures import Interval, Metrics, Paired, Percentiles, Score

MISSING = "\u2014"
PERCENT_SCORES = ("bleu", "sentence_bleu")


def known(value: object) -> TypeGuard[float]:
    """True for a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: object, digits: int = 2, unit: str = "", factor: float = 1) -> str:
    """`value` times `factor` with `digits` decimals; a dash for anything but finite numbers."""
    return f"{value * factor:.{digits}f}{unit}" if known(value) else MISSING


def figures(value: object) -> str:
    """About three figures of a positive number, so that columns stay narrow."""
    digits = sum(value < end for end in (10, 100)) if known(value) else 0
    return number(value, digits)


def sample_count(metrics: Metrics) -> str:
    """Number of prompts, of questions where these are fewer."""
    questions = len(metrics.speedup.by_question or {})
    return f"{metrics.samples}" + (f" in {questions}" if 0 < questions < metrics.samples else "")


def main_cells(metrics: Metrics) -> dict[str, str]:
    """The main row of a cell, by column."""
    expected = (metrics.expected_speedup.paper, metrics.expected_speedup.measured_cost)
    rates = (metrics.baseline.tokens_per_s, metrics.tokens_per_s)
    same, of = metrics.lossless.identical, metrics.lossless.comparable
    return {
        "M": figures(metrics.M),
        "alpha": number(metrics.alpha_of_passes, 3),
        "tau": figures(metrics.tau),
        "TPT": figures(metrics.tpt),
        "E(Spd)": " / ".join(map(number, expected)) if any(map(known, expected)) else MISSING,
        "speedup": speedup_text(metrics.speedup),
        "tok/s": " -> ".join(map(figures, rates)) if any(map(known, rates)) else MISSING,
        "lossless": f"{same}/{of}" if of else MISSING,
    }


def more_cells(metrics: Metrics, standing: Standing | None = None) -> dict[str, str]:
    """What the table of a row has beside `main_cells`, by column."""
    by, skipped = metrics.speedup, metrics.skipped
    ratios = [*(by.by_question or {}).values()]
    tenth = quantiles(ratios, n=10, method="inclusive")[0] if len(ratios) >= FEWEST else None
    decoding, drafts = metrics.seconds.decoding, metrics.draft_passes or metrics.draft_steps is None
    share = over(decoding.get("adapt"), math.fsum(decoding.values()))
    return {
        "n": sample_count(metrics),
        "over best": ratio_text(standing.ratio, standing.interval) if standing else MISSING,
        "worst tenth": number(tenth, 2, "x"),
        "passes / round": figures(metrics.draft_passes),
        "rows / round": figures(metrics.rows),
        "skipped": number(skipped.ratio if skipped and drafts else None),
        "adapt": number(share, 0, " %", 100),
        "decode only": ratio_text(by.paired, by.ci95),
        "accepted share": number(metrics.accepted_share, 3),
        "set-up": number(metrics.setup_s or None, 1, " s"),
        "low-bit copy": number(metrics.variant_bytes or None, 0, " MiB", 2**-20),
        **waits_cells(metrics),
    }


def waits_cells(metrics: Metrics, shares: Sequence[int] = PERCENTILES) -> dict[str, str]:
    """Latencies (ms, at the percentiles `shares`), vanilla -> method, by column."""

    def arrow(*arms: Percentiles | None) -> str:
        values = [[getattr(arm or Percentiles(), f"p{p}") for p in shares] for arm in arms]
        if None in values[0] + values[1]:
            return MISSING
        return " -> ".join(" / ".join(figures(1e3 * s) for s in times) for times in values)

    return {
        "TTFT": arrow(metrics.baseline.ttft_s, metrics.ttft_s),
        "ITL": arrow(metrics.baseline.s_per_output_token, metrics.s_per_output_token),
    }


def speedup_text(of: Paired) -> str:
    """`1.37x [1.30, 1.44]`; of few questions `1.37x (1.30, 1.44)`, a value each."""
    return ratio_text(*of.headline, [*(of.by_question or {}).values()])


def ratio_text(value: float | None, ends: Interval | None, values: Sequence[float] = ()) -> str:
    """A ratio with its interval, or without one with its few values."""
    text = number(value, 2, "x")
    if text == MISSING or (ends is None and len(values) < 2):
        return text
    if ends is None:
        return f"{text} ({', '.join(map(number, sorted(values)))})"
    return f"{text} [{number(ends[0])}, {number(ends[1])}]"


def scores(metrics: Metrics) -> list[str]:
    """Mean scores, vanilla -> method; notes unequal ones of identical tokens, where a scorer
    contradicts itself.
    """
    theirs, ours = ((of.score or Score()).means for of in (metrics.baseline, metrics))
    same, found = metrics.lossless, []
    for name in dict.fromkeys([*theirs, *ours]):
        digits = 1 if name in PERCENT_SCORES else 3
        arms = (number(arm.get(name), digits) for arm in (theirs, ours))
        found.append(f"{name} {' -> '.join(arms)}")
    if metrics.score_equal is False and same.identical == same.comparable + same.sampled:
        found.append("NOT EQUAL although all tokens are identical")
    return [f"scores, vanilla -> method: {'; '.join(found)}"] if found else []


def exceptions(metrics: Metrics) -> list[str]:
    """Counts of samples that are not simply identical to vanilla's, by kind."""
    of = metrics.lossless
    counts = {"tie" if of.ties == 1 else "ties": of.ties, "diverged": of.diverged}
    counts |= {"unchecked": of.unchecked, "sampled": of.sampled, "failed": of.failed}
    counts[f"of {metrics.samples} outputs loop"] = metrics.looped
    return [f"{count} {name}" for name, count in counts.items() if count]


def markdown_grid(rows: Sequence[Sequence[str]]) -> str:
    """A grid of texts; columns are padded, the first row is the head."""
    safe = [[one_line(text.replace("|", "\\|")) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    padded = [[text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in safe]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return "\n".join([lines[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *lines[1:]])


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())
