"""What a GPU should show, as it followed from an H100's seconds before today's kernels ran:

    python scripts/gpu_predictions.py      writes the table into docs/gpu.md

Milliseconds in bfloat16, unless a line says otherwise, of passes that the H100 took with prototype
kernels (`results/gpu/h100-80gb/prototypes`). Another card reads the same bytes at the copy rate
that its report has just measured; launches and gaps between kernels are an H100's, in wider bounds.
It needs Python alone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
BLOCK = re.compile(r"(<!-- predictions -->\n).*?(<!-- /predictions -->\n)", re.DOTALL)
ROWS, CONTEXTS, SMALL_CONTEXT = (1, 5, 9, 16), (256, 2048, 8000, 16_000), 200
PASSES = (  # of Llama-3-8B's sizes: low, likely and high per number of rows, by context
    ((5.517, 5.565, 5.708), (5.665, 5.709, 5.851), (5.665, 5.776, 5.919), (5.670, 5.857, 6.000)),
    ((5.652, 5.700, 5.843), (5.800, 5.824, 5.967), (5.800, 6.000, 6.332), (5.805, 6.167, 6.644)),
    ((5.938, 5.986, 6.129), (6.086, 6.333, 6.542), (6.086, 6.827, 7.097), (6.091, 7.274, 7.643)),
    ((6.322, 6.371, 6.514), (6.470, 7.017, 7.221), (6.470, 7.939, 8.199), (6.475, 8.763, 9.114)),
)
H100_COPY = 3030.0  # GB/s
NEAR = 0.03  # of it: the rate of an H100
HOPPER, OTHER = 1.3, 2.0
"""Most times an H100's launches and gaps, on another Hopper GPU and on other generations."""
LESS = 0.75
LARGEST, SMALLEST = "llama3-8b", "smollm2-135m"


class Size(NamedTuple):
    """Of a model: GB of weights that a pass reads, of the head among them, and per token of keys
    and values.
    """

    weights: float
    head: float
    token: float
    layers: int

    def read(self, context: int) -> float:
        return self.weights + context * self.token

    def half(self, context: int) -> float:
        """Share of the bytes that a draft without half of the sub-layers reads."""
        return 0.5 + 0.5 * self.head / self.read(context)


SIZES = {
    LARGEST: Size(15.01, 1.05, 131_072e-9, 32),
    "llama3.2-3b": Size(6.43, 0.788, 114_688e-9, 28),
    SMALLEST: Size(0.269, 0.0566, 23_040e-9, 30),
}


class Card(NamedTuple):
    """A GPU as its report has measured it."""

    copy: float = H100_COPY
    """GB/s."""
    hopper: bool = True
    shape: str = LARGEST
    """The large model, which fits into its memory."""

    @property
    def slower(self) -> float:
        """How much longer than on an H100 the steps of a report take."""
        reads = SIZES[self.shape].weights / SIZES[LARGEST].weights
        return max(1.0, H100_COPY / self.copy * reads)


H100 = Card()


def card_of(lines: Iterable[Mapping[str, Any]]) -> Card:
    """The GPU of the lines `environment` and `ceilings`; an H100 before they are there."""
    facts = dict[str, Any]()
    for line in lines:
        facts |= line if line.get("table") in ("environment", "ceilings") else {}
    shape = LARGEST if facts.get("bytes", 80e9) > 34e9 else "llama3.2-3b"
    found = Card(facts.get("copy GB/s", H100_COPY), facts.get("capability", "9.0") == "9.0", shape)
    near = abs(found.copy / H100_COPY - 1) < NEAR
    return H100 if near and found._replace(copy=H100_COPY) == H100 else found


class Prediction(NamedTuple):
    """A figure before it is measured: likely, and from `low` to `high`."""

    what: str
    step: str
    """Of `gpu_steps.STEPS`."""
    line: dict[str, Any]
    """What the step's line of it has."""
    key: str
    """The figure in this line."""
    low: float
    value: float
    high: float
    bar: float | None = None
    """At most so much, of an H100."""

    def measured(self, found: Sequence[Mapping[str, Any]]) -> float | None:
        """The figure among the lines of the step; `None` before it ran."""
        wanted = self.line.items()
        lines = (line for line in found if all(line.get(k) == v for k, v in wanted))
        return next((line[self.key] for line in lines if self.key in line), None)


Reach = tuple[float, float, float]


def scaled(ms: Reach, context: int, shape: str, of: str, card: Card) -> Reach:
    """Milliseconds of a pass on a card, of an H100's over another size."""
    size, theirs = SIZES[shape], SIZES[of]
    reads = 1e3 * size.read(context) / card.copy
    slower = 1.0 if card == H100 else HOPPER if card.hopper else OTHER
    less = 1.0 if card == H100 else min(LESS, H100_COPY / card.copy)
    low, likely, high = (
        (x - 1e3 * theirs.read(context) / H100_COPY) * size.layers / theirs.layers for x in ms
    )
    return reads + less * low, reads + (less + slower) / 2 * likely, reads + slower * high


def predictions(card: Card = H100) -> Iterator[Prediction]:
    """All of them, for a card."""
    large, far, ms = SIZES[card.shape], card != H100, dict[tuple[int, int], Reach]()

    def bar(value: float) -> float | None:
        return None if far else value

    for context, every in zip(CONTEXTS, PASSES, strict=True):
        for rows, reach in zip(ROWS, every, strict=True):
            ms[rows, context] = found = scaled(reach, context, card.shape, LARGEST, card)
            line = {"model": card.shape, "context": context, "rows": rows, "plan": "whole"}
            what = f"ms, {rows} row{'s' * (rows > 1)} after {context:,} tokens"
            of = bar(5.60) if (context, rows) == (2048, 1) else None
            yield Prediction(what, "passes", line, "ms", *found, of)
    one, nine = ms[1, 2048], ms[9, 2048]
    line = {"model": card.shape, "context": 2048, "rows": 9}
    ratio = nine[0] / one[0], nine[1] / one[1], nine[2] / one[1]
    yield Prediction("9 rows over 1 after 2,048 tokens", "passes", line, "share", *ratio, bar(1.04))
    for context, low, likely, high in (
        (256, 0.5305, 0.5350, 0.5390), (2048, 0.5298, 0.5325, 0.5364),
    ):  # fmt: skip
        more = large.half(context) - SIZES[LARGEST].half(context)
        ends = low + more - 0.015 * far, likely + more, high + more + 0.015 * far
        line = {"model": card.shape, "context": context, "plan": "half"}
        what = f"half of the sub-layers over a pass, {context:,} tokens"
        yield Prediction(what, "passes", line, "share", *ends)
    for bits, least, low, likely, high, wanted in (
        (8, 0.50, 0.6292, 0.7001, 0.7701, 0.60), (4, 0.28, 0.5374, 0.5537, 0.6091, 0.48),
    ):  # fmt: skip
        ends = least if far else low, likely, high + 0.08 * far
        line = {"context": 2048, "plan": f"int{bits}"}
        what = f"a step in {bits} bits over a pass, 2,048 tokens"
        yield Prediction(what, "draft plans", line, "share of a pass", *ends, bar(wanted))
    for rows, reach, of in (
        (1, (0.5061, 0.5663, 0.6577), bar(0.60)), (9, (0.5460, 0.6062, 0.6976), None),
    ):  # fmt: skip
        line = {"model": SMALLEST, "rows": rows, "plan": "whole"}
        found = scaled(reach, SMALL_CONTEXT, SMALLEST, SMALLEST, card)
        what = f"ms, SmolLM2's sizes, {rows} row{'s' * (rows > 1)} after 200 tokens"
        yield Prediction(what, "passes", line, "ms", *found, of)
    calls = [n - 6 * (SIZES[LARGEST].layers - large.layers) for n in (195, 199, 200)]
    line = {"table": "a whole pass", "kernel": "all"}
    yield Prediction("kernels of a pass", "kernels", line, "calls", *calls)


def rows_of(
    found: Mapping[str, Sequence[Mapping[str, Any]]], step: str = "", card: Card = H100
) -> list[list[str]]:
    """Lines of a table, its head first; `found`: lines by step; `step`: of this one alone."""
    of = "an H100" if card == H100 else f"an H100, at this card's {card.copy:,.0f} GB/s of a copy"
    lines = [["figure", f"predicted of {of}", "from, to", "bar", "measured"]]
    for one in predictions(card):
        if step and one.step != step:
            continue
        value, short = one.measured(found.get(one.step, ())), "{:.4g}".format
        missed = "met" if (one.value if value is None else value) <= (one.bar or 0) else "missed"
        reach = "" if one.bar is None else f"{short(one.bar)}, {missed}"
        ends = f"{short(one.low)}, {short(one.high)}"
        measured = "" if value is None else short(value)
        lines.append([one.what, short(one.value), ends, reach, measured])
    return lines if len(lines) > 1 else []


def markdown(lines: Sequence[Sequence[str]]) -> str:
    made = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in made)


def filled(text: str) -> str:
    """The text of a page with today's table between its marks, of fewer rows and lengths."""
    shown = [x[:-1] for x in rows_of({}) if not x[0].startswith("ms, 5") and "8,000" not in x[0]]
    return BLOCK.sub(lambda marks: f"{marks[1]}{markdown(shown)}{marks[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
