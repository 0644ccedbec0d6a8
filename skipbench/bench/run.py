"""From the settings of a cell to its finished run folder."""

import contextlib
import dataclasses
import math
import resource
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec import UNSET, UnsetType, to_builtins
from msgspec.structs import replace

from skipbench.bench.cell import Settings, run_cell
from skipbench.bench.latency_file import latency_path, stored_latency
from skipbench.bench.load import Loaded, LoadModel, load_model, prepare
from skipbench.bench.memory import longest
from skipbench.bench.prompts import eos_ids
from skipbench.config.catalog import known_hardware
from skipbench.config.run_config import RunConfig
from skipbench.console import Advance, log_to, note, progress, say, working
from skipbench.data.rows import Row, prompts_hash, rows_hash
from skipbench.errors import SkipbenchError
from skipbench.lm.fused.elementwise import is_native
from skipbench.lm.fused.few_rows import few_rows_kernel
from skipbench.lm.model import LM
from skipbench.metrics.costs import LatencyModel
from skipbench.metrics.interval import half_width
from skipbench.metrics.summary import speedups, summarise
from skipbench.profile.energy import EnergyMeter, energy_meter
from skipbench.profile.roofline import bandwidth, device_name, roofline_s_per_token
from skipbench.runs.fingerprint import fingerprints, refuse_other
from skipbench.runs.measures import Metrics, Profiled, UntilCi
from skipbench.runs.method_source import hashed
from skipbench.runs.provenance import Provenance, engine_text
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
    """Runs what is missing of a cell and returns its metrics.

    Args:
        config: the cell, with its skip set filled in.
        calibration: rows for `load_model`.
        loaded: what `load_model` gave for these settings before, so that it is not loaded again.
        load: what loads it where it is not.

    Raises:
        SkipbenchError: anything that the user can put right; `status.json` then says failed, with
            the reason.
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
    device = device_name(lm.output_device)
    latency_file = latency_path(model, config.engine, device, folder.parent.parent)
    with working("measuring sub-layer latencies"):
        latency = stored_latency(lm, latency_file)
    decided_by = None
    if method.needs_latency and method.latency_model is None:
        method.latency_model, decided_by = latency, hashed(to_builtins(latency))
    # loading may have fetched weights, and measured latencies
    refuse_other(folder, model, config.method)
    meter = energy_meter([*lm.devices, lm.input_device, lm.output_device])
    origin = _provenance(lm, config, rows, calibration, latency_file, decided_by, meter)
    store = RunStore(folder, config.record(), origin, config.mixed)
    log_to(folder / "run.log")
    settings = Settings(
        max_new_tokens=dataset.max_new_tokens,
        eos=eos_ids(lm),
        **dataclasses.asdict(config.decoding),
        seed=config.seed,
        scorer=dataset.scorer,
        warmup=config.engine.warmup,
        until_ci=config.until_ci,
    )
    try:
        store.status("running")
        with progress("samples", len(prompts), len(store.samples())) as advance:
            samples = run_cell(
                lm, tokenizer, method, prompts, settings, store, _with_speedup(advance), meter
            )
        if lm.notes() != origin.notes:
            say(lm.notes()[-1], "dim")  # memory for graphs ran out while decoding
            store.amend(notes=lm.notes())
        metrics = replace(
            _metrics(lm, samples, latency),
            until_ci=_stopped(samples, len(prompts), config.until_ci),
            score=corpus_summary(dataset.scorer, samples, store.completions()),
        )
        store.write_metrics(metrics)
        failed = [s for s in samples if s.lossless == "failed"]
        error = (
            f"{len(failed)} samples failed, first {failed[0].id}: "
            f"{failed[0].vanilla.error or failed[0].method.error}"
            if failed
            else None
        )
        note(error or "done")
        store.status("failed" if failed else "done", error)
        return metrics
    except BaseException as error:
        # what went wrong first is what the user must know
        state, reason = _end(error)
        note(f"{state}: {reason}")
        with contextlib.suppress(SkipbenchError):
            store.status(state, reason)
        raise
    finally:
        store.close()


def _stopped(
    samples: Sequence[Sample], prompts: int, until_ci: float | None
) -> UntilCi | UnsetType:
    """How a run that may stop early ended; unset for any other."""
    if until_ci is None:
        return UNSET
    reached = half_width(list(speedups(samples).values()))
    return UntilCi(
        wanted=until_ci,
        half_width=reached if math.isfinite(reached) else None,
        samples=len(samples),
        of=prompts,
        stopped=len(samples) < prompts,
    )


def _provenance(
    lm: LM,
    config: RunConfig,
    rows: list[Row],
    calibration: Sequence[Row],
    latency_file: Path,
    decided_by: str | None,
    meter: EnergyMeter,
) -> Provenance:
    """This process, the data, the device and the engine."""
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
        native_kernels=_native_kernels(lm),
        strict_cost=lm.strict_cost,
        notes=lm.notes(),
        label=None if config.label is None else printable(config.label),
        model_commit=getattr(lm.config, "_commit_hash", None),
        latency=latency_file.name,
        latency_sha256=decided_by,
        energy=meter.source,
    )


def _native_kernels(lm: LM) -> str:
    """Which of our own C functions the model passes through; `torch` where none."""
    like = torch.empty(0, dtype=lm.dtype, device=lm.output_device)
    own = few_rows_kernel()[0] if lm.engine.name == "fused" and is_native(like) else None
    return own or "torch"


def _end(error: BaseException) -> tuple[str, str]:
    """State and reason that an exception leaves in the record."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted; the same command goes on"
    if isinstance(error, Interrupted):
        return "interrupted", str(error)
    return "failed", f"{type(error).__name__}: {error}"


def _metrics(lm: LM, samples: list[Sample], latency: LatencyModel) -> Metrics:
    context = round(statistics.mean(s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples))
    floor_s = roofline_s_per_token(
        lm, context, bandwidth(lm.output_device, lm.weight_bytes(), known_hardware())
    )
    if lm.output_device.type == "cuda":
        peak = sum(
            torch.cuda.max_memory_allocated(device)
            for device in {*lm.devices, lm.input_device, lm.output_device}
        )
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    here = latency.at(context)
    profiled = Profiled(**here._asdict())
    return replace(summarise(samples, lm.layers, here, floor_s, peak), profiled=profiled)


def _with_speedup(advance: Advance) -> Callable[[Sample], None]:
    """Reports each sample with the speedup so far, as the table has it at the end."""
    ratios: list[float] = []

    def done(sample: Sample) -> None:
        ratios.extend([] if sample.speedup is None else [sample.speedup])
        advance(f"speedup so far {statistics.geometric_mean(ratios):.2f}x" if ratios else "")

    return done
