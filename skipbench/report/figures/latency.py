"""The figure of a profile: sub-layers against context length with the fitted lines, and passes of
several rows against one of one row.
"""

from typing import TYPE_CHECKING, Any

from skipbench.metrics.loop_costs import LatencyRecord
from skipbench.report.figures.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {"attention": (BLUE, "o"), "mlp": (ORANGE, "s")}
# lines fill the panels
ABOVE: dict[str, Any] = {"fontsize": 7, "loc": "lower left", "bbox_to_anchor": (0, 1)}
COLORS = (BLUE, ORANGE, GREEN, RED, PINK, SKY)


def latency(record: LatencyRecord) -> "Figure":
    """Two panels from the record of a profile; what memory and arithmetic allow is dashed in
    both.
    """
    figure, axes = new_figure(1, 2, (8.4, 4.2))
    _against_context(axes[0, 0], record)
    _against_rows(axes[0, 1], record)
    return figure


def _against_context(axis: Any, record: LatencyRecord) -> None:
    single = [(p, f) for p, f in zip(record.points, record.floor, strict=True) if p.rows == 1]
    contexts = [p.context for p, _ in single]
    for part, (color, marker) in PARTS.items():
        name = "MLP" if part == "mlp" else part
        fitted = [1e6 * getattr(record.model.at(n), f"{part}_s") for n in contexts]
        measured = [1e6 * getattr(p, f"{part}_s") for p, _ in single]
        axis.plot(contexts, measured, marker, color=color, label=f"{name}, measured")
        axis.plot(contexts, fitted, color=color, linewidth=1, label=f"{name}, fitted")
        least = [1e6 * f[part] for _, f in single]
        axis.plot(contexts, least, "--", color=color, linewidth=1, label=f"{name}, roofline")
    axis.set(xlabel="context length (tokens)", ylabel="one sub-layer, one row (us)", ylim=(0, None))
    axis.legend(**ABOVE, ncols=2)


def _against_rows(axis: Any, record: LatencyRecord) -> None:
    points = list(zip(record.points, record.floor, strict=True))
    for number, context in enumerate(sorted({p.context for p in record.points})):
        here = [(p, f) for p, f in points if p.context == context]
        one = next(p.whole_s for p, _ in here if p.rows == 1)
        rows, color = [p.rows for p, _ in here], COLORS[number % len(COLORS)]
        ratios = [p.whole_s / one for p, _ in here]
        axis.plot(rows, ratios, "o-", color=color, label=f"context {context}")
        axis.plot(rows, [f["whole"] / one for _, f in here], "--", color=color, linewidth=1)
    axis.plot([], [], "--", color=GREY, linewidth=1, label="roofline")
    axis.set(xlabel="rows", ylabel="whole pass / that of one row", ylim=(0, None))
    axis.legend(**ABOVE, ncols=2)
