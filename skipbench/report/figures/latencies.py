"""Figure of a profile: sub-layers by context, whole passes by rows, and the roofline."""

import msgspec
import pandas as pd
from matplotlib.figure import Figure

from skipbench.metrics.prices import Prices
from skipbench.report.figures.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, new_figure


def latency_figure(record: Prices) -> Figure:
    """Two panels from the record of a profile; the bound of memory and arithmetic is dashed."""
    # a row per point: its seconds (`attention_s`), and the roofline's (`attention`)
    floor = pd.DataFrame([record.floor_s(p.context, p.rows) for p in record.points])
    points = pd.DataFrame(msgspec.to_builtins(record.points)).join(floor)
    figure, axes = new_figure(1, 2, (8.4, 4.2))
    (left, right), model, line = axes[0], msgspec.to_builtins(record.model), {"linewidth": 1}
    single = points[points.rows == 1]
    parts, x = (("attention", BLUE, "o"), ("mlp", ORANGE, "s")), single.context
    for part, color, marker in parts:
        fitted = model[f"{part}_s"] + model.get(f"{part}_s_per_token", 0) * x
        for seconds, kind, look in (
            (single[f"{part}_s"], "measured", {"marker": marker, "linestyle": "none"}),
            (fitted, "fitted", line),
            (single[part], "roofline", {"linestyle": "--", **line}),
        ):
            name = "MLP" if part == "mlp" else part
            left.plot(x, 1e6 * seconds, color=color, label=f"{name}, {kind}", **look)
    text = "one sub-layer, one row (us)"
    left.set(xlabel="context length (tokens)", ylabel=text, ylim=(0, None))
    colors = (BLUE, ORANGE, GREEN, RED, PINK, SKY)
    for number, (context, here) in enumerate(points.groupby("context")):
        one, color = here.loc[here.rows == 1, "whole_s"].iloc[0], colors[number % len(colors)]
        right.plot(here.rows, here.whole_s / one, "o-", color=color, label=f"context {context}")
        right.plot(here.rows, here.whole / one, "--", color=color, **line)
    right.plot([], [], "--", color=GREY, label="roofline", **line)
    right.set(xlabel="rows", ylabel="whole pass / that of one row", ylim=(0, None))
    for axis in (left, right):  # lines fill the panels: the legends are above
        axis.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure
