"""`profile`: sub-layer latencies against context length and rows, and how near a full pass is to the roofline."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.profile.latency import read_bandwidth, roofline_s_per_token, sublayer_latency


def latency_table(lm: LM, name: str, contexts: Sequence[int], rows: Sequence[int], repeats: int) -> RenderableType:
    """Microseconds of one attention, one MLP, the head and a full pass, for every context length and number of rows.

    Raises:
        SkipbenchError: no context fits into the model, or a number is below 1.
    """
    fitting = sorted({c for c in contexts if c + max(rows, default=1) <= lm.max_positions})
    if not fitting or not rows or min(*contexts, *rows, repeats) < 1:
        raise SkipbenchError(
            f"profile: contexts={list(contexts)}, rows={list(rows)}, {repeats=}; wanted numbers of 1 or more, and a context "
            f"within the model's {lm.max_positions} positions"
        )
    title = f"{name}: {lm.layers} layers, engine {lm.engine.name}, {str(lm.dtype).removeprefix('torch.')}"
    table = Table("context", "rows", "attention us", "MLP us", "head us", "full pass us", "/ 1 row", title=title)
    for context in fitting:
        one_row = sublayer_latency(lm, context, 1, repeats)
        for t in rows:
            latency = one_row if t == 1 else sublayer_latency(lm, context, t, repeats)
            full = latency.target_s()
            micro = (f"{1e6 * s:.1f}" for s in (latency.attention_s, latency.mlp_s, latency.head_s, full))
            table.add_row(str(context), str(t), *micro, f"{full / one_row.target_s():.2f}")
    bandwidth = read_bandwidth(lm.output_device, lm.weight_bytes())
    floor = roofline_s_per_token(lm, fitting[-1], bandwidth)
    reached = floor / one_row.target_s()  # of the largest context, the last of the loop
    notes = [
        f"weights read a token: {lm.weight_bytes() / 1e6:.1f} MB; read bandwidth at that size: {bandwidth / 1e9:.1f} GB/s",
        f"roofline at context {fitting[-1]}: {1e6 * floor:.1f} us a token; reached by one row: {reached:.0%}",
    ]
    left_out = sorted(set(contexts) - set(fitting))
    if left_out:
        notes.append(f"left out, beyond the model's {lm.max_positions} positions: {', '.join(map(str, left_out))}")
    return Group(table, *notes)
