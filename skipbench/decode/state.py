"""`State`: one prompt being decoded."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from skipbench.decode.draft import Draft, Verification
from skipbench.decode.sampling import Sampler
from skipbench.lm.model import LM

Finish = Literal["eos", "length"]
Process = Callable[[list[int], Draft, Tensor], Tensor]
"""Committed tokens, the draft, and the target's logits [n + 1, V] after the pending token and
every node -> the logits to choose from; only the target's, so that any draft stays lossless.
"""


class State:
    """Committed tokens and the limits of one prompt.

    Invariant at the top of every round: `lm.cache.length == len(tokens) - 1`; the last committed
    token is pending, its K/V does not exist yet.
    """

    def __init__(
        self,
        lm: LM,
        prompt: list[int],
        sampler: Sampler,
        max_new_tokens: int,
        eos: frozenset[int],
        process: Process | None = None,
    ) -> None:
        self.lm, self.sampler, self.process = lm, sampler, process
        self.prompt_length = len(prompt)
        self.tokens = list(prompt)
        self.max_new_tokens, self.eos = max_new_tokens, eos
        self.finish: Finish | None = None

    @property
    def pending(self) -> int:
        return self.tokens[-1]

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_new_tokens - (len(self.tokens) - self.prompt_length)

    def emit(self, tokens: list[int]) -> int:
        """Appends tokens up to the first EOS (kept) or the token limit; returns how many were
        credited.
        """
        kept = tokens[: self.remaining]
        for i, token in enumerate(kept):
            if token in self.eos:
                kept = kept[: i + 1]
                self.finish = "eos"
                break
        self.tokens += kept
        if self.finish is None and self.remaining == 0:
            self.finish = "length"
        return len(kept)

    def commit(self, verification: Verification) -> int:
        """Keeps the accepted K/V rows, emits the accepted tokens and the bonus; returns how many
        were credited.
        """
        base, draft, accepted = self.lm.cache.length, verification.draft, verification.accepted
        emitted = self.emit([draft.tokens[node] for node in accepted] + [verification.bonus])
        # Row `base` is the pending token's, row `base + 1 + n` node n's. Emitted tokens but the
        # last have their row kept.
        self.lm.cache.keep([base, *(base + 1 + node for node in accepted[: emitted - 1])])
        return emitted
