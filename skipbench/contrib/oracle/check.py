"""The verdict on one output by itself: every token beside the model's own greedy choice."""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from skipbench.decode.lossless import Kind, Verdict, judged, logit_blocks, own_error, tie_bound
from skipbench.lm.model import LM


def counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Outputs by kind, the worst first."""
    order: tuple[Kind, ...] = ("wrong", "unchecked", "tie", "sampled", "identical")
    found = Counter(verdict.kind for verdict in verdicts)
    return {str(kind): found[kind] for kind in order if found[kind]}


@torch.inference_mode()
def check(
    lm: LM,
    prompt: list[int],
    output: list[int],
    eos: frozenset[int] = frozenset(),
    ended: bool = False,
    own: bool = False,
    limit: int | None = None,
) -> tuple[Verdict, list[int]]:
    """Judges one greedy output, token ids after the prompt's, with ties as wide as `own_error`
    allows; gives the model's choice at every position [n + 1], too. It may overwrite the cache.

    Args:
        eos: ids that end an output.
        ended: the engine stopped by itself, so that an EOS has to follow the last token.
        own: as of `logit_blocks`.
        limit: tokens that were asked for.
    """
    best, verdict, ties = list[int](), None, list[Verdict]()
    for logits in logit_blocks(lm, prompt, output, own):
        at, choice = len(best), logits.argmax(-1).tolist()
        best += choice
        given = output[at : at + len(logits)]
        for place, (wanted, token) in enumerate(zip(choice, given, strict=False), at):
            if wanted == token or verdict is not None:
                continue
            found = judged(logits[place - at], wanted, token, place, lm.dtype)
            if found.kind == "wrong":
                bound = own_error(lm, prompt + output[:place], wanted, {token})
                found = found if bound is None else replace(found, kind="tie", bound=bound)
            if found.kind == "tie":
                ties.append(found)
            else:
                verdict = found
    pairs = enumerate(output[:-1], 1)
    over = next((i for i, token in pairs if token in eos or i == limit), None)
    if over is not None and (verdict is None or over <= (verdict.position or 0)):
        verdict = Verdict("wrong", position=over, given=output[over])
    if verdict is None and ended and not {*output[-1:]} & eos and best[-1] not in eos:
        verdict = _early_end(lm, logits[-1], prompt + output, len(output), eos)
    judgement = verdict or next(iter(ties), None) or Verdict("identical")
    return replace(judgement, tokens=len(output), ties=len(ties)), best


def _early_end(
    lm: LM, logits: Tensor, tokens: list[int], position: int, eos: frozenset[int]
) -> Verdict | None:
    """An output that ends where the model goes on; None where an EOS ties with its choice."""
    wanted = int(logits.argmax())
    likely = max((float(logits[token]) for token in eos), default=-math.inf)
    near = float(logits[wanted]) - likely <= tie_bound(float(logits.abs().max()), lm.dtype)
    if near or own_error(lm, tokens, wanted, eos) is not None:
        return None
    return Verdict("wrong", position=position, wanted=wanted, wanted_logit=float(logits[wanted]))
