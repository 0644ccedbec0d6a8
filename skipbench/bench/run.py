"""From the settings of a row's arms to their finished run folders."""

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins
from msgspec.structs import replace

from skipbench.bench.arm import Bench
from skipbench.bench.load import LoadModel, load_model, prepare
from skipbench.bench.memory import longest
from skipbench.bench.prompts import Prompt, eos_ids
from skipbench.config.catalog import known_hardware
from skipbench.config.run_config import RunConfig
from skipbench.console import log_to, note, say, say_replaced, working
from skipbench.data.chat import pin_day
from skipbench.data.rows import Example, prompts_hash, rows_hash
from skipbench.decode.method import Method
from skipbench.errors import SkipbenchError, printable
from skipbench.lm.model import LM
from skipbench.metrics.prices import PARTS
from skipbench.metrics.summary import summarise
from skipbench.profile.latency import latency_path, measured
from skipbench.profile.roofline import bandwidth, device_name, roofline_s_per_token
from skipbench.runs.fingerprint import compare_identity, fingerprints
from skipbench.runs.gpu import gpu
from skipbench.runs.measures import Metrics, Profiled
from skipbench.runs.provenance import Provenance, engine_text, hashed
from skipbench.runs.run import read_run
from skipbench.runs.state import Interrupted
from skipbench.runs.store import RunStore
from skipbench.scoring.overlap import CORPUS_SCORERS, corpus_summary


@dataclass(frozen=True)
class ReadyArm:
    """An arm whose skip set is filled in, and whose rows are read."""

    config: RunConfig
    folder: Path
    rows: list[Example]


@contextlib.contextmanager
def opened(arms: Sequence[ReadyArm], load: LoadModel = load_model) -> Iterator[list[Bench]]:
    """Loads what the arms of a row need, which differ in their methods and in how many rows they
    take, and opens their folders; the end of the `with` block writes the metrics of their samples.
    Raises SkipbenchError for anything that the user can put right; `status.json` then has the
    reason.
    """
    config, rows = arms[0].config, max((arm.rows for arm in arms), key=len)
    model, dataset = config.model, config.dataset
    context = dataset.context or (model.architecture and model.architecture.context)
    tokens = longest(rows, dataset.max_new_tokens, context) if context else None
    with working(f"loading {model.name}"):
        lm, tokenizer = load(model, config.engine, config.calibration_rows(), tokens)
    say_replaced(config.engine.name, lm)
    begun = [read_run(arm.folder).provenance.started[:10] for arm in arms]
    pin_day(tokenizer, min(filter(None, begun), default=None))
    of_limit = {len(arm.rows): prepare(lm, tokenizer, arm.rows, dataset) for arm in arms}
    began = time.perf_counter()
    with working("measuring sub-layer latencies"):
        methods = [arm.config.method.factory()(layers=lm.layers) for arm in arms]
        variants = {method.variant_on(lm.engine) for method in methods} - {""}
        lm.prices = measured(lm, latency_path(config, lm.output_device), variants)
    latency_s = time.perf_counter() - began
    with contextlib.ExitStack() as stack:
        benches = list[Bench]()
        for arm, method in zip(arms, methods, strict=True):
            loaded = lm, tokenizer, of_limit[len(arm.rows)]
            benches.append(stack.enter_context(_opened(arm, method, arms, *loaded)))
            benches[-1].setup_s = latency_s if method.needs_latency else 0.0
        yield benches


@contextlib.contextmanager
def _opened(
    arm: ReadyArm,
    method: Method,
    arms: Sequence[ReadyArm],
    lm: LM,
    tokenizer: Any,
    prompts: list[Prompt],
) -> Iterator[Bench]:
    """`opened` for one arm, after the model is loaded."""
    config, folder = arm.config, arm.folder
    decided_by = hashed(to_builtins(lm.prices.model)) if method.needs_latency else None
    # loading may have fetched weights, and measured latencies
    compare_identity(folder, config)
    origin = replace(
        _provenance(lm, config, arm.rows),
        latency=Path(lm.prices.path).name,
        latency_sha256=decided_by,
    )
    stack = contextlib.ExitStack()
    store = RunStore(folder, config.record(), origin, len(prompts))
    stack.callback(store.close)
    if arm is arms[-1]:  # all folders are there
        log_to([arm.folder / "run.log" for arm in arms])
    bench: Bench | None = None
    try:
        store.status("running")
        eos, others = eos_ids(lm), len(arms) > 1
        bench = Bench(config, lm, tokenizer, method, prompts, eos, store, others)
        yield bench
        if (notes := lm.notes()) != origin.notes:
            say(notes[-1], "dim")  # memory for graphs ran out while decoding
            store.amend(notes=notes)
        if bench.error is not None:
            raise bench.error
        if len(bench.samples) < len(prompts):
            store.status("interrupted", "its time was up; the same command goes on")
            return
        store.write_metrics(_metrics(bench))
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
        if bench is None or stop is not bench.error:
            raise
    finally:
        stack.close()


def _provenance(lm: LM, config: RunConfig, rows: list[Example]) -> Provenance:
    """This process, the data, the device and the engine."""
    calibration = config.calibration_rows()
    cuda = [device for device in dict.fromkeys(lm.devices) if device.type == "cuda"]
    return replace(
        Provenance.here(),
        rows_sha256=rows_hash(rows),
        prompts_sha256=prompts_hash(rows),
        calibration_sha256=rows_hash(calibration) if calibration else None,
        **fingerprints(config),
        device=device_name(lm.output_device),
        threads=torch.get_num_threads(),
        gpus=[gpu(f"GPU-{torch.cuda.get_device_properties(d).uuid}") for d in cuda],
        cudnn=torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]  # torch's
        cudnn_attention=lm.output_device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]  # torch's
        layers=lm.layers,
        engine=engine_text(lm.engine.name, lm.strict),
        kernels=[*lm.engine.kernels],
        **lm.engine.identity(),
        notes=lm.notes(),
        label=None if config.label is None else printable(config.label),
        model_commit=getattr(lm.config, "_commit_hash", None),
    )


def _metrics(bench: Bench) -> Metrics:
    lm, samples = bench.lm, bench.samples
    context = round(statistics.mean(s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples))
    rate = bandwidth(lm.output_device, lm.weight_bytes, known_hardware())
    floor_s, prices = roofline_s_per_token(lm, context, rate), bench.prices
    pass_s = partial(prices.pass_s, 1, context)
    metrics = summarise(samples, lm.layers, pass_s, floor_s, bench.peak_bytes or None)
    parts = {f"{part}_s": prices.part_s(part, 1, context) for part in PARTS}
    metrics = replace(metrics, profiled=Profiled(**parts, layers=prices.layers))
    if bench.method.variant and (copied := lm.engine.variant_bytes()):
        metrics = replace(metrics, variant_bytes=copied)
    if (scorer := bench.config.dataset.scorer) in CORPUS_SCORERS:
        scores = corpus_summary(scorer, samples, bench.store.completions())
        metrics = replace(metrics, score=scores)
    return metrics
