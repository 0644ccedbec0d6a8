"""The tokenizer of a checkpoint."""

from typing import Any

from skipbench.config.model import is_gguf
from skipbench.models.checks import explained, folder_of


def read_tokenizer(path: str, revision: str | None = None, **more: Any) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file; none of its code runs.

    Raises SkipbenchError where there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # `AutoTokenizer` reads every tokenizer of a qwen2 as Qwen2's own
    kind: Any = PreTrainedTokenizerFast if is_gguf(path) else AutoTokenizer
    path = folder_of(path)
    with explained(path, revision):
        return kind.from_pretrained(path, revision=revision, trust_remote_code=False, **more)
