"""From the settings of a cell to its finished run folder."""

import contextlib
import math
import resource
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from msgspec import to_builtins
from msgspec.structs import replace

from skipbench.bench.cell import Bench
from skipbench.bench.latency_file import latency_path, stored_latency
from skipbench.bench.load import LoadModel, load_model, prepare
from skipbench.bench.memory import longest
from skipbench.bench.prompts import eos_ids
from skipbench.config.catalog import known_hardware
from skipbench.config.run_config import RunConfig
from skipbench.console import log_to, note, say, working
from skipbench.data.rows import Row, prompts_hash, rows_hash
from skipbench.errors import SkipbenchError
from skipbench.lm.fused.elementwise import is_native
from skipbench.lm.fused.few_rows import few_rows_kernel
from skipbench.lm.model import LM
from skipbench.metrics.costs import LatencyModel
from skipbench.metrics.interval import half_width
from skipbench.metrics.summary import summarise
from skipbench.profile.energy import energy_meter
from skipbench.profile.roofline import bandwidth, device_name, roofline_s_per_token
from skipbench.runs.fingerprint import fingerprints, refuse_other
from skipbench.runs.measures import Metrics, Profiled, UntilCi
from skipbench.runs.provenance import Provenance, engine_text, hashed
from skipbench.runs.reading import printable
from skipbench.runs.record import speedups
from skipbench.runs.state import Interrupted
from skipbench.runs.store import RunStore
from skipbench.scoring.overlap import CORPUS_SCORERS, corpus_summary


@contextlib.contextmanager
def opened(
    config: RunConfig, folder: Path, rows: list[Row], load: LoadModel = load_model
) -> Iterator[Bench]:
    """Loads what a cell needs, its skip set filled in, and opens its folder; the end of the `with`
    block writes the metrics of its samples. Raises SkipbenchError for anything that the user can
    put right; `status.json` then has the reason.
    """
    model, dataset, make_method = config.model, config.dataset, config.method.factory()
    calibration = config.calibration_rows()
    context = dataset.context or (model.sizes and model.sizes.context)
    tokens = longest(rows, dataset.max_new_tokens, context) if context else None
    with working(f"loading {model.name}"):
        lm, tokenizer = load(model, config.engine, calibration, tokens)
    for remark in lm.notes():
        say(remark, "dim")
    method = make_method(layers=lm.layers)
    prompts = prepare(lm, tokenizer, rows, dataset)
    meter = energy_meter({*lm.devices, lm.input_device, lm.output_device})
    device = device_name(lm.output_device)
    latency_file = latency_path(model, config.engine, device, folder.parent.parent)
    with working("measuring sub-layer latencies"):
        latency = stored_latency(lm, latency_file)
    decided_by = None
    if method.needs_latency and method.latency_model is None:
        method.latency_model, decided_by = latency, hashed(to_builtins(latency))
    # loading may have fetched weights, and measured latencies
    refuse_other(folder, model, config.method)
    measured = {"latency": latency_file.name, "latency_sha256": decided_by, "energy": meter.source}
    origin = replace(_provenance(lm, config, rows, calibration), **measured)
    store = RunStore(folder, config.record(), origin, config.mixed)
    log_to(folder / "run.log")
    try:
        store.status("running")
        bench = Bench(config, lm, tokenizer, method, prompts, eos_ids(lm), store, meter)
        yield bench
        if (notes := lm.notes()) != origin.notes:
            say(notes[-1], "dim")  # memory for graphs ran out while decoding
            store.amend(notes=notes)
        store.write_metrics(_metrics(bench, latency))
        failed = [s for s in bench.samples if s.lossless == "failed"]
        error = None
        if failed:
            reason = failed[0].vanilla.error or failed[0].method.error
            error = f"{len(failed)} samples failed, first {failed[0].id}: {reason}"
        note(error or "done")
        store.status("failed" if error else "done", error)
    except BaseException as stop:
        state, why = "failed", f"{type(stop).__name__}: {stop}"
        if isinstance(stop, KeyboardInterrupt | Interrupted):
            state, why = "interrupted", str(stop) or "interrupted; the same command goes on"
        note(f"{state}: {why}")
        with contextlib.suppress(SkipbenchError):  # the user must know the first error
            store.status(state, why)
        raise
    finally:
        store.close()


def _provenance(
    lm: LM, config: RunConfig, rows: list[Row], calibration: Sequence[Row]
) -> Provenance:
    """This process, the data, the device and the engine."""
    like = torch.empty(0, dtype=lm.dtype, device=lm.output_device)
    native = lm.engine.name == "fused" and is_native(like)
    return replace(
        Provenance.here(),
        rows_sha256=rows_hash(rows),
        prompts_sha256=prompts_hash(rows),
        calibration_sha256=rows_hash(list(calibration)) if calibration else None,
        **fingerprints(config.model, config.method),
        device=device_name(lm.output_device),
        threads=torch.get_num_threads(),
        cudnn_attention=lm.output_device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]  # torch's
        layers=lm.layers,
        engine=engine_text(lm.engine.name, lm.strict),
        kernels=lm.engine.kernels,
        native_kernels=(few_rows_kernel()[0] if native else None) or "torch",
        strict_cost=lm.strict_cost,
        notes=lm.notes(),
        label=None if config.label is None else printable(config.label),
        model_commit=getattr(lm.config, "_commit_hash", None),
    )


def _metrics(bench: Bench, latency: LatencyModel) -> Metrics:
    lm, samples, of = bench.lm, bench.samples, len(bench.prompts)
    context = round(statistics.mean(s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples))
    rate = bandwidth(lm.output_device, lm.weight_bytes(), known_hardware())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if lm.output_device.type == "cuda":
        devices = {*lm.devices, lm.input_device, lm.output_device}
        peak = sum(map(torch.cuda.max_memory_allocated, devices))
    here, floor_s = latency.at(context), roofline_s_per_token(lm, context, rate)
    metrics = summarise(samples, lm.layers, here, floor_s, peak)
    metrics = replace(metrics, profiled=Profiled(**here._asdict()))
    if (scorer := bench.config.dataset.scorer) in CORPUS_SCORERS:
        scores = corpus_summary(scorer, samples, bench.store.completions())
        metrics = replace(metrics, score=scores)
    if (wanted := bench.config.until_ci) is None:
        return metrics
    reached, count = half_width([*speedups(samples).values()]), len(samples)
    width = reached if math.isfinite(reached) else None
    stop = UntilCi(wanted=wanted, half_width=width, samples=count, of=of, stopped=count < of)
    return replace(metrics, until_ci=stop)
