"""From the settings of a row's arms to their finished run folders."""

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec import to_builtins
from msgspec.structs import replace

from skipbench.bench.arm import ArmRunner
from skipbench.bench.load import LoadModel, load_model, prepare
from skipbench.bench.memory import longest
from skipbench.bench.prompts import Prompt, eos_ids
from skipbench.config.run_config import RunConfig
from skipbench.console import log_to, note, say, say_replaced, working
from skipbench.data.chat import pin_day
from skipbench.data.rows import Example, prompts_hash, rows_hash
from skipbench.decode.method import Method
from skipbench.errors import SkipbenchError, printable
from skipbench.lm.model import LM
from skipbench.metrics.summary import measured
from skipbench.profile.latency import latency_path
from skipbench.profile.latency import measured as measured_prices
from skipbench.profile.roofline import device_name
from skipbench.runs.cell import Cell
from skipbench.runs.fingerprint import compare_identity, fingerprints
from skipbench.runs.gpu import gpu
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, engine_text, hashed
from skipbench.runs.record import VANILLA
from skipbench.runs.run import read_run
from skipbench.runs.state import Interrupted
from skipbench.runs.store import RunStore, read_texts
from skipbench.scoring.overlap import CORPUS_SCORERS, corpus_scored

say_once = functools.cache(say)  # not for each arm again


@contextlib.contextmanager
def opened(cells: Sequence[Cell], load: LoadModel = load_model) -> Iterator[list[ArmRunner]]:
    """Loads what the cells of a row need, which differ in their methods and in how many prompts
    they take, and opens their folders; the end of the `with` block writes the metrics of their
    turns. Raises SkipbenchError for anything that the user can put right; `status.json` then has
    the reason.
    """
    config, rows = cells[0].config, max((cell.examples for cell in cells), key=len)
    model, dataset = config.model, config.dataset
    context = dataset.context or (model.architecture and model.architecture.context)
    tokens = longest(rows, dataset.max_new_tokens, context) if context else None
    with working(f"loading {model.name}"):
        lm, tokenizer = load(model, config.engine, config.calibration_rows(), tokens)
    begun = [read_run(cell.folder).provenance.started[:10] for cell in cells]
    pin_day(tokenizer, min(filter(None, begun), default=None))
    of_limit = {len(c.examples): prepare(lm, tokenizer, c.examples, dataset) for c in cells}
    say_replaced(config.engine.name, lm)
    methods = [cell.config.method.factory()(layers=lm.layers) for cell in cells]
    for method in methods:
        method.import_libraries()
    began = time.perf_counter()
    with working("measuring sub-layer latencies"):
        variants = {method.variant_on(lm.engine) for method in methods} - {""}
        path = latency_path(config, lm.output_device)
        lm.prices = measured_prices(lm, path, variants)
    latency_s = time.perf_counter() - began
    with contextlib.ExitStack() as stack:
        runners = list[ArmRunner]()
        for cell, method in zip(cells, methods, strict=True):
            loaded = lm, tokenizer, of_limit[len(cell.examples)], path.name
            runners.append(stack.enter_context(_opened(cell, method, cells, *loaded)))
            runners[-1].setup_s = latency_s if method.needs_latency else 0.0
        yield runners


@contextlib.contextmanager
def _opened(
    cell: Cell,
    method: Method,
    cells: Sequence[Cell],
    lm: LM,
    tokenizer: Any,
    prompts: list[Prompt],
    latency: str,
) -> Iterator[ArmRunner]:
    """`opened` for one cell, after the model is loaded, with the name of its latency file."""
    config, folder = cell.config, cell.folder
    parts = to_builtins(lm.prices.model)
    # loading may have fetched weights, and measured latencies
    compare_identity(folder, config, done=False)
    origin = replace(
        _provenance(lm, config, cell.examples),
        latency=latency,
        latency_sha256=hashed(parts) if method.needs_latency else None,
        parts=parts,
    )
    stack = contextlib.ExitStack()
    store = RunStore(folder, config.record(), origin, len(prompts), config.limit)
    stack.callback(store.close)
    if cell is cells[-1]:  # all folders are there
        log_to([one.folder / "run.log" for one in cells])
    runner: ArmRunner | None = None
    try:
        store.status("running")
        eos, others = eos_ids(lm), len(cells) > 1
        runner = ArmRunner(config, lm, tokenizer, method, prompts, eos, store, others)
        yield runner
        if (notes := lm.notes()) != origin.notes:
            say_once(notes[-1], "dim")  # what became known while decoding, as lack of memory
            store.amend(notes=notes)
        if runner.error is not None:
            raise runner.error
        if runner.missing:
            store.status("interrupted", "its time was up; the same command goes on")
            return
        store.write_metrics(_metrics(runner))
        failed = [t for t in runner.turns if t.arms[runner.name].lossless == "failed"]
        error = None
        if failed:
            reason = failed[0].arms[VANILLA].error or failed[0].arms[runner.name].error
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
        if runner is None or stop is not runner.error:
            raise
    finally:
        stack.close()


def _provenance(lm: LM, config: RunConfig, rows: list[Example]) -> Provenance:
    """This process, the data, the device and the engine."""
    calibration = config.calibration_rows()
    cuda = [device for device in dict.fromkeys(lm.devices) if device.type == "cuda"]
    return replace(
        Provenance.here(),
        prompts=len(rows),
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


def _metrics(runner: ArmRunner) -> Metrics:
    lm, turns = runner.lm, runner.turns
    copied, peak = lm.engine.variant_bytes() if runner.method.variant else 0, runner.peak_bytes
    metrics = measured(turns, runner.name, lm.layers, runner.prices.model)
    metrics = replace(metrics, peak_memory_bytes=peak or None, variant_bytes=copied or None)
    if (scorer := runner.config.dataset.scorer) in CORPUS_SCORERS:
        texts = read_texts(runner.store.folder)
        metrics = corpus_scored(scorer, metrics, turns, runner.name, texts)
    return metrics
