"""Loading a checkpoint: a folder on disk or a hub id with a revision, checked before and after."""

from typing import Any

import torch

from skipbench.config.architecture import Shape
from skipbench.config.model import adapter_base, is_gguf
from skipbench.errors import SkipbenchError
from skipbench.lm.engine import SPARE_MIB
from skipbench.lm.families import attention_kernel, check_config
from skipbench.lm.fused.bit_exact import NotStrictError
from skipbench.lm.layer import text_config
from skipbench.lm.model import LM
from skipbench.models.adapter import merge
from skipbench.models.checks import (
    check_form,
    check_index,
    check_shape,
    check_sizes,
    check_tokenizer,
    explain,
)
from skipbench.models.deepened import deepen
from skipbench.models.gguf import read_gguf
from skipbench.models.random_weights import planted_model
from skipbench.skipset import SkipSet

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_planted(
    shape: Shape,
    skip: str,
    seed: int,
    tokenizer_path: str,
    dtype: str,
    engine: str,
    device: str,
    strict: bool | None = False,
    spare_mib: int = SPARE_MIB,
) -> tuple[LM, Any]:
    """A model of `shape` made in memory, whose redundant sub-layers are `skip`, and a tokenizer.

    Raises:
        SkipbenchError: a family that is unknown, or several devices.
    """
    from transformers import AutoTokenizer

    if device == "auto":
        raise SkipbenchError(
            "model.device=auto spreads a checkpoint over devices; a planted model is made on "
            "one, as cuda:0"
        )
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    model = planted_model(
        shape, SkipSet.parse(skip, shape.layers), seed, DTYPES[dtype], device, len(tokenizer)
    )
    return make_lm(model, engine, strict, spare_mib), tokenizer


def make_lm(model: Any, engine: str, strict: bool | None, spare_mib: int = SPARE_MIB) -> LM:
    """`LM` of a Hugging Face model, with `strict` where it can be kept if that is `None`.

    That is tried where it is of use: engine `fused`, in a low precision, on a CPU. Where the proof
    at load fails, the model runs without it, and its notes say why.

    Raises:
        SkipbenchError: as `LM`.
    """
    if strict is not None:
        return LM(model, engine, strict, spare_mib)
    if engine != "fused" or model.dtype == torch.float32 or model.device.type != "cpu":
        return LM(model, engine, False, spare_mib)
    try:
        return LM(model, engine, True, spare_mib)
    except NotStrictError as error:
        reason = str(error)  # not the error, whose traceback holds the first LM's weights
    lm = LM(model, engine, False, spare_mib)
    lm.remarks.append(f"not strict, which is the default of this model: {reason}")
    return lm


def load(
    path: str,
    revision: str | None = None,
    dtype: str = "float32",
    engine: str = "fused",
    device_map: str | dict[str, Any] = "cpu",
    allow_pickle: bool = False,
    quantization: str = "none",
    shape: Shape | None = None,
    strict: bool | None = False,
    spare_mib: int = SPARE_MIB,
    deepened: float = 0.0,
    deepened_seed: int = 0,
    gpus: int | None = None,
) -> tuple[LM, Any]:
    """The model and its tokenizer.

    Args:
        path: a Hugging Face folder, an adapter folder of peft, a GGUF file, or an id on the hub.
        device_map: a device such as `cpu` or `cuda:0`; `auto`, or a map from module to device
            (these need `accelerate`).
        quantization: `int8` keeps the layers in one byte a weight (LLM.int8(), on a GPU), `fp4` and
            `nf4` in four bits, through bitsandbytes; the head stays as it is. Engine `reference`
            only.
        shape: sizes that the checkpoint must have.
        strict, spare_mib: as `make_lm` takes them.
        gpus: over how many of the GPUs `auto` spreads the layers, the first ones; `None` for all.
        deepened, deepened_seed: as `deepen` takes them; 0.0 adds no layer.
        allow_pickle: also load `.bin` weights, which can run code. Code of the checkpoint itself is
            never run.

    Raises:
        SkipbenchError: not found, gated, unknown family, or weights that are missing or of another
            shape.
    """
    import transformers

    logging: Any = transformers.logging  # its functions are untyped
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    check_form(path, device_map, quantization, engine, deepened, allow_pickle)
    base, notes = adapter_base(path), list[str]()
    if is_gguf(path):
        found = read_gguf(path)
        check_shape(path, found.config, shape)
        model, tokenizer = found.model(DTYPES[dtype]).to(device_map), found.tokenizer()
    else:
        model, tokenizer = _load_folder(
            base or path, revision, dtype, device_map, allow_pickle, quantization, shape, path, gpus
        )
    if base is not None:
        model, note = merge(model, path, len(tokenizer))
        notes.append(f"{note}: {base}")
    model = model.eval().requires_grad_(False)
    if deepened:
        deepen(model, deepened, deepened_seed)
    lm = make_lm(model, engine, strict, spare_mib)
    lm.remarks += notes
    return lm, tokenizer


def _load_folder(
    path: str,
    revision: str | None,
    dtype: str,
    device_map: str | dict[str, Any],
    allow_pickle: bool,
    quantization: str,
    shape: Shape | None,
    tokenizer_path: str,
    gpus: int | None = None,
) -> tuple[Any, Any]:
    """The Hugging Face model of a folder or a hub id, and its tokenizer: that of `tokenizer_path`
    where it has one. Other arguments as `load`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if quantization != "none" and isinstance(device_map, str) and device_map != "auto":
        device_map = {"": device_map}  # weights in fewer bits cannot be moved afterwards
    spread = device_map == "auto" or isinstance(device_map, dict)
    source: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    try:
        check_index(path)
        config = AutoConfig.from_pretrained(path, **source)
        check_config(text_config(config))
        check_sizes(path, text_config(config))
        check_shape(path, config, shape)
        tokenizer = AutoTokenizer.from_pretrained(check_tokenizer(tokenizer_path, path), **source)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=DTYPES[dtype],
            use_safetensors=None if allow_pickle else True,
            attn_implementation=attention_kernel(config),
            output_loading_info=True,
            **({"device_map": device_map} if spread else {}),
            **({"max_memory": _free(gpus)} if spread and gpus else {}),
            **_fewer_bits(quantization, DTYPES[dtype]),
            **source,
        )
    except SkipbenchError:
        raise
    except Exception as error:  # damaged files raise anything: transformers does not check them
        raise SkipbenchError(explain(path, revision, error)) from error
    model, info = loaded
    wrong = {k: sorted(map(str, info[k])) for k in ("missing_keys", "mismatched_keys") if info[k]}
    if wrong:
        raise SkipbenchError(f"checkpoint {path!r} does not fit its config.json: {wrong}")
    return model if spread else model.to(device_map), tokenizer


def _free(gpus: int) -> dict[int, int]:
    """Free bytes of the first GPUs: layers go to these alone."""
    return {i: torch.cuda.mem_get_info(i)[0] for i in range(gpus)}


def _fewer_bits(quantization: str, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments by which a checkpoint is loaded with its layers in fewer bits; scales are not
    quantized themselves.
    """
    import transformers

    made: Any = transformers.BitsAndBytesConfig  # untyped
    if quantization == "none":
        return {}
    if quantization == "int8":
        return {"quantization_config": made(load_in_8bit=True)}
    four = {"bnb_4bit_quant_type": quantization, "bnb_4bit_compute_dtype": dtype}
    return {"quantization_config": made(load_in_4bit=True, **four)}
