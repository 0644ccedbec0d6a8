"""From settings to a model, its tokenizer, its method and its encoded prompts, and the checks of a
run before it reads a weight; `dry_run` makes these and nothing else.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from skipbench.bench.memory import check_memory, devices_needed
from skipbench.bench.prompts import SCRATCH_ROWS, Prompt, encode
from skipbench.bench.stored_sets import with_stored_set
from skipbench.config.dataset import DatasetConfig
from skipbench.config.model import Model, PlantedModel
from skipbench.config.run_config import Engine, RunConfig
from skipbench.data.rows import Example, other_rows
from skipbench.decode.method import Method
from skipbench.errors import SkipbenchError
from skipbench.lm.layer import text_config
from skipbench.lm.model import LM
from skipbench.metrics.prices import Prices
from skipbench.models import outline
from skipbench.models.checks import check_access, check_form
from skipbench.models.load import load, make_lm
from skipbench.profile.latency import latency_path, measured
from skipbench.runs.cell import Cell
from skipbench.runs.run import read_run
from skipbench.scoring.scorers import score

PROFILED_ROWS = 512  # up to which latencies are measured for a method that needs them
Loaded = tuple[LM, Any]  # a model and its tokenizer
LoadModel = Callable[..., Loaded]  # `load_model` or another loader


def load_model(
    model: Model, engine: Engine, calibration: Sequence[Example] = (), tokens: int | None = None
) -> Loaded:
    """Loads the configured model and its tokenizer, pruned by the rows of `calibration` if it is to
    be sparse; sets the number of threads. For `tokens` of the longest prompt with its output
    `device=auto` takes as few GPUs as hold both. Raises SkipbenchError for what cannot be.
    """
    check_model(model, engine)
    gpus = devices_needed(model, tokens) if model.device == "auto" else None
    if gpus == 1:
        model = replace(model, device="cuda:0")
    torch.set_num_threads(engine.threads)
    if model.sparsity == "none":
        return load(model, engine.name, engine.strict, gpus)
    from skipbench.models.sparsity import parse_sparsity, prune

    lm, tokenizer = load(model, "reference", False, gpus)
    limit = min(model.calibration.tokens, lm.max_positions)
    pattern = parse_sparsity(model.sparsity)
    assert pattern is not None
    prune(lm, [tokenizer.encode(row.prompt)[:limit] for row in calibration], pattern)
    return make_lm(lm.model, engine.name, engine.strict), tokenizer


def check_model(model: Model, engine: Engine) -> None:
    """Refuses a model as `load_model`, before its weights are read, by its path first."""
    check_access(model.path, model.revision, model.gated)
    if (wrong := _wrong_device(model.device)) is not None:
        raise SkipbenchError(f"model.device={model.device}{wrong}")
    if model.sparsity != "none":
        from skipbench.models.sparsity import parse_sparsity

        parse_sparsity(model.sparsity)
        if model.quantization != "none":
            both = f"model.sparsity={model.sparsity} and model.quantization={model.quantization}"
            raise SkipbenchError(f"{both}: only weights in full are pruned; leave one of them out")
    planted = isinstance(model, PlantedModel)
    if not planted:
        check_form(model, engine.name)
    if engine.name == "reference" and engine.strict and model.sparsity == "none":
        instead = "engine=fused, not reference; use that, or engine.strict=false"
        raise SkipbenchError(f"engine.strict=true needs {instead}")
    if not planted:
        outline.check_checkpoint(model)


def _wrong_device(device: str) -> str | None:
    if device in ("cpu", "auto"):
        return None
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        return "; wanted cpu, cuda, cuda:N or auto"
    if not torch.cuda.is_available():
        return ", but no CUDA device is at hand; use model.device=cpu"
    last = torch.cuda.device_count() - 1
    return f"; this machine has cuda:0 to cuda:{last}" if int(number or 0) > last else None


def check_method(model: Model, make_method: Callable[..., Method]) -> Method:
    """The method for a model of this depth, made without reading weights. Raises SkipbenchError
    for a setting that does not fit the model, or an unreadable configuration.
    """
    if (shape := model.architecture) is not None:
        layers = shape.layers
    else:
        config = text_config(outline.read_config(model.path, model.revision))
        layers = int(config.num_hidden_layers)
    method = make_method(layers=layers)
    if not isinstance(method, Method):
        raise SkipbenchError(f"{type(method).__name__} does not derive from decode.method.Method")
    return method


def preflight(cell: Cell, held: bool = False) -> list[Prompt] | None:
    """Checks a cell whose skip set is known, and whose model may be `held`, loaded already; reads
    its `examples`. Returns its prompts; None where the tokenizer is not on this machine yet, or the
    model is held. Raises SkipbenchError for whatever a run of it would refuse: its path, tokenizer,
    device, engine, method, memory, dataset, scorer, references, prompts or results folder.
    """
    config, folder = cell.config, cell.folder
    model, dataset, prompts = config.model, config.dataset, None
    if not held:
        check_model(model, config.engine)
    copies = bool(check_method(model, config.method.factory()).variant)
    model = model if held else outline.sized(model)
    check_memory(model, dataset, [], copies)  # before a dataset is fetched
    rows = dataset.rows(config.limit)
    if not config.fresh and other_rows(read_run(folder).provenance, rows):
        raise SkipbenchError(
            f"the rows of the dataset have changed since {folder} was begun; put the old ones "
            "back, pin dataset.revision, or use another results folder"
        )
    check_memory(model, dataset, rows, copies)
    for row in rows:  # a scorer or a reference that cannot be used shows now
        score(dataset.scorer, "", row.prompt, row.reference)
    if not held and (tokenizer := outline.tokenizer_here(model)) is not None:
        prompts = encode(rows, tokenizer, outline.context_of(model), **dataset.encoding)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise SkipbenchError(f"{there} is no folder that can be written to; use results=FOLDER")
    cell.examples = rows
    return prompts


def prepare(lm: LM, tokenizer: Any, rows: list[Example], dataset: DatasetConfig) -> list[Prompt]:
    """Encodes the prompts, and allocates a cache for the longest."""
    prompts = encode(rows, tokenizer, lm.max_positions, **dataset.encoding)
    lm.allocate(max(p.longest for p in prompts) + dataset.max_new_tokens + SCRATCH_ROWS)
    return prompts


def load_ready(config: RunConfig, method: Method | None = None) -> tuple[LM, Any, Method]:
    """Loads the model, its tokenizer, and the method, with its stored skip set and latencies;
    `method` replaces the one of `config`, whose values are then not used. Raises SkipbenchError as
    a run of these settings would; before loading for wrong settings.
    """
    if method is None:
        config = with_stored_set(config)
    check_model(config.model, config.engine)
    given = method or check_method(config.model, config.method.factory())
    check_memory(outline.sized(config.model), config.dataset, [], bool(given.variant))
    lm, tokenizer = load_model(config.model, config.engine, config.calibration_rows())
    lm.price_file = latency_path(config, lm.output_device)
    lm.prices = Prices.read(lm.price_file, lm.engine.name)
    return lm, tokenizer, method or make_method(config, lm)


def make_method(config: RunConfig, lm: LM) -> Method:
    """The method of `config` for a loaded model; latencies are measured where it needs them."""
    method: Method = with_stored_set(config).method.factory()(layers=lm.layers)
    method.import_libraries()
    if method.needs_latency:
        lm.allocate(min(PROFILED_ROWS, lm.max_positions))
        with lm.cache.turn():
            variants = {method.variant_on(lm.engine)} - {""}
            lm.price_file = latency_path(config, lm.output_device)
            lm.prices = measured(lm, lm.price_file, variants)
    return method
