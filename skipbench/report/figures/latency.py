"""Figure of a profile: sub-layers against context length with the fitted lines, and what rows
cost against one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skipbench.report.figures.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {"attention": (BLUE, "o"), "mlp": (ORANGE, "s")}
# lines fill the panels
ABOVE: dict[str, Any] = {"fontsize": 7, "loc": "lower left", "bbox_to_anchor": (0, 1)}
COLORS = (BLUE, ORANGE, GREEN, RED, PINK, SKY)


def latency(record: Mapping[str, Any]) -> "Figure":
    """Two panels from the record of a profile; what memory and arithmetic allow is dashed in
    both.
    """
    figure, axes = new_figure(1, 2, (8.4, 4.2))
    _against_context(axes[0, 0], record)
    _against_rows(axes[0, 1], record)
    return figure


def _against_context(axis: Any, record: Mapping[str, Any]) -> None:
    model = record["model"]
    single = [
        (p, f) for p, f in zip(record["points"], record["floor"], strict=True) if p["rows"] == 1
    ]
    contexts = [p["context"] for p, _ in single]
    slopes = {"attention": model["attention_s_per_token"], "mlp": 0.0}
    for part, (color, marker) in PARTS.items():
        name = "MLP" if part == "mlp" else part
        fitted = [1e6 * (model[f"{part}_s"] + slopes[part] * n) for n in contexts]
        axis.plot(
            contexts,
            [1e6 * p[f"{part}_s"] for p, _ in single],
            marker,
            color=color,
            label=f"{name}, measured",
        )
        axis.plot(contexts, fitted, color=color, linewidth=1, label=f"{name}, fitted")
        least = [1e6 * f[part] for _, f in single]
        axis.plot(contexts, least, "--", color=color, linewidth=1, label=f"{name}, roofline")
    axis.set(xlabel="context length (tokens)", ylabel="one sub-layer, one row (us)", ylim=(0, None))
    axis.legend(**ABOVE, ncols=2)


def _against_rows(axis: Any, record: Mapping[str, Any]) -> None:
    contexts = sorted({p["context"] for p in record["points"]})
    for number, context in enumerate(contexts):
        here = [
            (p, f)
            for p, f in zip(record["points"], record["floor"], strict=True)
            if p["context"] == context
        ]
        one = next(p["whole_s"] for p, _ in here if p["rows"] == 1)
        rows, color = [p["rows"] for p, _ in here], COLORS[number % len(COLORS)]
        axis.plot(
            rows,
            [p["whole_s"] / one for p, _ in here],
            "o-",
            color=color,
            label=f"context {context}",
        )
        axis.plot(rows, [f["whole"] / one for _, f in here], "--", color=color, linewidth=1)
    axis.plot([], [], "--", color=GREY, linewidth=1, label="roofline")
    axis.set(xlabel="rows", ylabel="whole pass / that of one row", ylim=(0, None))
    axis.legend(**ABOVE, ncols=2)
