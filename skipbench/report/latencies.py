"""Table of a profile: seconds of each part, the fit, the roofline."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.metrics.prices import PARTS, Parts, Prices


def title(record: Prices, model: Model, engine: Engine, device: str) -> str:
    """The model, engine and device of a profile."""
    threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''}"
    name = f"{model.name}: {record.layers} layers"
    return f"{name}, engine {engine.name}, {model.dtype}, {device}, {threads}"


def latency_table(record: Prices, title: str) -> RenderableType:
    """Microseconds of one attention, one MLP, the head and a whole pass, for every point."""
    parts = ("attention us", "MLP us", "head us", "pass us")
    table = Table("context", "rows", *parts, "/ 1 row", "roofline", title=title)
    for column in table.columns:
        column.justify = "right"
    for context, group in groupby(record.points, lambda point: point.context):
        points = list(group)
        one = next(p.whole_s for p in points if p.rows == 1)
        for p in points:
            seconds = (p.attention_s, p.mlp_s, p.head_s, p.whole_s)
            floor = record.floor_s(context, p.rows)["whole"]
            ratio, reached = f"{p.whole_s / one:.2f}", f"{floor / p.whole_s:.0%}"
            table.add_row(
                f"{context}", f"{p.rows}", *(f"{1e6 * s:.1f}" for s in seconds), ratio, reached
            )
        table.add_section()
    return Group(table, *notes(record))


def notes(record: Prices) -> list[str]:
    """The lines below the table: the fit and the roofline."""
    model, rates, sizes = record.model, record.roofline, record.bytes
    assert rates is not None and model is not None
    layers, point = model.layers, [p for p in record.points if p.rows == 1][-1]
    counts = dict(zip(PARTS, (layers, layers, 1), strict=True))
    parts = sum(count * getattr(point, f"{part}_s") for part, count in counts.items())
    weights = sum(count * sizes.get(part, 0) for part, count in counts.items())
    return [
        _line("model, one row", model),
        *(_line(f"in {name}", variant) for name, variant in model.variants.items()),
        f"sum of the parts / whole pass at context {point.context}: {parts / point.whole_s:.2f}",
        f"roofline ({rates.name}, {rates.source}): {rates.bandwidth / 1e9:.1f} GB/s, "
        f"{rates.flops / 1e9:.0f} GFLOP/s; a token reads {weights / 1e6:.1f} MB of weights and "
        f"{layers * sizes.get('row', 0) / 1e3:.1f} kB for each one before it",
    ]


def _line(name: str, model: Parts) -> str:
    return (
        f"{name}: attention {1e6 * model.attention_s:.2f} us + "
        f"{1e9 * model.attention_s_per_token:.2f} ns a token of context; MLP "
        f"{1e6 * model.mlp_s:.2f} us; head {1e6 * model.head_s:.2f} us"
    )
