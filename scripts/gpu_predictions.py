"""What a GPU should show, computed from what an H100 did show, before anything is run there:

    python scripts/gpu_predictions.py        prints the table of docs/gpu.md

Everything is milliseconds in bfloat16 unless it says otherwise. `MEASURED` holds the seconds it all
follows from. This file needs Python alone.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
BLOCK = re.compile(r"(<!-- predictions -->\n).*?(<!-- /predictions -->\n)", re.DOTALL)
FOLDER = "results/gpu/h100-80gb/"
MORE, ENGINE, PRODUCTS, KERNELS = (
    f"{FOLDER}{name}"
    for name in (
        "prototypes/more-sizes.jsonl", "prototypes/engine.jsonl", "prototypes/products.jsonl",
        "kernels/README.md",
    )
)  # fmt: skip
MEASURED: dict[str, tuple[tuple[float, ...], str, str]] = {
    # what: values, file, text of the line that holds them
    "parts, 256": ((5.7083, 5.919, 6.0004), MORE, "8b: linear norm abs pdl"),
    "parts, 2048": ((5.8431, 6.1426, 6.3103), MORE, "8b: linear norm abs pdl"),
    "parts, 8000": ((6.1291, 6.9699, 7.4174), MORE, "8b: linear norm abs pdl"),
    "five, 256": ((5.676, 5.799, 5.857), ENGINE, '"linear norm grid", "pdl": true, "ahead": 8'),
    "five, 2048": ((5.849, 5.997, 6.208), ENGINE, '"linear norm grid", "pdl": true, "ahead": 8'),
    "half, 256": ((3.033,), ENGINE, '"linear norm grid", "pdl": true, "ahead": 8'),
    "half, 2048": ((3.11,), ENGINE, '"linear norm grid", "pdl": true, "ahead": 8'),
    "products of 1 row": ((5.298,), ENGINE, '"rows": 1, "pdl": false, "ahead": 0, "ms": 5.298'),
    "products of 9 rows": ((5.446,), ENGINE, '"rows": 9, "pdl": false, "ahead": 0, "ms": 5.446'),
    "products of 16 rows": ((5.451,), ENGINE, '"rows": 16, "pdl": false, "ahead": 0, "ms": 5.451'),
    "head, us": ((347.9,), PRODUCTS, '"shape": "head", "rows": 9, "bits": 16'),
    "silu x up of 32 layers, us": ((51.55,), KERNELS, "silu_times"),
    "small parts": ((0.7314, 0.7713), MORE, "smollm2 shape: linear norm abs pdl"),
    "small kernels, us": ((40.3, 33.4), MORE, '"linear norm abs", "pdl": true'),
    "small norms of 60, us": ((89.3,), MORE, '"linear norm", "pdl": false'),
    "small kernels of 277, us": ((743.4,), MORE, '"linear norm", "pdl": false'),
    "small pass": ((0.8873,), MORE, '"smollm2 shape: linear norm",'),
    "8 bits, one row alone": ((2.874,), PRODUCTS, '"triton pdl", "bits": 8, "rows": 1'),
    "head in 8 bits, us": ((180.4,), PRODUCTS, '"shape": "head", "rows": 1, "bits": 8'),
    "4 bits without head": ((2.17,), ENGINE, '"tinygemm int4 without head", "rows": 1'),
}  # fmt: skip
INT8_US = 10.6, 13.7, 45.8, 26.7
"""Of a layer's products of one row in 8 bits: output, qkv, gate with up, and down, by the tiles of
`skipbench/contrib/lowbit/tiles.py`, whose table has them; of 9 rows the first two.
"""
ADD_US = 1.46  # torch's addition of a state, of the kernels of `fused` in the same report
COPY = 3032.0
"""GB/s of a copy, of the bars in the same folder."""
LAYERS, GROUP, KV_HEADS, PART, TILE = 32, 4, 8, 128, 16
PROGRAMS = 2 * 132  # of attention, side by side
ROWS, CONTEXTS = (1, 5, 9, 16), (256, 2048, 8000, 16_000)
SMALL_CONTEXT = 200


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
    how: str
    bar: float | None = None
    """At most so much."""

    def measured(self, found: Sequence[Mapping[str, Any]]) -> float | None:
        """The figure among the lines of the step; `None` before it ran."""
        wanted = self.line.items()
        lines = (line for line in found if all(line.get(k) == v for k, v in wanted))
        return next((line[self.key] for line in lines if self.key in line), None)


Range = tuple[float, float, float]  # low, likely, high


def of(name: str, index: int = 0) -> float:
    """A measured number."""
    return MEASURED[name][0][index]


def floor_ms(context: int) -> float:
    """Weights of Llama-3-8B, and keys and values, at the rate of a copy."""
    weights = LAYERS * (4096 * (6144 + 4096) + 3 * 4096 * 14336) + 128_256 * 4096
    return 2 * (weights + LAYERS * 2 * KV_HEADS * 128 * context) / COPY / 1e6


def prototype(context: int, rows: int) -> float:
    """The engine with prototype kernels and attention over parts; 16,000 tokens by the slope from
    2,048 to 8,000, 5 rows as far between 1 and 9 as they were with other parts.
    """
    if rows == 5:
        few, five, nine = MEASURED["five, 256" if context == 256 else "five, 2048"][0]
        share = (five - few) / (nine - few)
        return (1 - share) * prototype(context, 1) + share * prototype(context, 9)
    at = (1, 9, 16).index(rows)
    if context <= 8000:
        return of(f"parts, {context}", at)
    slope = (of("parts, 8000", at) - of("parts, 2048", at)) / (8000 - 2048)
    return of("parts, 8000", at) + slope * (context - 8000)


def products(rows: int) -> float:
    """All products of a pass; 5 rows take what 9 do: a block has 16."""
    return of(f"products of {9 if rows == 5 else rows} row{'s' * (rows > 1)}")


def folded() -> tuple[float, float]:
    """Kernels that went into products: silu x up and rotation; 65 norms, at the microseconds that
    they take at SmolLM2's width.
    """
    rotation = LAYERS * of("small kernels, us", 0) / 30
    return (of("silu x up of 32 layers, us") + rotation) / 1e3, 65 * of(
        "small norms of 60, us"
    ) / 60 / 1e3


def a_pass(context: int, rows: int) -> Range:
    """A whole pass. Likely: silu, rotation and half of the norms' time is gained; the other half
    was hidden by dependent launch. Most: nothing is, and the parts that are read row by row come
    on top where programs fill the device without them. Least: all is gained, and several rows pay
    for their products alone.
    """
    whole, (always, norms) = prototype(context, rows), folded()
    least = prototype(context, 1) - always - norms + products(rows) - products(1)
    shared = -(-context // PART) * -(-rows * GROUP // TILE) * KV_HEADS
    own = ((PART + rows - 2) // PART + 1) * rows * KV_HEADS
    attention = whole - products(rows) - always - norms
    more = attention * own / shared if rows > 1 and shared > PROGRAMS else 0.0
    return least, whole - always - norms / 2, whole + more


def half(context: int) -> Range:
    """A step without half of the sub-layers, over a pass. What does not halve, the head and the
    ends of a pass, is what did not in the prototypes; at least the head, at most .04 more.
    """
    rest = 2 * of(f"half, {context}") - of(f"five, {context}")
    least, likely, most = a_pass(context, 1)
    low = 0.5 + of("head, us") / 1e3 / (2 * most)
    return low, 0.5 + rest / (2 * likely), 0.5 + (rest + 0.04) / (2 * least)


def low_bits() -> tuple[Range, Range]:
    """Steps in 8 and in 4 bits at 2,048 tokens, over a pass; the head in full. Their norms, silu
    and rotation are kernels of their own, and 4 bits need an addition per sub-layer.
    """
    whole, head = a_pass(2048, 1)[1], of("head, us") / 1e3
    rest = prototype(2048, 1) - products(1) + head
    int8 = LAYERS * sum(INT8_US) / 1e3 + rest
    best = of("8 bits, one row alone") - of("head in 8 bits, us") / 1e3 + rest
    int4 = of("4 bits without head") + rest
    added = 2 * LAYERS * ADD_US / 1e3
    return (
        (best / whole, int8 / whole, 1.1 * int8 / whole),
        (int4 / whole, (int4 + added) / whole, 1.1 * (int4 + added) / whole),
    )


def small(rows: int) -> Range:
    """A pass of SmolLM2's sizes after 200 tokens: kernels that are folded take their time along,
    and the gap behind each; of norms half of both.
    """
    whole, norms = of("small parts", rows == 9), of("small norms of 60, us") / 1e3
    gap = (of("small pass") - of("small kernels of 277, us") / 1e3) / 277
    kernels = sum(MEASURED["small kernels, us"][0]) / 1e3
    gone = kernels + 60 * gap
    return whole - gone - norms - 60 * gap, whole - gone - (norms + 60 * gap) / 2, whole - kernels


def predictions() -> Iterator[Prediction]:
    """All of them, in the order of the steps."""
    one = a_pass(2048, 1)
    for context in CONTEXTS:
        for rows in ROWS:
            ends = a_pass(context, rows)
            share = f"{floor_ms(context) / ends[1]:.3f} of a copy's rate; " if rows == 1 else ""
            yield Prediction(
                f"ms, {rows} row{'s' * (rows > 1)} after {context:,} tokens", "passes",
                {"model": "llama3.1-8b", "context": context, "rows": rows, "plan": "whole"}, "ms",
                *ends, f"{share}prototypes {prototype(context, rows):.3f}, less kernels folded",
                5.60 if (context, rows) == (2048, 1) else None,
            )  # fmt: skip
    nine = a_pass(2048, 9)
    yield Prediction(
        "9 rows over 1 after 2,048 tokens", "bars",
        {"figure": "verify 9 rows / 1 row", "shape": "llama3-8b", "context": 2048}, "value",
        nine[0] / one[0], nine[1] / one[1], nine[2] / one[1], "the two passes above", 1.04,
    )  # fmt: skip
    for context in (256, 2048):
        yield Prediction(
            f"half of the sub-layers over a pass, {context:,} tokens", "passes",
            {"model": "llama3.1-8b", "context": context, "plan": "half"}, "share",
            *half(context),
            "half of a pass, and half of what did not halve in the prototypes",
        )  # fmt: skip
    for plan, ends, bar in zip(("int8", "int4"), low_bits(), (0.60, 0.48), strict=True):
        yield Prediction(
            f"a step in {plan[-1]} bits over a pass, 2,048 tokens", "draft plans",
            {"context": 2048, "plan": plan}, "share of a pass", *ends,
            "its products, the head in full, and all else as in the prototypes", bar,
        )  # fmt: skip
    for rows in (1, 9):
        yield Prediction(
            f"ms, SmolLM2's sizes, {rows} row{'s' * (rows > 1)} after {SMALL_CONTEXT} tokens",
            "passes", {"model": "smollm2-135m", "rows": rows, "plan": "whole"}, "ms", *small(rows),
            f"prototypes {of('small parts', rows == 9):.3f}, less kernels folded and their gaps",
            0.60 if rows == 1 else None,
        )  # fmt: skip
    yield Prediction(
        "rows with other bits than alone, of 10,000", "strict rows",
        {"engine": "cuda_graphs", "strict": True}, "differing", 0, 0, 0,
        "tiles, parts and orders of sums know neither rows nor lengths", 0,
    )  # fmt: skip
    yield Prediction(
        "time of 9 strict rows over others", "passes", {"table": "strict"}, "strict cost",
        0.98, 1.0, 1.02, "the same kernels up to 16 rows",
    )  # fmt: skip
    yield Prediction(
        "kernels of a pass", "kernels", {"table": "a whole pass, cuda_graphs", "kernel": "all"},
        "calls", 6 * LAYERS + 3, 6 * LAYERS + 7, 6 * LAYERS + 8,
        "6 per layer; head, places, embedding, 4 copies",
    )  # fmt: skip


def rows_of(found: Mapping[str, Sequence[Mapping[str, Any]]], step: str = "") -> list[list[str]]:
    """Lines of a table, its head first; `found`: lines by step; `step`: of this one alone."""
    lines = [["figure", "predicted", "from, to", "bar", "measured", "how"]]
    for one in predictions():
        if step and one.step != step:
            continue
        value, short = one.measured(found.get(one.step, ())), "{:.4g}".format
        reach = (
            ""
            if one.bar is None
            else f"{short(one.bar)}, "
            + ("met" if one.value <= one.bar else f"missed by {one.value / one.bar - 1:.0%}")
        )
        lines.append([
            one.what, short(one.value), f"{short(one.low)}, {short(one.high)}", reach,
            "" if value is None else short(value), one.how,
        ])  # fmt: skip
    return lines if len(lines) > 1 else []


def markdown(lines: Sequence[Sequence[str]]) -> str:
    made = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in made)


def filled(text: str) -> str:
    """The text of a page with today's table between its marks."""
    return BLOCK.sub(lambda marks: f"{marks[1]}{markdown(rows_of({}))}{marks[2]}", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="into docs/gpu.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        print(markdown(rows_of({})), end="")
