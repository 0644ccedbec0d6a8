"""The bars of a GPU of the A100 class or better, which `scripts/bench_gpu.py` measures and the page
of `scripts/gpu_report.py` explains. This file needs Python alone.
"""

from typing import NamedTuple

VERIFY = 1.04
NEAR = 0.95
HALF = 0.01  # of a full step, beside the bytes of a draft
IDENTITY = "graphs tokens equal fused's"


class Bar(NamedTuple):
    """At least or at most, how much, and why."""

    sign: str
    value: float | None
    """None where it follows from bytes, or from the acceptance that was measured."""
    why: str


BARS = {
    "vanilla / bandwidth roofline": Bar(
        ">=", 0.90, "no pass is faster than a copy; .10 for attention, and for products that are "
        "slower than a copy",
    ),
    "draft half skipped / full step": Bar(
        "<=", None, "its share of the bytes of a full step (the head, half of the sub-layers), "
        f"and {HALF} for launches",
    ),
    "verify 9 rows / 1 row": Bar(
        "<=", VERIFY, "weights are read once for all rows; .04 for attention and wider products"
    ),
    "measured / predicted speedup": Bar(
        ">=", NEAR, "predicted from passes and acceptance; .05 for the host's part of a round"
    ),
    "alpha of the planted set, K=8": Bar(
        ">=", 0.99, "no token needs what the set leaves out, and margins are wider than rounding"
    ),
    "speedup of the planted set, K=8": Bar(
        ">=", None, "what this acceptance gives with passes at their bars, less .05"
    ),
    "cost of a new skip set, us": Bar(
        "<=", 50.0, "one hundredth of a pass of 8B: a search may change the set at every step"
    ),
    "device allocations in a long decode": Bar(
        "<=", 0.0, "memory that grows with the text ends a long decode"
    ),
    IDENTITY: Bar(
        ">=", 1.0, "the same products, added in another order; in half precision up to the first "
        "tie that the model's own error explains",
    ),
}  # fmt: skip
