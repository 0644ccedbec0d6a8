"""Table of a profile: seconds of each part, and the roofline."""

from itertools import groupby

from rich.console import RenderableType
from rich.table import Table

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.metrics.prices import Prices


def title(record: Prices, model: Model, engine: Engine, device: str) -> str:
    """The model, engine and device of a profile."""
    threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''}"
    name = f"{model.name}: {record.layers} layers"
    return f"{name}, engine {engine.name}, {model.dtype}, {device}, {threads}"


def latency_table(record: Prices, title: str) -> RenderableType:
    """Microseconds of one attention, one MLP, the head and a whole pass, for every point."""
    rates = record.roofline
    assert rates is not None
    least = Prices.least(rates, record.bytes, record.layers)
    parts = ("attention us", "MLP us", "head us", "pass us")
    table = Table("context", "rows", *parts, "/ 1 row", "roofline", title=title)
    for column in table.columns:
        column.justify = "right"
    for context, group in groupby(record.points, lambda point: point.context):
        points = list(group)
        one = next(p.whole_s for p in points if p.rows == 1)
        for p in points:
            seconds = (p.attention_s, p.mlp_s, p.head_s, p.whole_s)
            floor = least.pass_s(p.rows, context)
            ratio, reached = f"{p.whole_s / one:.2f}", f"{floor / p.whole_s:.0%}"
            table.add_row(
                f"{context}", f"{p.rows}", *(f"{1e6 * s:.1f}" for s in seconds), ratio, reached
            )
        table.add_section()
    table.caption = (
        f"roofline ({rates.name}, {rates.source}): {rates.bandwidth / 1e9:.1f} GB/s, "
        f"{rates.flops / 1e9:.0f} GFLOP/s"
    )
    return table
