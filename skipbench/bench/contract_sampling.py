"""The part of the contract about sampling: emitted tokens against the model's own distribution."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skipbench.bench.contract import PROMPT, must
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.lm.model import LM

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@torch.inference_mode()
def _conditionals(model: Any, texts: list[list[int]], sampler: Sampler) -> Floats:
    """The model's own distribution of every token of every text, given the tokens before it.

    Returns:
        [texts, length, V].
    """
    start, exact = PROMPT[:3], []
    for at in range(len(texts[0])):
        prefixes = {tuple(text[:at]): None for text in texts}
        ids = torch.tensor([[*start, *prefix] for prefix in prefixes])
        p = sampler.probs(model(ids, use_cache=False).logits[:, -1]).double().numpy()
        rows = dict(zip(prefixes, p, strict=True))
        exact.append(np.stack([rows[tuple(text[:at])] for text in texts]))
    return np.stack(exact, 1)


def p_value(p: Floats, tokens: Ints, groups: Ints) -> float:
    """Chi-square of how often each group of tokens was emitted, against the model's conditionals.

    Given what stands before it, a token is in a group with the sum of its probabilities there. The
    residuals of all steps add up with the sum of their covariances.

    Args:
        p: [steps, V] the model's distribution at each step.
        tokens: [steps] what was emitted.
        groups: [steps, V] group of each token that might have been.
    """
    expected = np.bincount(groups.ravel(), p.ravel())
    frequent = np.flatnonzero(expected >= 5)  # the others are one more group
    own = np.stack([np.where(groups == g, p, 0).sum(1) for g in frequent], 1)
    emitted = groups[np.arange(len(tokens)), tokens]
    residual = (emitted[:, None] == frequent).sum(0) - own.sum(0)
    covariance = np.diag(own.sum(0)) - own.T @ own
    inverse = np.linalg.pinv(covariance, hermitian=True)
    rank = np.linalg.matrix_rank(covariance, hermitian=True)
    from scipy import stats  # a machine with a GPU may not have it

    return float(stats.chi2.sf(residual @ inverse @ residual, rank))


def check_sampling(
    lm: LM,
    method: Method,
    runs: int = 300,
    length: int = 7,
    temperature: float = 0.8,
    top_p: float = 0.95,
    top_k: int = 0,
    drafts: bool = True,
) -> None:
    """Sampled tokens are distributed as the model says: by rank in its distribution, by token, and
    by token behind each token.

    Args:
        drafts: whether the method must have drafted; a check of a method that never does proves
            nothing.
    """
    texts, steps = [], 0
    for seed in range(runs):
        sampler = Sampler(temperature, top_p, top_k, seed=seed)
        out = generate(lm, method, PROMPT[:3], length, sampler=sampler)
        texts.append(out.tokens)
        steps += sum(r.steps for r in out.rounds)
    must(steps > 0 or not drafts, "no token was drafted")
    p = _conditionals(lm.model, texts, Sampler(temperature, top_p, top_k))
    tokens = np.array(texts)
    possible = (np.take_along_axis(p, tokens[..., None], -1) > 0).all()
    must(bool(possible), "a token was emitted that top-p leaves out")
    # the first token is of the prefill, the same in every method
    p, before, tokens = p[:, 1:].reshape(-1, p.shape[-1]), tokens[:, :-1].ravel(), tokens[:, 1:]
    ids = np.broadcast_to(np.arange(p.shape[-1]), p.shape)
    groups = {
        "rank": p.argsort(1).argsort(1),
        "token": ids,
        "pair": ids + p.shape[-1] * before[:, None],
    }
    for name, of in groups.items():
        value = p_value(p, tokens.ravel(), of)
        must(value > 1e-4, f"the tokens are not drawn as the model says: p = {value:.1e} by {name}")
