"""The tokenizer of a checkpoint."""

from typing import Any

from skipbench.config.extensions import load as load_extension
from skipbench.config.model import is_gguf
from skipbench.models.checks import explained


def read_tokenizer(path: str, revision: str | None = None, **more: Any) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file; none of its code runs.

    Raises SkipbenchError where there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    if is_gguf(path):
        return load_extension("checkpoint", "gguf")(path).tokenizer()
    with explained(path, revision):
        return AutoTokenizer.from_pretrained(
            path, revision=revision, trust_remote_code=False, **more
        )
