"""Sampling: logits to the distribution that is sampled, for draft and target alike."""

import numpy as np
import torch
from torch import Tensor

from skipbench.config.configurable import check_decoding

INFINITY, MINUS_INFINITY = 0x7F80, 0xFF80  # bits of bfloat16; above each of them are NaNs


def best_tokens(logits: Tensor) -> Tensor:
    """Index [T] of the largest of every row of [T, V], of equal ones the first, and of a NaN where
    there is one.

    On a CPU by numpy, whose search is vectorised: torch's takes ten times as long.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    if logits.dtype == torch.bfloat16:
        # Positive numbers are ordered as their bits are, and lie above all negative ones; to widen
        # them takes longer than to search.
        bits = logits.view(torch.int16).numpy()
        best = bits.argmax(-1)
        top = np.take_along_axis(bits, best[:, None], -1)
        unsigned = bits.view(np.uint16)
        if top.min() > 0 and top.max() <= INFINITY and unsigned.max() <= MINUS_INFINITY:
            return torch.from_numpy(best)
    return torch.from_numpy(logits.float().numpy().argmax(-1))


class Sampler:
    """Temperature, top-k and top-p in this order, as Hugging Face applies them; temperature 0 is
    greedy.

    Raises:
        SkipbenchError: a value is out of range.
    """

    def __init__(
        self, temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0
    ) -> None:
        check_decoding(temperature, top_p, top_k)
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.greedy = temperature == 0
        # On the host: one uniform number decides one token on every device alike.
        self.generator = torch.Generator().manual_seed(seed)

    def probs(self, logits: Tensor) -> Tensor:
        """[T, V] logits -> [T, V] probabilities after temperature, top-k and top-p."""
        logits = logits.float() / self.temperature
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
