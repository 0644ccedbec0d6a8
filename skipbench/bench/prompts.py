"""From rows to token ids that fit, before anything is timed."""

import hashlib
from dataclasses import dataclass
from typing import Any

from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM

SCRATCH_ROWS = 320  # cache rows behind the text for the largest draft: SWIFT's tree of 25 steps of 10 nodes, and more


@dataclass(frozen=True)
class Prompt:
    """One row, ready to be decoded. `cut` is the number of tokens removed from its left end."""

    row: Row
    ids: list[int]
    cut: int

    @property
    def hash(self) -> str:
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:16]


def encode(rows: list[Row], tokenizer: Any, lm: LM, max_new_tokens: int, truncate: str) -> list[Prompt]:
    """Token ids of every row, as the tokenizer makes them, special tokens included.

    Raises:
        SkipbenchError: an empty prompt; or one that with its output is longer than the model's context, unless
            `truncate` is `left`, which cuts its beginning and keeps a first special token.
    """
    room = lm.max_positions - max_new_tokens
    if room < 1:
        raise SkipbenchError(
            f"dataset.max_new_tokens={max_new_tokens} leaves no room for a prompt in a context of {lm.max_positions} tokens"
        )
    prompts = []
    for row in rows:
        ids: list[int] = tokenizer.encode(row.prompt)
        if not ids:
            raise SkipbenchError(f"prompt {row.id!r} has no tokens: {row.prompt!r}")
        cut = max(0, len(ids) - room)
        if cut and truncate == "refuse":
            raise SkipbenchError(
                f"prompt {row.id!r} has {len(ids)} tokens; with max_new_tokens={max_new_tokens} at most {room} fit into the model's "
                f"context of {lm.max_positions}. Lower dataset.max_new_tokens, or cut prompts with dataset.truncate=left"
            )
        if cut:
            head = ids[:1] if ids[0] in tokenizer.all_special_ids else []
            ids = head + ids[cut + len(head) :]
        prompts.append(Prompt(row, ids, cut))
    return prompts


def eos_ids(lm: LM) -> frozenset[int]:
    """Every id that ends an output, from the generation config, else from the model's."""
    generation = getattr(lm.model, "generation_config", None)
    value = getattr(generation, "eos_token_id", None)
    value = lm.config.eos_token_id if value is None else value
    return frozenset() if value is None else frozenset([value] if isinstance(value, int) else value)
