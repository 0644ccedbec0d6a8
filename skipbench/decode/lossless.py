"""The verdict on one output beside the model's own choices: teacher-forced, in float32 or as the
engine computes, in blocks; and where two tokens are too close to be told apart.
"""

import math
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

Kind = Literal["identical", "tie", "wrong", "unchecked", "sampled"]
TIE_ULPS = 2
BLOCK = 2**28  # logits of one block of rows: 1 GiB in float32
LAST = 256  # tokens after which the engine's error is measured
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


def logit_blocks(lm: LM, prompt: list[int], output: list[int], own: bool) -> Iterator[Tensor]:
    """Logits [rows, V], a block after the other: of the token after the prompt, and after every
    token of the output, n + 1 rows in all.

    Args:
        own: computed by the model's engine in its dtype instead of float32. So are models without
            weights in numbers (quantised).
    """
    tokens, size = prompt + output, max(1, BLOCK // lm.model.get_input_embeddings().weight.shape[0])
    for first in range(len(prompt), len(tokens) + 1, size):
        end = min(first + size, len(tokens) + 1)
        rows, text = end - first, tokens[: end - 1]
        wide = None if own else lm.float32_logits(text, rows)
        if wide is None:
            if lm.cache.capacity < len(text):
                lm.allocate(len(tokens))
            hidden = lm.run(lm.embed(text), TokenRows.chain(0, len(text)))
            wide = lm.head(hidden[-rows:]).float()
        yield wide


@torch.inference_mode()
def own_error(lm: LM, tokens: list[int], wanted: int, others: Collection[int]) -> float | None:
    """The gap that the engine's own rounding can decide after `tokens`, if one of `others` is that
    near to the `wanted` token: in fewer bits than float32 sums of many layers err by more than one
    rounding. It is twice the largest error of a logit after the last `LAST` tokens, which a pass
    over them finds; it overwrites the cache. `None` in float32.
    """
    if lm.dtype == torch.float32 or not others:
        return None
    parts = tokens[:-LAST] or tokens[:1], tokens[1:][-LAST:]
    wide, ours = (next(logit_blocks(lm, *parts, own)).cpu() for own in (False, True))
    bound, near = 2 * float((wide - ours).abs().max()), float(wide[-1, [*others]].max())
    return bound if abs(float(wide[-1, wanted]) - near) <= bound else None


@torch.inference_mode()
def compare(lm: LM, prompt: list[int], wanted: list[int], given: list[int]) -> Verdict:
    """Judges an output beside another one of the same prompt, the wanted one, by the logits in
    float32 where they part, with ties as wide as `own_error` allows. One that is the other's
    beginning is wrong.
    """
    if wanted == given:
        return Verdict("identical")
    pairs = list(zip(wanted, given, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if at == len(pairs):
        return Verdict("wrong", position=at)
    a, b = pairs[at]
    tokens = prompt + wanted[:at]
    try:
        wide = lm.float32_logits(tokens)
        wide = lm.prefill(tokens).float() if wide is None else wide
        verdict = judged(wide[0], a, b, at, lm.dtype)
        bound = own_error(lm, tokens, a, {b}) if verdict.kind == "wrong" else None
    except Exception as error:  # such as memory: the output is there, its check is not
        text = f"{type(error).__name__}: {error}"
        return Verdict("unchecked", position=at, wanted=a, given=b, error=text)
    return verdict if bound is None else replace(verdict, kind="tie", bound=bound)
