"""What a GPU should show, as it followed from an H100's seconds before today's kernels ran:

    python scripts/gpu_predictions.py      writes the table into docs/gpu.md

Milliseconds in bfloat16, unless a line says otherwise. Computed by this file at commit c8727ff3, of
passes that the H100 took with prototype kernels (`results/gpu/h100-80gb/prototypes`). It needs
Python alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
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
    """At most so much."""

    def measured(self, found: Sequence[Mapping[str, Any]]) -> float | None:
        """The figure among the lines of the step; `None` before it ran."""
        wanted = self.line.items()
        lines = (line for line in found if all(line.get(k) == v for k, v in wanted))
        return next((line[self.key] for line in lines if self.key in line), None)


LARGE = {"model": "llama3.1-8b"}
SMALL = {"model": "smollm2-135m", "plan": "whole"}
OTHERS = [
    Prediction("9 rows over 1 after 2,048 tokens", "bars",
        {"figure": "verify 9 rows / 1 row", "shape": "llama3-8b", "context": 2048},
        "value", 1.026, 1.053, 1.111, 1.04),
    Prediction("half of the sub-layers over a pass, 256 tokens", "passes",
        LARGE | {"context": 256, "plan": "half"}, "share", 0.5305, 0.5350, 0.5390),
    Prediction("half of the sub-layers over a pass, 2,048 tokens", "passes",
        LARGE | {"context": 2048, "plan": "half"}, "share", 0.5298, 0.5325, 0.5364),
    Prediction("a step in 8 bits over a pass, 2,048 tokens", "draft plans",
        {"context": 2048, "plan": "int8"}, "share of a pass", 0.6292, 0.7001, 0.7701, 0.60),
    Prediction("a step in 4 bits over a pass, 2,048 tokens", "draft plans",
        {"context": 2048, "plan": "int4"}, "share of a pass", 0.5374, 0.5537, 0.6091, 0.48),
    Prediction("ms, SmolLM2's sizes, 1 row after 200 tokens", "passes",
        SMALL | {"rows": 1}, "ms", 0.5061, 0.5663, 0.6577, 0.60),
    Prediction("ms, SmolLM2's sizes, 9 rows after 200 tokens", "passes",
        SMALL | {"rows": 9}, "ms", 0.5460, 0.6062, 0.6976),
    Prediction("rows with other bits than alone, of 10,000", "strict rows",
        {"engine": "cuda_graphs", "strict": True}, "differing", 0, 0, 0, 0),
    Prediction("time of 9 strict rows over others", "passes",
        {"table": "strict"}, "strict cost", 0.98, 1.0, 1.02),
    Prediction("kernels of a pass", "kernels",
        {"table": "a whole pass, cuda_graphs", "kernel": "all"}, "calls", 195, 199, 200),
]  # fmt: skip


def predictions() -> Iterator[Prediction]:
    """All of them."""
    for context, every in zip(CONTEXTS, PASSES, strict=True):
        for rows, reach in zip(ROWS, every, strict=True):
            line = LARGE | {"context": context, "rows": rows, "plan": "whole"}
            bar = 5.60 if (context, rows) == (2048, 1) else None
            what = f"ms, {rows} row{'s' * (rows > 1)} after {context:,} tokens"
            yield Prediction(what, "passes", line, "ms", *reach, bar)
    yield from OTHERS


def rows_of(found: Mapping[str, Sequence[Mapping[str, Any]]], step: str = "") -> list[list[str]]:
    """Lines of a table, its head first; `found`: lines by step; `step`: of this one alone."""
    lines = [["figure", "predicted", "from, to", "bar", "measured"]]
    for one in predictions():
        if step and one.step != step:
            continue
        value, short = one.measured(found.get(one.step, ())), "{:.4g}".format
        missed = "met" if one.value <= (one.bar or 0) else "missed"
        reach = "" if one.bar is None else f"{short(one.bar)}, {missed}"
        ends = f"{short(one.low)}, {short(one.high)}"
        measured = "" if value is None else short(value)
        lines.append([one.what, short(one.value), ends, reach, measured])
    return lines if len(lines) > 1 else []


def markdown(lines: Sequence[Sequence[str]]) -> str:
    made = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in made)


def filled(text: str) -> str:
    """The text of a page with today's table between its marks."""
    return BLOCK.sub(lambda marks: f"{marks[1]}{markdown(rows_of({}))}{marks[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
