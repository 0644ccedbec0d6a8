"""The verdict on one output by itself: every token beside the model's own greedy choice."""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from skipbench.decode.lossless import Kind, Verdict, judged, logit_blocks, tie_bound
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
    logprobs: Sequence[float] = (),
    limit: int | None = None,
    least: int = 0,
) -> tuple[Verdict, list[int]]:
    """Judges one greedy output, token ids after the prompt's; gives the model's choice at every
    position [n + 1], too.

    Args:
        eos: ids that end an output.
        ended: the engine stopped by itself, so that an EOS has to follow the last token.
        own: as of `logit_blocks`.
        logprobs: the engine's, one per token of the output, which are compared with the model's.
        limit: tokens that were asked for.
        least: tokens before which an EOS may be emitted, or left out, and ends nothing.
    """
    known = logprobs if len(logprobs) == len(output) else ()
    best, first_tie, verdict, ties, at, gaps = list[int](), None, None, 0, 0, list[float]()
    for logits in logit_blocks(lm, prompt, output, own):
        choice, given = logits.argmax(-1).tolist(), output[at : at + len(logits)]
        best += choice
        for row, (wanted, token) in enumerate(zip(choice, given, strict=False)):
            if wanted != token and wanted in eos and at + row < least:
                wanted = best[at + row] = _without(logits[row], eos)
            if wanted != token and verdict is None:
                found = judged(logits[row], wanted, token, at + row, lm.dtype)
                if found.kind == "tie":
                    ties, first_tie = ties + 1, first_tie or found
                else:
                    verdict = found
        if given and known:
            gaps.append(parted(logits[: len(given)], given, known[at:]))
        at += len(logits)
    pairs = enumerate(output[:-1], 1)
    over = next((i for i, token in pairs if (token in eos and i > least) or i == limit), None)
    if over is not None and (verdict is None or over <= (verdict.position or 0)):
        verdict = Verdict("wrong", position=over, given=output[over])
    if verdict is None and ended and not {*output[-1:]} & eos and best[-1] not in eos:
        verdict = _early_end(logits[-1], len(output), best[-1], eos, lm.dtype)
    judgement = verdict or first_tie or Verdict("identical")
    difference = max(gaps, default=None)
    return replace(judgement, tokens=len(output), ties=ties, logprob_difference=difference), best


def parted(logits: Tensor, ids: list[int], logprobs: Sequence[float]) -> float:
    """Largest difference of log-probabilities of `ids`, by logits [n, V] and by an engine."""
    ours = logits.cpu().log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return float((ours - torch.tensor(logprobs[: len(ids)], dtype=torch.float64)).abs().max())


def _without(logits: Tensor, ids: frozenset[int]) -> int:
    """The largest of logits [V] without those of `ids`."""
    return int(logits.index_fill(0, torch.tensor([*ids], device=logits.device), -math.inf).argmax())


def _early_end(
    logits: Tensor, position: int, wanted: int, eos: frozenset[int], dtype: torch.dtype
) -> Verdict | None:
    """An output that ends where the model goes on; None where an EOS ties with its choice."""
    likely = max((float(logits[token]) for token in eos), default=-math.inf)
    if float(logits[wanted]) - likely <= tie_bound(float(logits.abs().max()), dtype):
        return None
    return Verdict("wrong", position=position, wanted=wanted, wanted_logit=float(logits[wanted]))
