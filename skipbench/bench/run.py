"""From plain settings to a finished run folder. The command line builds the parts; nothing here knows of Hydra."""

import contextlib
import resource
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skipbench.bench.cell import Settings, run_cell
from skipbench.bench.latencies import latency_path, stored_latency
from skipbench.bench.prompts import SCRATCH_ROWS, Prompt, encode, eos_ids
from skipbench.data.rows import Row, prompts_hash, rows_hash
from skipbench.decode.method import Method, UsesLatency
from skipbench.errors import SkipbenchError
from skipbench.lm.load import layer_count, load, load_planted
from skipbench.lm.model import LM
from skipbench.lm.wanda import Pattern, parse_sparsity, prune
from skipbench.metrics.summary import summarise
from skipbench.profile.latency import LatencyModel
from skipbench.profile.roofline import Known, bandwidth, device_name, roofline_s_per_token
from skipbench.runs.fingerprint import fingerprints, refuse_other
from skipbench.runs.provenance import engine_text, provenance
from skipbench.runs.record import Sample
from skipbench.runs.stop import Interrupted
from skipbench.runs.store import RunStore, load_run
from skipbench.scoring.corpus import corpus_summary

MakeMethod = Callable[..., Method]
FORM = (
    "max_new_tokens",
    "truncate",
    "keep",
    "reserve",
    "context",
    "chat",
    "thinking",
)  # keys of a dataset for `encode`


def load_model(model: dict[str, Any], engine: dict[str, Any], calibration: Sequence[Row] = ()) -> tuple[LM, Any]:
    """The model and its tokenizer as `model` and `engine` of the configuration say; sets the number of threads.

    Args:
        calibration: rows by which weights are pruned, where `model.sparsity` says so.

    Raises:
        SkipbenchError: a value that cannot be used, or a checkpoint that cannot be loaded.
    """
    pattern = _sparsity(model)
    if pattern is None:
        return _dense(model, engine)
    lm, tokenizer = _dense(model, engine | {"name": "modules", "strict": False})
    tokens = min(model["calibration"]["tokens"], lm.max_positions)
    prune(lm, [tokenizer.encode(row.prompt)[:tokens] for row in calibration], pattern)
    return LM(lm.model, engine["name"], engine["strict"], engine["spare_mib"]), tokenizer


def _sparsity(model: dict[str, Any]) -> Pattern | None:
    """Raises SkipbenchError for a pattern or a calibration that cannot be."""
    pattern = parse_sparsity(model.get("sparsity", "none"))
    if pattern is None:
        return None
    if model["calibration"]["tokens"] < 1:
        raise SkipbenchError(f"model.calibration.tokens={model['calibration']['tokens']}; wanted 1 or more")
    if model["quantization"] != "none":
        raise SkipbenchError(
            f"model.sparsity={model['sparsity']} prunes weights in full; with model.quantization={model['quantization']} there are "
            f"none. Leave one of them out"
        )
    return pattern


def _dense(model: dict[str, Any], engine: dict[str, Any]) -> tuple[LM, Any]:
    if engine["threads"] < 1:
        raise SkipbenchError(f"engine.threads={engine['threads']}; wanted 1 or more")
    torch.set_num_threads(engine["threads"])
    if model["device"].startswith("cuda") and not torch.cuda.is_available():
        raise SkipbenchError(f"model.device={model['device']}, but no CUDA device is at hand; use model.device=cpu")
    if engine["spare_mib"] < 0:
        raise SkipbenchError(f"engine.spare_mib={engine['spare_mib']}; wanted 0 or more")
    if "redundant" in model:
        return load_planted(
            model["architecture"], model["sets"]["self-sd"], model["seed"], model["path"], model["dtype"], engine["name"],
            model["device"], engine["strict"], engine["spare_mib"],
        )  # fmt: skip
    return load(
        model["path"],
        model["revision"],
        model["dtype"],
        engine["name"],
        model["device"],
        model["allow_pickle"],
        model["quantization"],
        model["architecture"],
        engine["strict"],
        engine["spare_mib"],
    )


def check_method(model: dict[str, Any], make_method: MakeMethod) -> None:
    """Makes the method for a model of this depth: the configured one, else that of the checkpoint's config; no weights are read.

    Raises:
        SkipbenchError: a setting that does not fit the model, or a model whose configuration cannot be read.
    """
    _sparsity(model)
    known = model["architecture"]
    make_method(layers=known["layers"] if known else layer_count(model["path"], model["revision"]))


def prepare(lm: LM, tokenizer: Any, rows: list[Row], dataset: dict[str, Any]) -> list[Prompt]:
    """Encoded prompts, and room for the longest of them in the cache."""
    prompts = encode(rows, tokenizer, lm, **{k: dataset[k] for k in FORM})
    lm.allocate(max(p.longest for p in prompts) + dataset["max_new_tokens"] + SCRATCH_ROWS)
    return prompts


def run(
    config: dict[str, Any],
    folder: Path,
    rows: list[Row],
    make_method: MakeMethod,
    console: Console,
    known: Known,
    calibration: Sequence[Row] = (),
) -> dict[str, Any]:
    """Runs what is missing of a cell and returns its metrics; `known` are the devices whose rates are known.

    Args:
        calibration: rows for `load_model`.

    Raises:
        SkipbenchError: anything that the user can put right; `status.json` then says failed, with the reason.
    """
    dataset, decoding = config["dataset"], config["decoding"]
    check_method(config["model"], make_method)
    _check_rows(folder, rows)
    lm, tokenizer = load_model(config["model"], config["engine"], calibration)
    _say(console, lm.notes())
    method = make_method(layers=lm.layers)
    prompts = prepare(lm, tokenizer, rows, dataset)
    device = device_name(lm.output_device)
    latency = stored_latency(lm, latency_path(config["model"], config["engine"], device, folder.parent.parent))
    if isinstance(method, UsesLatency) and method.latency is None:
        method.latency = latency
    refuse_other(folder, config["model"], config["method"])  # loading may have fetched weights
    origin = _origin(lm, config, rows, prompts, calibration)
    store = RunStore(folder, config, provenance(origin))
    settings = Settings(
        max_new_tokens=dataset["max_new_tokens"],
        eos=eos_ids(lm),
        **decoding,
        seed=config["seed"],
        scorer=dataset["scorer"],
        warmup=config["engine"]["warmup"],
    )
    try:
        store.status("running")
        with _progress(console, len(prompts), len(store.samples())) as advance:
            samples = run_cell(lm, tokenizer, method, prompts, settings, store, advance)
        if lm.notes() != origin["notes"]:
            _say(console, lm.notes()[-1:])  # memory for graphs ran out while decoding
            store.amend(notes=lm.notes())
        metrics = _metrics(lm, samples, latency, known)
        metrics["score"] = corpus_summary(dataset["scorer"], samples, store.completions())
        store.write_metrics(metrics)
        failed = [s for s in samples if s.lossless == "failed"]
        error = (
            f"{len(failed)} samples failed, first {failed[0].id}: {failed[0].vanilla.error or failed[0].method.error}"
            if failed
            else None
        )
        store.status("failed" if failed else "done", error)
        return metrics
    except BaseException as error:
        with contextlib.suppress(SkipbenchError):  # what went wrong first is what the user must know
            store.status(*_end(error))
        raise
    finally:
        store.close()


def _origin(
    lm: LM, config: dict[str, Any], rows: list[Row], prompts: list[Prompt], calibration: Sequence[Row]
) -> dict[str, Any]:
    """What the provenance says of the data, the device and the engine."""
    origin: dict[str, Any] = {"rows_sha256": rows_hash(rows), "prompts_sha256": prompts_hash(rows)}
    origin |= fingerprints(config["model"], config["method"])
    if calibration:
        origin["calibration_sha256"] = rows_hash(list(calibration))
    origin |= {"device": device_name(lm.output_device), "threads": torch.get_num_threads(), "layers": lm.layers}
    used = config["engine"] | {"name": lm.engine.name}
    origin |= {
        "engine": engine_text(used),
        "kernels": lm.engine.kernels,
        "strict_cost": lm.strict_cost,
        "notes": lm.notes(),
    }
    origin["model_commit"] = getattr(lm.config, "_commit_hash", None)  # what `main` was when it was fetched
    return origin


def _end(error: BaseException) -> tuple[str, str]:
    """State and reason that an exception leaves in the record."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted; the same command goes on"
    if isinstance(error, Interrupted):
        return "interrupted", str(error)
    return "failed", f"{type(error).__name__}: {error}"


def _check_rows(folder: Path, rows: list[Row]) -> None:
    begun = (load_run(folder)["provenance"] or {}).get("rows_sha256")
    if begun is not None and begun != rows_hash(rows):
        raise SkipbenchError(
            f"the rows of the dataset have changed since {folder} was begun; put the old ones back, pin dataset.revision, or "
            f"use another results folder"
        )


def _metrics(lm: LM, samples: list[Sample], latency: LatencyModel, known: Known) -> dict[str, Any]:
    context = round(statistics.mean(s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples))
    floor_s = roofline_s_per_token(lm, context, bandwidth(lm.output_device, lm.weight_bytes(), known))
    if lm.output_device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(lm.output_device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return summarise(samples, lm.layers, latency.at(context), floor_s, peak)


def _say(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True, style="dim")


@contextlib.contextmanager
def _progress(console: Console, total: int, done: int) -> Iterator[Callable[[Sample], None]]:
    """A bar on a terminal, else a plain line for about every tenth of the work."""
    ratios: list[float] = []

    def text(sample: Sample) -> str:
        if sample.vanilla.seconds.decode and sample.method.seconds.decode:
            ratios.append(sample.vanilla.seconds.decode / sample.method.seconds.decode)
        return f"speedup so far {statistics.median(ratios):.2f}" if ratios else ""

    if not console.is_terminal:
        count = done

        def line(sample: Sample) -> None:
            nonlocal count
            count += 1
            note = text(sample)
            if count == total or count % max(1, total // 10) == 0:
                console.print(f"{count}/{total} samples, {note}", highlight=False)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    # Drawn between samples only: a refreshing thread would run inside the timed region.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("samples", total=total, completed=done, note="")
        yield lambda sample: bar.update(task, advance=1, note=text(sample), refresh=True)
