"""From the settings of a cell to its model, its method and its encoded prompts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from skipbench.bench.memory import devices_needed
from skipbench.bench.prompts import SCRATCH_ROWS, Prompt, encode
from skipbench.config.dataset_config import DatasetConfig
from skipbench.config.model import Model, PlantedModel
from skipbench.config.schemas import Engine, EngineName
from skipbench.data.rows import Row
from skipbench.decode.method import Method
from skipbench.errors import SkipbenchError
from skipbench.lm.engine import refuse_strict
from skipbench.lm.model import LM
from skipbench.models.checks import check_access, check_form
from skipbench.models.load import load, make_lm
from skipbench.models.outline import check_checkpoint, layer_count
from skipbench.models.sparsity import Pattern, parse_sparsity, prune
from skipbench.skipset import deepened_layers

MakeMethod = Callable[..., Method]
Loaded = tuple[LM, Any]
"""A model and its tokenizer."""
LoadModel = Callable[..., Loaded]
"""`load_model`, or what stands for it."""


def load_model(
    model: Model, engine: Engine, calibration: Sequence[Row] = (), tokens: int | None = None
) -> tuple[LM, Any]:
    """The model and its tokenizer as `model` and `engine` of the configuration say; sets the number
    of threads.

    Args:
        calibration: rows by which weights are pruned, where `model.sparsity` says so.
        tokens: of the longest prompt with its output, by which `device=auto` takes as few GPUs as
            hold both; `None` where it is not known.

    Raises:
        SkipbenchError: a value that cannot be used, or a checkpoint that cannot be loaded.
    """
    pattern = _sparsity(model)
    check_model(model, engine)
    if model.device == "auto":
        few = devices_needed(model, tokens)
        model = dataclasses.replace(model, device="cuda:0") if few == 1 else model
        spread = few
    else:
        spread = None
    if pattern is None:
        return _dense(model, engine, spread)
    lm, tokenizer = _dense(
        model, dataclasses.replace(engine, name=EngineName.reference, strict=False), spread
    )
    tokens = min(model.calibration.tokens, lm.max_positions)
    prune(lm, [tokenizer.encode(row.prompt)[:tokens] for row in calibration], pattern)
    return make_lm(lm.model, engine.name, engine.strict, engine.spare_mib), tokenizer


def _sparsity(model: Model) -> Pattern | None:
    """Raises SkipbenchError for a pattern or a calibration that cannot be."""
    if model.sparsity == "none":
        return None
    pattern = parse_sparsity(model.sparsity)
    if model.calibration.tokens < 1:
        raise SkipbenchError(
            f"model.calibration.tokens={model.calibration.tokens}; wanted 1 or more"
        )
    if model.quantization != "none":
        raise SkipbenchError(
            f"model.sparsity={model.sparsity} prunes weights in full; with "
            f"model.quantization={model.quantization} there are none. Leave one of them out"
        )
    return pattern


def _dense(model: Model, engine: Engine, gpus: int | None = None) -> tuple[LM, Any]:
    """`gpus`: over how many `device=auto` spreads the layers; `None` for all."""
    torch.set_num_threads(engine.threads)
    return load(model, engine.name, engine.strict, engine.spare_mib, gpus)


def check_model(model: Model, engine: Engine) -> None:
    """All that can be refused of a model before its weights are read: its path first, then access,
    engine, device, packages, configuration and tokenizer.

    Raises:
        SkipbenchError: as `load_model`.
    """
    check_access(model.path, model.revision, model.gated)
    if engine.threads < 1:
        raise SkipbenchError(f"{engine.threads=}; wanted 1 or more")
    if engine.spare_mib < 0:
        raise SkipbenchError(f"{engine.spare_mib=}; wanted 0 or more")
    _check_device(model.device)
    _sparsity(model)
    planted = isinstance(model, PlantedModel)
    if not planted:
        check_form(model, engine.name)
    if engine.name == EngineName.reference and model.sparsity == "none":
        refuse_strict(bool(engine.strict), engine.name)
    if not planted:
        check_checkpoint(model)


def _check_device(device: str) -> None:
    """Raises SkipbenchError for a device that is not there."""
    if device in ("cpu", "auto"):
        return
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise SkipbenchError(f"model.device={device}; wanted cpu, cuda, cuda:N or auto")
    if not torch.cuda.is_available():
        raise SkipbenchError(
            f"model.device={device}, but no CUDA device is at hand; use model.device=cpu"
        )
    if number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise SkipbenchError(f"model.device={device}; this machine has cuda:0 to cuda:{last}")


def check_method(model: Model, make_method: MakeMethod) -> None:
    """Makes the method for a model of this depth: the configured one, else that of the checkpoint's
    config; no weights are read.

    Raises:
        SkipbenchError: a setting that does not fit the model, or a model whose configuration cannot
            be read.
    """
    _sparsity(model)
    method = make_method(layers=depth(model))
    if not isinstance(method, Method):
        raise SkipbenchError(
            f"{type(method).__name__} is no method; derive it from skipbench.decode.method.Method"
        )


def depth(model: Model) -> int:
    """Layers of the model as it runs, from the configuration, else from the checkpoint's config.

    Raises:
        SkipbenchError: as `check_method`.
    """
    if model.sizes is not None:
        return model.sizes.layers
    own = layer_count(model.path, model.revision)
    if not model.deepened:
        return own
    return len(deepened_layers(own, model.deepened, model.deepened_seed))


def prepare(lm: LM, tokenizer: Any, rows: list[Row], dataset: DatasetConfig) -> list[Prompt]:
    """Encoded prompts, and room for the longest of them in the cache."""
    prompts = encode(rows, tokenizer, lm, **dataset.encoding)
    lm.allocate(max(p.longest for p in prompts) + dataset.max_new_tokens + SCRATCH_ROWS)
    return prompts
