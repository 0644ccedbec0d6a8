"""Adapters of peft (LoRA): checks of their folder, and merging them into their base model."""

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from skipbench.errors import SkipbenchError


def check_adapter(path: str, quantization: str, allow_pickle: bool) -> None:
    """Raises SkipbenchError, before the base model is loaded, where peft is missing, the weights
    are pickled or missing, or the base model is to be quantised.
    """
    what = f"model.path={path!r} is an adapter"
    if quantization != "none":
        raise SkipbenchError(
            f"{what}, which cannot be merged into weights of model.quantization={quantization}; "
            "leave that out, or merge it beforehand"
        )
    if importlib.util.find_spec("peft") is None:
        raise SkipbenchError(
            f"{what} (LoRA), which needs peft: pip install 'skipbench[lora]'; or give a folder "
            "that merge_and_unload() was saved to"
        )
    if (Path(path) / "adapter_model.safetensors").is_file():
        return
    if not (Path(path) / "adapter_model.bin").is_file():
        raise SkipbenchError(f"{what} without weights: it has no adapter_model.safetensors")
    if not allow_pickle:
        raise SkipbenchError(
            f"{what} of pickled weights (adapter_model.bin), which can run code; save it as "
            "safetensors, or set model.allow_pickle=true"
        )


def merge_adapter(model: Any, path: str, tokens: int) -> tuple[Any, str]:
    """Merges an adapter into its base model, whose weights change.

    Args:
        tokens: entries of the tokenizer; the embedding grows to them where the adapter was trained
            with more than the base model has.

    Returns the plain model of Hugging Face, and a line for the notes. Raises SkipbenchError where
    the adapter does not fit the model.
    """
    peft: Any = import_module("peft")  # optional, and untyped

    if tokens > len(model.get_input_embeddings().weight):
        model.resize_token_embeddings(tokens, mean_resizing=False)
    try:
        adapted = peft.PeftModel.from_pretrained(model, path)
        merged = adapted.merge_and_unload(safe_merge=True)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        text = " ".join(str(error).split())[:400]
        fault = f"the adapter {path!r} cannot be merged into its base model: {text}"
        raise SkipbenchError(fault) from error
    how = f"({adapted.peft_config['default'].peft_type}) was merged into its base model at load"
    return merged, f"adapter {path} {how}, by peft {peft.__version__}"
