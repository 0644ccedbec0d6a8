"""`Verdict`: what is said of one output, and where two tokens are too close to be told apart."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import torch
from torch import Tensor

Kind = Literal["identical", "tie", "wrong", "unchecked", "sampled"]
TIE_ULPS = 2
END = "stop or EOS rule"  # a cause


class Cause(msgspec.Struct, frozen=True):
    """The likely reason of a divergence."""

    name: str
    evidence: str  # what was tried on the output, and what came out


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output beside the model's own greedy choices.

    `tie`: it parts from them only where two logits are closer than the rounding of the stated
    dtype; the fields are those of its first tie. `wrong`: those of its first token that cannot be
    explained so. `unchecked`: `error` says why. `sampled`: drawn, and judged by a test of all.
    """

    kind: Kind
    id: str = ""
    tokens: int = 0  # length of the output, in tokens
    position: int | None = None  # place in the output, counted from 0
    wanted: int | None = None  # the model's token there; None for the end of the output
    given: int | None = None  # the output's token there; None for its end
    wanted_logit: float | None = None
    given_logit: float | None = None
    bound: float | None = None  # largest gap that the stated dtype's rounding can decide
    ties: int = 0
    cause: Cause | None = None
    error: str = ""
    logprob_difference: float | None = None  # largest, from the engine's log-probabilities

    @property
    def gap(self) -> float | None:
        """The wanted token's logit above the given one's; None where one of the two is an end."""
        if self.wanted_logit is None or self.given_logit is None:
            return None
        return self.wanted_logit - self.given_logit


def tie_bound(largest: float, dtype: torch.dtype) -> float:
    """Gap of two logits up to which rounding to `dtype` can decide between them; `largest` is the
    largest magnitude among the logits of the position.
    """
    return TIE_ULPS * torch.finfo(dtype).eps * largest


def judged(logits: Tensor, wanted: int, given: int, position: int, dtype: torch.dtype) -> Verdict:
    """A tie or a wrong token where an output parts; `unchecked` if logits [V] are not finite."""
    largest = float(logits.abs().max())
    if not math.isfinite(largest):
        error = "logits in float32 are not finite"
        return Verdict("unchecked", "", 0, position, wanted, given, error=error)
    bound = tie_bound(largest, dtype)
    a, b = float(logits[wanted]), float(logits[given])
    kind: Kind = "tie" if abs(a - b) <= bound else "wrong"
    return Verdict(kind, "", 0, position, wanted, given, a, b, bound)


def counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Outputs by kind, the worst first."""
    order: tuple[Kind, ...] = ("wrong", "unchecked", "tie", "sampled", "identical")
    found = Counter(verdict.kind for verdict in verdicts)
    return {str(kind): found[kind] for kind in order if found[kind]}
