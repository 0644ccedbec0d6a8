"""Numbers as texts, and the values of a table of runs: the text of a cell with its numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from typing import NamedTuple, TypeGuard

import msgspec

from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import FEWEST
from skipbench.runs.measures import Interval, Metrics, Percentiles, Speedup

MISSING = "\u2014"
PERCENT = ("bleu", "sentence_bleu")
Ratio = tuple[float | None, Interval | None]


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


class Value(NamedTuple):
    """A text, and its numbers, unrounded, by what each adds to the name of its column."""

    text: str
    numbers: Mapping[str, object]


def decimals(value: float | None, digits: int = 2, unit: str = "", factor: float = 1) -> Value:
    """A number whose text has these decimals."""
    return Value(number(value, digits, unit, factor), {"": value})


def ratio(value: float | None, ends: Interval | None, values: Sequence[float] = ()) -> Value:
    """`1.37x [1.30, 1.44]`; of few questions `1.37x (1.30, 1.44)`, a value each."""
    text, (low, high) = number(value, 2, "x"), ends or (None, None)
    if value is not None and ends is not None:
        text += f" [{number(low)}, {number(high)}]"
    elif value is not None and len(values) > 1:
        text += f" ({', '.join(map(number, sorted(values)))})"
    return Value(text, {"": value, "low": low, "high": high})


def speedup(of: Speedup) -> Value:
    """The headline; of few questions with their values."""
    return ratio(*of.headline, [*(of.by_question or {}).values()])


def pair(between: str, form: Callable[[object], str], **of: float | None) -> Value:
    """Two numbers, of which `own` is the column's."""
    some = any(value is not None for value in of.values())
    text = between.join(map(form, of.values())) if some else MISSING
    return Value(text, {name.removeprefix("own"): value for name, value in of.items()})


def waits(metrics: Metrics, name: str) -> Value:
    """Milliseconds of vanilla and of the method, at each percentile."""
    ms, texts = dict[str, object](), list[str]()
    for arm, of in (("vanilla ", metrics.baseline), ("", metrics)):
        times = msgspec.structs.asdict(getattr(of, name) or Percentiles())
        ms |= {f"{arm}{share}": None if s is None else 1e3 * s for share, s in times.items()}
        texts.append(" / ".join(map(figures, [*ms.values()][-len(times) :])))
    return Value(MISSING if None in ms.values() else " -> ".join(texts), ms)


def count(metrics: Metrics | None) -> Value:
    """Number of prompts, of questions where these are fewer."""
    if metrics is None:
        return Value(MISSING, {"": None})
    samples, questions = metrics.samples, len(metrics.speedup.by_question or {})
    few = f" in {questions}" if 0 < questions < samples else ""
    return Value(f"{samples}{few}", {"": samples, "questions": questions or None})


def lossless(metrics: Metrics) -> Value:
    """Identical samples, of those that can be compared."""
    same, of = metrics.lossless.identical, metrics.lossless.comparable
    return Value(f"{same}/{of}" if of else MISSING, {"": same if of else None, "of": of})


def scores(metrics: Metrics) -> Value:
    """Mean scores, vanilla -> method; notes unequal ones of identical tokens, where a scorer
    contradicts itself.
    """
    vanilla, method = (of.score.means if of.score else {} for of in (metrics.baseline, metrics))
    same, found = metrics.lossless, []
    for name in dict.fromkeys([*vanilla, *method]):
        texts = (number(of.get(name), 1 if name in PERCENT else 3) for of in (vanilla, method))
        found.append(f"{name} {' -> '.join(texts)}")
    if metrics.score_equal is False and same.identical == same.comparable + same.sampled:
        found.append("NOT EQUAL although all tokens are identical")
    of_vanilla = {f"vanilla {name}": mean for name, mean in vanilla.items()}
    return Value("; ".join(found) or MISSING, of_vanilla | method)


def worst_tenth(metrics: Metrics) -> float | None:
    """The first decile of the speedups by question."""
    ratios = [*(metrics.speedup.by_question or {}).values()]
    return quantiles(ratios, n=10, method="inclusive")[0] if len(ratios) >= FEWEST else None


def skipped(metrics: Metrics) -> float | None:
    """Share of the sub-layers, of drafts by passes."""
    drafts = metrics.draft_passes or metrics.draft_steps is None
    return metrics.skipped.ratio if metrics.skipped and drafts else None


def adapting(metrics: Metrics) -> float | None:
    """Share of the seconds of decoding."""
    decoding = metrics.seconds.decoding
    return over(decoding.get("adapt"), math.fsum(decoding.values()))


def exceptions(metrics: Metrics) -> list[str]:
    """Counts of samples that are not simply identical to vanilla's, by kind."""
    of = metrics.lossless
    counts = {"tie" if of.ties == 1 else "ties": of.ties, "diverged": of.diverged}
    counts |= {"unchecked": of.unchecked, "sampled": of.sampled, "failed": of.failed}
    counts[f"of {metrics.samples} outputs loop"] = metrics.looped
    return [f"{count} {name}" for name, count in counts.items() if count]
