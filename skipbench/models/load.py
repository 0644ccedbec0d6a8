"""Loading a checkpoint, checked before and after: a folder on disk, a GGUF file or a hub id with a
revision; and a draft model beside it.
"""

import functools
import gc
import importlib.util
from pathlib import Path
from typing import Any, cast

import torch

from skipbench.config.model import Model, PlantedModel
from skipbench.draft_plan import DraftPlan
from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.families import attention_kernel
from skipbench.lm.model import LM
from skipbench.models.checks import check_form, check_tokenizer, explained, folder_of
from skipbench.models.outline import read_config, read_tokenizer
from skipbench.models.random_weights import planted_model

PROVEN = 256  # cache rows over which the kernels of graphs are proven at load
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def make_lm(model: Any, engine: str, strict: bool | None) -> LM:
    """`LM` of a Hugging Face model; with `strict=None` it is strict where that can be kept: this is
    tried in a low precision with engine `cuda_graphs`, and `fused` on a CPU, where it costs
    little, and where the proof at load fails, the model runs without it, and its notes say why.
    Raises SkipbenchError as `LM`.
    """
    cheap = engine == "cuda_graphs" or (engine, model.device.type) == ("fused", "cpu")
    reason = ""
    if strict is None and model.dtype != torch.float32 and cheap:
        try:
            lm = LM(model, engine, True)
            lm.engine.lenient = True
            return lm
        except NotStrictError as error:
            reason = str(error)  # not the error, whose traceback holds the first LM's weights
        gc.collect()  # as in `load`
    lm = LM(model, engine, bool(strict))
    if reason:
        lm.remarks.append(f"not strict, which is the default of this model: {reason}")
    if lm.engine.name == "cuda_graphs":
        lm.allocate(PROVEN)
    return lm


def load(
    model: Model | str,
    engine: str = "fused",
    strict: bool | None = False,
    gpus: int | None = None,
    **settings: Any,
) -> tuple[LM, Any]:
    """The model and its tokenizer. Raises SkipbenchError where it is not found, gated, of an
    unknown family, or its weights are missing or of another shape.

    Args:
        model: settings of a checkpoint or of a planted model; or a path, with `settings` for the
            other fields of `Model`. Code of the checkpoint itself is never run.
        strict: as `make_lm` takes it.
        gpus: the first ones, over which `device=auto` spreads the layers; None for all.
    """
    gc.collect()  # an `LM` is in cycles: the weights of one that is gone may fill a GPU
    if isinstance(model, str):
        model = Model(path=model, **settings)
    if isinstance(model, PlantedModel):
        made, tokenizer = _planted(model)
    else:
        made, tokenizer = _from_folder(model, engine, gpus)
    return make_lm(made.eval().requires_grad_(False), engine, strict), tokenizer


def _planted(model: PlantedModel) -> tuple[Any, Any]:
    """A model made in memory, whose redundant sub-layers are those of `sets`."""
    shape, skip = model.architecture, model.sets["self-sd"]
    assert shape is not None and skip is not None
    if model.device == "auto":
        raise SkipbenchError("model.device=auto; a planted model is made on one device, as cuda:0")
    tokenizer = read_tokenizer(model.path)
    redundant, dtype = DraftPlan.parse(skip, shape.layers), DTYPES[model.dtype]
    made = planted_model(shape, redundant, model.seed, dtype, model.device, len(tokenizer))
    return made, tokenizer


def has_accelerate() -> bool:
    return importlib.util.find_spec("accelerate") is not None


def placement(model: Model, gpus: int | None) -> dict[str, Any]:
    """Where transformers puts each weight as it reads it, past the host's memory; empty where the
    whole model is moved afterwards. `gpus` as `load` takes it.
    """
    if model.device == "auto":
        chosen: dict[str, Any] = {"device_map": "auto"}
        if gpus:  # layers go to the free memory of these alone
            chosen["max_memory"] = {i: torch.cuda.mem_get_info(i)[0] for i in range(gpus)}
        return chosen
    # weights in fewer bits cannot be moved
    straight = model.device.startswith("cuda") and has_accelerate()
    return {"device_map": {"": model.device}} if straight or model.quantization != "none" else {}


def _from_folder(model: Model, engine: str, gpus: int | None) -> tuple[Any, Any]:
    """The Hugging Face model, and its tokenizer."""
    import transformers

    check_form(model, engine)
    logging: Any = transformers.logging  # its functions are untyped
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path, dtype = model.path, DTYPES[model.dtype]
    more = placement(model, gpus)
    if (kind := model.quantization) != "none":
        four = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_compute_dtype": dtype}
        bits = {"load_in_8bit": True} if kind == "int8" else four
        more["quantization_config"] = cast("Any", transformers.BitsAndBytesConfig)(**bits)
    with explained(path, model.revision):
        config = read_config(path, model.revision, model.architecture)
        tokenizer = read_tokenizer(check_tokenizer(path), model.revision)
        made, info = cast("Any", transformers.AutoModelForCausalLM).from_pretrained(
            folder_of(path),
            config=config,
            dtype=dtype,
            use_safetensors=None if model.allow_pickle else True,
            attn_implementation=attention_kernel(config),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            revision=model.revision,
            trust_remote_code=False,
            **more,
        )
    wrong = [f"{name} is missing" for name in sorted(info["missing_keys"])]
    for name, found, wanted in sorted(info["mismatched_keys"]):
        wrong.append(f"{name} has the shape {tuple(found)}, wanted {tuple(wanted)}")
    if wrong:
        listed = "; ".join(wrong[:4]) + (f"; and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        raise SkipbenchError(f"checkpoint {path!r} does not fit its config.json: {listed}")
    return made if "device_map" in more else made.to(model.device), tokenizer


@functools.lru_cache(maxsize=1)  # copies of a method share it
def draft_model(path: str, revision: str | None, dtype: str, device: str) -> tuple[LM, Any]:
    """The model in the fused engine, and its tokenizer. Raises SkipbenchError as `load`."""
    return load(path, revision=revision, dtype=dtype, device=device)


def check_vocabulary(path: str, draft: LM, tokenizer: Any, target: LM) -> None:
    """Raises SkipbenchError where the tokens differ or, where the target is no folder with a
    tokenizer, the sizes of the vocabularies. Embeddings may have other numbers of rows, as those
    of Qwen2.5 have: what is behind the tokens is padding.
    """
    own = _vocabulary(str(getattr(target.model.config, "_name_or_path", "")))
    theirs: Any = None if own is None else tokenizer.get_vocab()
    if own != theirs:
        text, number = min(own.items() ^ theirs.items(), key=lambda item: item[1])
        fault = f"has other tokens than the target, such as {text!r} with the id {number}"
    elif own is None and draft.vocabulary != target.vocabulary:
        fault = f"has {draft.vocabulary} tokens, the target {target.vocabulary}"
    else:
        return
    raise SkipbenchError(f"method.model={path} {fault}; wanted a draft model of its tokenizer")


@functools.lru_cache(maxsize=1)
def _vocabulary(folder: str) -> Any:
    known = (Path(folder) / "tokenizer.json").is_file()
    return read_tokenizer(folder).get_vocab() if known else None
