"""Logits to the distribution that is sampled, and the most likely tokens of many rows at once."""

from typing import NamedTuple

import torch
from torch import Tensor

from skipbench.config.configurable import Decoding, typed
from skipbench.config.extensions import optional


def best_tokens(logits: Tensor) -> Tensor:
    """Index [T] of the largest of every row of [T, V], of equal ones the first, and of a NaN where
    there is one.
    """
    found: Tensor | None = None
    if logits.device.type == "cpu":  # where torch's search takes ten times as long
        found = optional("kernel", "best_tokens")(logits)
    return logits.argmax(-1) if found is None else found


def choices(logits: Tensor, k: int = 0) -> tuple[list[int], list[list[int]]]:
    """The most likely token of every row of [T, V], of equal ones the first, -1 where its logit is
    not finite; and the `k` most likely ones, most likely first, at most V of them.
    """
    k = min(k, logits.shape[-1])
    if logits.device.type == "cpu":
        found: tuple[list[int], list[list[int]]] | None = optional("kernel", "choices")(logits, k)
        if found is not None:
            return found
    best = finite_best(logits)
    parts = [best[:, None], logits.topk(k).indices] if k else [best[:, None]]
    table = torch.cat(parts, 1).tolist()  # one copy to the host
    return [row[0] for row in table], [row[1:] for row in table] if k else []


def finite_best(logits: Tensor) -> Tensor:
    """The most likely token per row, -1 where its logit is not finite."""
    best = best_tokens(logits)
    return best.masked_fill(~logits.gather(-1, best[:, None])[:, 0].isfinite(), -1)


class Logprob(NamedTuple):
    """The model's own log-probabilities at one token, before processors and temperature.

    Attributes:
        token: the emitted id.
        logprob: its natural logarithm of the probability.
        top: the most likely ids with theirs, most likely first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def logprobs(logits: Tensor, tokens: list[int], top: int) -> list[Logprob]:
    """Log-probabilities of the tokens [T] by the logits [T, V], with the `top` most likely ones."""
    scores = logits.float().log_softmax(-1)
    values, ids = scores.topk(top)
    own = scores.gather(-1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    best = [list(zip(*pair, strict=True)) for pair in pairs]
    return [Logprob(*parts) for parts in zip(tokens, own, best, strict=True)]


COLDEST = 1e-30  # a temperature below it is this one: float32 has its inverse, too


class Sampler:
    """Temperature, top-k and top-p in this order, as Hugging Face applies them; temperature 0 is
    greedy. Raises SkipbenchError for a value out of range.
    """

    def __init__(
        self, temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0
    ) -> None:
        asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
        typed(asked, Decoding, "decoding")
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.greedy = temperature == 0
        # On the host: one uniform number decides one token on every device alike.
        self.generator = torch.Generator().manual_seed(seed)

    def probs(self, logits: Tensor) -> Tensor:
        """[T, V] logits -> [T, V] probabilities after temperature, top-k and top-p."""
        logits = logits.float()
        logits = (logits - logits.max(-1, keepdim=True).values) / max(self.temperature, COLDEST)
        if 0 < self.top_k < logits.shape[-1]:
            smallest = logits.topk(self.top_k, -1).values[:, -1:]
            logits = logits.masked_fill(logits < smallest, float("-inf"))
        p = logits.softmax(-1)
        if self.top_p < 1:
            ordered, index = p.sort(-1, descending=True)
            # cut where the tokens before already reach top_p
            cut = ordered.cumsum(-1) - ordered >= self.top_p
            p = p.masked_fill(cut.scatter(-1, index, cut), 0.0)
            p = p / p.sum(-1, keepdim=True)
        return p

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return float(torch.rand((), generator=self.generator))

    def draw(self, p: Tensor) -> int:
        """One index drawn from the distribution p [V]."""
        return int(self.pick(p))

    def pick(self, p: Tensor) -> Tensor:
        """One index [1] drawn from p [V] by inversion, on its device and without waiting for it."""
        cumulative = p.double().cumsum(-1)
        index = torch.searchsorted(cumulative, self.uniform() * cumulative[-1:], right=True)
        largest = len(p) - 1 - (p != 0).byte().flip(0).argmax()  # of those that can be drawn
        return torch.minimum(index, largest)
