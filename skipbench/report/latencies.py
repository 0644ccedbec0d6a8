"""The table of a profile: what a sub-layer costs, how far the fitted line is off, and how near the
hardware's limit a pass is.
"""

from rich.console import Group, RenderableType
from rich.table import Table

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.metrics.latency_record import LatencyRecord


def title(record: LatencyRecord, model: Model, engine: Engine, device: str) -> str:
    """The model that was profiled, and the device."""
    threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''}"
    layers = f"{record.model.layers} layers"
    return f"{model.name}: {layers}, engine {engine.name}, {model.dtype}, {device}, {threads}"


def latency_table(record: LatencyRecord, title: str) -> RenderableType:
    """Microseconds of one attention, one MLP, the head and a whole pass, for every point of the
    record of a profile.
    """
    micros = ("attention us", "MLP us", "head us", "pass us")
    table = Table("context", "rows", *micros, "/ 1 row", "roofline", title=title)
    for column in table.columns:
        column.justify = "right"
    single = {point.context: point.whole_s for point in record.points if point.rows == 1}
    last = None
    for point, floor in zip(record.points, record.floor, strict=True):
        if last not in (None, point.context):
            table.add_section()
        last = point.context
        seconds = (point.attention_s, point.mlp_s, point.head_s, point.whole_s)
        micro = [f"{1e6 * s:.1f}" for s in seconds]
        shares = f"{point.whole_s / single[last]:.2f}", f"{floor['whole'] / point.whole_s:.0%}"
        table.add_row(str(last), str(point.rows), *micro, *shares)
    return Group(table, *notes(record))


def notes(record: LatencyRecord) -> list[str]:
    """Lines below the table: the fitted model and its residuals, the roofline, and the time
    beside arithmetic.
    """
    model, rates, beside, sizes = record.model, record.roofline, record.overhead, record.bytes
    layers, point = model.layers, [p for p in record.points if p.rows == 1][-1]
    worst = {
        "whole pass" if part == "whole" else part: f"{max(map(abs, values)):.1%}"
        for part, values in record.residuals.items()
    }
    extra = layers * (beside["attention_s"] + beside["mlp_s"]) + beside["head_s"]
    parts = layers * (point.attention_s + point.mlp_s) + point.head_s
    weights = layers * (sizes["attention"] + sizes["mlp"]) + sizes["head"]
    lines = [
        f"model, one row: attention {1e6 * model.attention_s:.2f} us + "
        f"{1e9 * model.attention_s_per_token:.2f} ns a token of context; MLP "
        f"{1e6 * model.mlp_s:.2f} us; head {1e6 * model.head_s:.2f} us",
        "largest residual (measured / fitted - 1): "
        + ", ".join(f"{part} {value}" for part, value in worst.items()),
        f"sum of the parts / whole pass at context {point.context}: {parts / point.whole_s:.2f}",
        "beside arithmetic (the same calls on a model 64 wide): attention "
        f"{1e6 * beside['attention_s']:.1f} us, MLP {1e6 * beside['mlp_s']:.1f} us, head "
        f"{1e6 * beside['head_s']:.1f} us; {extra / point.whole_s:.0%} of a pass of one row",
    ]
    if rates:
        text = f"roofline ({rates.name}, {rates.source}): {rates.bandwidth / 1e9:.1f} GB/s, "
        text += f"{rates.flops / 1e9:.0f} GFLOP/s; a token reads {weights / 1e6:.1f} MB of weights "
        lines.insert(3, f"{text}and {layers * sizes['row'] / 1e3:.1f} kB for each one before it")
    return lines
