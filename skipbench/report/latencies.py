"""Table and figure of a profile: seconds of each part, residuals of the fit, the roofline."""

import pandas as pd
from matplotlib.figure import Figure
from msgspec import to_builtins
from rich.console import Group, RenderableType
from rich.table import Table

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.metrics.costs import Latency
from skipbench.metrics.loop_costs import LatencyRecord
from skipbench.report.figures.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, new_figure


def title(record: LatencyRecord, model: Model, engine: Engine, device: str) -> str:
    """The model, engine and device of a profile."""
    threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''}"
    name = f"{model.name}: {record.model.layers} layers"
    return f"{name}, engine {engine.name}, {model.dtype}, {device}, {threads}"


def latency_table(record: LatencyRecord, title: str) -> RenderableType:
    """Microseconds of one attention, one MLP, the head and a whole pass, for every point."""
    parts = ("attention us", "MLP us", "head us", "pass us")
    table = Table("context", "rows", *parts, "/ 1 row", "roofline", title=title)
    for column in table.columns:
        column.justify = "right"
    for context, points in _points(record).groupby("context", sort=False):
        one = points.whole_s[points.rows == 1].iloc[0]
        for p in points.itertuples():
            seconds = (p.attention_s, p.mlp_s, p.head_s, p.whole_s)
            ratio, reached = f"{p.whole_s / one:.2f}", f"{p.whole / p.whole_s:.0%}"
            table.add_row(
                f"{context}", f"{p.rows}", *(f"{1e6 * s:.1f}" for s in seconds), ratio, reached
            )
        table.add_section()
    return Group(table, *notes(record))


def _points(record: LatencyRecord) -> pd.DataFrame:
    """A row per point: its seconds (`attention_s`), and the roofline's (`attention`)."""
    return pd.DataFrame(to_builtins(record.points)).join(pd.DataFrame(record.floor))


def notes(record: LatencyRecord) -> list[str]:
    """The lines below the table: fit, residuals, roofline, and the time beside arithmetic."""
    model, rates, beside, sizes = record.model, record.roofline, record.overhead, record.bytes
    assert rates is not None
    layers, point = model.layers, [p for p in record.points if p.rows == 1][-1]
    names = {"whole": "whole pass"}
    worst = {names.get(k, k): max(map(abs, values)) for k, values in record.residuals.items()}
    extra = Latency(**beside, layers=layers).pass_s()
    parts = Latency(point.attention_s, point.mlp_s, point.head_s, layers).pass_s()
    weights = layers * (sizes.attention + sizes.mlp) + sizes.head
    return [
        f"model, one row: attention {1e6 * model.attention_s:.2f} us + "
        f"{1e9 * model.attention_s_per_token:.2f} ns a token of context; MLP "
        f"{1e6 * model.mlp_s:.2f} us; head {1e6 * model.head_s:.2f} us",
        "largest residual (measured / fitted - 1): "
        + ", ".join(f"{part} {value:.1%}" for part, value in worst.items()),
        f"sum of the parts / whole pass at context {point.context}: {parts / point.whole_s:.2f}",
        f"roofline ({rates.name}, {rates.source}): {rates.bandwidth / 1e9:.1f} GB/s, "
        f"{rates.flops / 1e9:.0f} GFLOP/s; a token reads {weights / 1e6:.1f} MB of weights and "
        f"{layers * sizes.row / 1e3:.1f} kB for each one before it",
        "beside arithmetic (the same calls on a model 64 wide): attention "
        f"{1e6 * beside['attention_s']:.1f} us, MLP {1e6 * beside['mlp_s']:.1f} us, head "
        f"{1e6 * beside['head_s']:.1f} us; {extra / point.whole_s:.0%} of a pass of one row",
    ]


def latency_figure(record: LatencyRecord) -> Figure:
    """Two panels from the record of a profile; the bound of memory and arithmetic is dashed."""
    figure, axes = new_figure(1, 2, (8.4, 4.2))
    (left, right), model = axes[0], to_builtins(record.model)
    points, line = _points(record), {"linewidth": 1}
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
