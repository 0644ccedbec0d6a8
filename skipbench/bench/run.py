"""From the settings of a cell to its finished run folder."""

import contextlib
import math
import resource
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from msgspec import to_builtins
from msgspec.structs import replace

from skipbench.bench.cell import Settings, run_cell
from skipbench.bench.latency_file import latency_path, stored_latency
from skipbench.bench.load import Loaded, LoadModel, load_model, prepare
from skipbench.bench.memory import longest
from skipbench.bench.prompts import eos_ids
from skipbench.config.catalog import known_hardware
from skipbench.config.run_config import RunConfig
from skipbench.console import log_to, note, progress, say, working
from skipbench.data.rows import Row, prompts_hash, rows_hash
from skipbench.errors import SkipbenchError
from skipbench.lm.fused.elementwise import is_native
from skipbench.lm.fused.few_rows import few_rows_kernel
from skipbench.lm.model import LM
from skipbench.metrics.costs import LatencyModel
from skipbench.metrics.interval import half_width
from skipbench.metrics.summary import speedups, summarise
from skipbench.profile.energy import energy_meter
from skipbench.profile.roofline import bandwidth, device_name, roofline_s_per_token
from skipbench.runs.fingerprint import fingerprints, refuse_other
from skipbench.runs.measures import Metrics, Profiled, UntilCi
from skipbench.runs.provenance import Provenance, engine_text, hashed
from skipbench.runs.reading import printable
from skipbench.runs.record import Sample
from skipbench.runs.signals import Interrupted
from skipbench.runs.store import RunStore
from skipbench.scoring.overlap import corpus_summary


def run(
    config: RunConfig,
    folder: Path,
    rows: list[Row],
    calibration: Sequence[Row] = (),
    loaded: Loaded | None = None,
    load: LoadModel = load_model,
) -> Metrics:
    """Runs what is missing of a cell, its skip set filled in, and returns its metrics. Raises
    SkipbenchError for anything that the user can put right; `status.json` then has the reason.

    Args:
        calibration: rows for `load_model`.
        loaded: the model and tokenizer, if these settings were loaded before; else `load` does.
    """
    model, dataset, make_method = config.model, config.dataset, config.method.factory()
    context = dataset.context or (model.sizes and model.sizes.context)
    tokens = longest(rows, dataset.max_new_tokens, context) if context else None
    with working(f"loading {model.name}"):
        lm, tokenizer = loaded or load(model, config.engine, calibration, tokens)
    for remark in lm.notes():
        say(remark, "dim")
    method = make_method(layers=lm.layers)
    prompts = prepare(lm, tokenizer, rows, dataset)
    devices = {*lm.devices, lm.input_device, lm.output_device}
    device, meter = device_name(lm.output_device), energy_meter(devices)
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
    how = config.decoding, config.seed, dataset.scorer, config.engine.warmup, config.until_ci, meter
    settings = Settings(dataset.max_new_tokens, eos_ids(lm), *how)
    try:
        store.status("running")
        ratios: list[float] = []
        with progress("samples", len(prompts), len(store.samples())) as advance:

            def done(sample: Sample) -> None:  # as the table has it at the end
                ratios.extend([] if sample.speedup is None else [sample.speedup])
                so_far = f"{statistics.geometric_mean(ratios):.2f}x" if ratios else ""
                advance(so_far and f"speedup so far {so_far}")

            samples = run_cell(lm, tokenizer, method, prompts, settings, store, done)
        if (notes := lm.notes()) != origin.notes:
            say(notes[-1], "dim")  # memory for graphs ran out while decoding
            store.amend(notes=notes)
        scores = corpus_summary(dataset.scorer, samples, store.completions())
        metrics = replace(_metrics(lm, samples, latency, devices), score=scores)
        if config.until_ci is not None:
            metrics = replace(metrics, until_ci=_stopped(samples, len(prompts), config.until_ci))
        store.write_metrics(metrics)
        error = _failure(samples)
        note(error or "done")
        store.status("failed" if error else "done", error)
        return metrics
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


def _failure(samples: Sequence[Sample]) -> str | None:
    failed = [s for s in samples if s.lossless == "failed"]
    if not failed:
        return None
    reason = failed[0].vanilla.error or failed[0].method.error
    return f"{len(failed)} samples failed, first {failed[0].id}: {reason}"


def _stopped(samples: Sequence[Sample], of: int, wanted: float) -> UntilCi:
    """The end of a run that may stop early."""
    reached, count = half_width(list(speedups(samples).values())), len(samples)
    width = reached if math.isfinite(reached) else None
    return UntilCi(wanted=wanted, half_width=width, samples=count, of=of, stopped=count < of)


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


def _metrics(
    lm: LM, samples: list[Sample], latency: LatencyModel, devices: set[torch.device]
) -> Metrics:
    context = round(statistics.mean(s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples))
    rate = bandwidth(lm.output_device, lm.weight_bytes(), known_hardware())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if lm.output_device.type == "cuda":
        peak = sum(map(torch.cuda.max_memory_allocated, devices))
    here, floor_s = latency.at(context), roofline_s_per_token(lm, context, rate)
    metrics = summarise(samples, lm.layers, here, floor_s, peak)
    return replace(metrics, profiled=Profiled(**here._asdict()))
