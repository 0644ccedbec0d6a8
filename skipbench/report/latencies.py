"""Table of a profile: seconds of each part, residuals of the fit, the roofline."""

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
    pairs = list(zip(record.points, record.floor, strict=True))
    for context, group in groupby(pairs, lambda pair: pair[0].context):
        points = list(group)
        one = next(p.whole_s for p, _ in points if p.rows == 1)
        for p, floor in points:
            seconds = (p.attention_s, p.mlp_s, p.head_s, p.whole_s)
            ratio, reached = f"{p.whole_s / one:.2f}", f"{floor['whole'] / p.whole_s:.0%}"
            table.add_row(
                f"{context}", f"{p.rows}", *(f"{1e6 * s:.1f}" for s in seconds), ratio, reached
            )
        table.add_section()
    return Group(table, *notes(record))


def notes(record: Prices) -> list[str]:
    """The lines below the table: fit, residuals, roofline, and the time beside arithmetic."""
    model, rates, beside, sizes = record.model, record.roofline, record.overhead, record.bytes
    assert rates is not None and model is not None
    layers, point = model.layers, [p for p in record.points if p.rows == 1][-1]
    names = {"whole": "whole pass"}
    worst = {names.get(k, k): max(map(abs, values)) for k, values in record.residuals.items()}
    counts = dict(zip(PARTS, (layers, layers, 1), strict=True))
    extra = sum(count * beside[f"{part}_s"] for part, count in counts.items())
    parts = sum(count * getattr(point, f"{part}_s") for part, count in counts.items())
    weights = sum(count * sizes.get(part, 0) for part, count in counts.items())
    return [
        _line("model, one row", model),
        *(_line(f"in {name}", variant) for name, variant in model.variants.items()),
        "largest residual (measured / fitted - 1): "
        + ", ".join(f"{part} {value:.1%}" for part, value in worst.items()),
        f"sum of the parts / whole pass at context {point.context}: {parts / point.whole_s:.2f}",
        f"roofline ({rates.name}, {rates.source}): {rates.bandwidth / 1e9:.1f} GB/s, "
        f"{rates.flops / 1e9:.0f} GFLOP/s; a token reads {weights / 1e6:.1f} MB of weights and "
        f"{layers * sizes.get('row', 0) / 1e3:.1f} kB for each one before it",
        "beside arithmetic (the same calls on a model 64 wide): attention "
        f"{1e6 * beside['attention_s']:.1f} us, MLP {1e6 * beside['mlp_s']:.1f} us, head "
        f"{1e6 * beside['head_s']:.1f} us; {extra / point.whole_s:.0%} of a pass of one row",
    ]


def _line(name: str, model: Parts) -> str:
    return (
        f"{name}: attention {1e6 * model.attention_s:.2f} us + "
        f"{1e9 * model.attention_s_per_token:.2f} ns a token of context; MLP "
        f"{1e6 * model.mlp_s:.2f} us; head {1e6 * model.head_s:.2f} us"
    )
