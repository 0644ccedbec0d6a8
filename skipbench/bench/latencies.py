"""Sub-layer latencies against context length and rows: the table of `profile`, and the model that methods weigh sub-layers by."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Group, RenderableType
from rich.table import Table

from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.profile.latency import (
    LatencyModel,
    fit_latency,
    read_bandwidth,
    roofline_s_per_token,
    sublayer_latency,
)
from skipbench.runs.provenance import config_hash, cpu_name, run_name
from skipbench.runs.reading import read_json
from skipbench.runs.store import write_atomic

CONTEXTS = 5  # lengths at which a latency model is measured


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


class _Kept(TypedDict):
    """The file of a latency model, as far as it is read."""

    model: LatencyModel


def stored_latency(lm: LM, model: dict[str, Any], engine: dict[str, Any], device: str, results: Path) -> LatencyModel:
    """The latency model of this machine, model, dtype and engine: read from the results folder, else measured and kept there.

    Args:
        model, engine: of the configuration.
        device: name of the device the model runs on.
    """
    machine = cpu_name() if device == "cpu" else device
    key = {k: model[k] for k in ("path", "revision", "dtype")} | {k: engine[k] for k in ("name", "threads")}
    name = run_name([model["name"], engine["name"]], config_hash(key | {"machine": machine}))
    path = results / "latency" / f"{name}.json"
    found = read_json(path, _Kept)
    if found is not None:
        return LatencyModel(**found["model"])
    longest = lm.cache.capacity - 1
    contexts = sorted({max(1, longest * i // CONTEXTS) for i in range(CONTEXTS + 1)})
    fitted = fit_latency(lm, contexts)
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {"model": dataclasses.asdict(fitted), "contexts": contexts, "machine": machine, "settings": key}
    write_atomic(path, json.dumps(stored, indent=2) + "\n")
    return fitted
