"""Draft models: loading one, and comparing its vocabulary with the target's."""

import functools
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.models.load import load


@functools.lru_cache(maxsize=1)  # copies of a method share it
def draft_model(path: str, revision: str | None, dtype: str, device: str) -> tuple[LM, Any]:
    """The model in the fused engine, and its tokenizer. Raises SkipbenchError as `load`."""
    return load(path, revision=revision, dtype=dtype, device=device)


def check_vocabulary(path: str, draft: LM, tokenizer: Any, target: LM) -> None:
    """Raises SkipbenchError where the vocabularies' sizes differ, or, where the target is a folder
    with a tokenizer, their tokens.
    """
    sizes = draft.config.vocab_size, target.config.vocab_size
    if sizes[0] != sizes[1]:
        raise SkipbenchError(
            f"method.model={path} has {sizes[0]} tokens, the target {sizes[1]}; wanted a draft "
            "model of the same tokenizer"
        )
    own = _vocabulary(str(getattr(target.model.config, "_name_or_path", "")))
    if own and own != tokenizer.get_vocab():
        raise SkipbenchError(
            f"method.model={path} has as many tokens as the target, {sizes[0]}, but others; wanted "
            "a draft model of the same tokenizer"
        )


@functools.lru_cache(maxsize=1)
def _vocabulary(folder: str) -> Any:
    from transformers import AutoTokenizer

    known = (Path(folder) / "tokenizer.json").is_file()
    return AutoTokenizer.from_pretrained(folder).get_vocab() if known else None
