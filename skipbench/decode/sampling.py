"""Logits to the distribution that is sampled, and the most likely tokens of many rows at once."""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skipbench.config.configurable import check_decoding
from skipbench.lm.fused.elementwise import native_top_k, native_two_best

GROUP = 64  # entries of a row of which the largest is found first
LOW = 0xFFFFFFFF  # bits of a key that hold the index
INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}
"""Bits by type; above them are NaNs, and below them the numbers above zero in their order."""


def best_tokens(logits: Tensor) -> Tensor:
    """Index [T] of the largest of every row of [T, V], of equal ones the first, and of a NaN where
    there is one.

    On a CPU by the native function, or by numpy, whose search is vectorised: torch's takes ten
    times as long.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    table = native_top_k(logits, 0)
    if table is not None and min(table) >= [0]:
        return torch.tensor(table)[:, 0]
    return torch.from_numpy(logits.float().numpy().argmax(-1))


def choices(logits: Tensor, k: int = 0) -> tuple[list[int], list[list[int]]]:
    """The most likely token of every row of [T, V], of equal ones the first, -1 where its logit is
    not finite; and the `k` most likely ones, most likely first, at most V of them.

    On a CPU by the native function, or by numpy on the bits of the numbers: to read each of them
    twice takes less time than a few more calls.
    """
    k = min(k, logits.shape[-1])
    table = native_top_k(logits, k)
    if table is None and (logits.device.type != "cpu" or logits.dtype not in INFINITY):
        best = finite_best(logits)
        table = torch.cat([best[:, None], *([logits.topk(k).indices] if k else [])], 1).tolist()
    if table is not None:
        return [row[0] for row in table], [row[1:] for row in table] if k else []
    wide, infinity = logits.dtype == torch.float32, INFINITY[logits.dtype]
    bits = logits.view(torch.int32 if wide else torch.int16).numpy()
    top = largest(bits, k).tolist() if k else [[best] for best in bits.argmax(-1).tolist()]
    values = [(bits[row, best[0]], bits[row, best[-1]]) for row, best in enumerate(top)]
    unsigned = bits.reshape(-1).view(f"u{bits.itemsize}")
    if not (
        all(last > 0 and first < infinity for first, last in values)
        # a NaN with a sign lies above all others
        and int(unsigned[unsigned.argmax()]) <= infinity | 1 << 8 * bits.itemsize - 1
    ):
        # the bits of a negative number order the other way
        ordered = bits ^ ((bits >> 15 + 16 * wide) & bits.dtype.type(LOW >> 1 + 16 * (not wide)))
        return finite_best(logits).tolist(), largest(ordered, k).tolist() if k else []
    if k > 1 and any(first == last for first, last in values):  # the first may be in no group
        return bits.argmax(-1).tolist(), top
    return [best[0] for best in top], top if k else []


def two_best(logits: Tensor, of_all: bool) -> list[tuple[int, float, float]]:
    """Of every row of [T, V] the likeliest token, its probability and that of the second one;
    without `of_all` both as shares of the first, which needs no sum over the vocabulary.
    """
    if not of_all and (found := native_two_best(logits)) is not None:
        return [(int(best), math.exp(p - p), math.exp(q - p)) for best, p, q in found]
    on_host = logits.device.type == "cpu"
    ids = torch.tensor(choices(logits, 2)[1]) if on_host else logits.topk(2).indices
    top = logits.gather(1, ids)
    whole = logits.float().logsumexp(-1, keepdim=True) if of_all else top[:, :1]
    # doubles hold every index, so that all comes to the host at once
    rows = torch.cat([part.double() for part in (ids, top, whole)], 1).tolist()
    return [(int(best), math.exp(p - all_), math.exp(q - all_)) for best, _, p, q, all_ in rows]


def finite_best(logits: Tensor) -> Tensor:
    """The most likely token per row, -1 where its logit is not finite."""
    best = best_tokens(logits)
    return best.masked_fill(~logits.gather(-1, best[:, None])[:, 0].isfinite(), -1)


def largest(values: NDArray[np.signedinteger], k: int) -> NDArray[np.int64]:
    """Indices [T, k] of the `k` largest entries of every row of [T, V], the largest first.

    They are in the `k` groups of entries whose largest are largest, so that one vectorised pass
    over all entries is enough; torch's topk on a CPU takes several times as long.
    """
    rows, size = values.shape
    groups = size // GROUP
    start = np.arange(0, rows * size, size)[:, None]
    if groups <= k:
        index = start + np.arange(size)
    else:  # group g holds the entries g, g + groups, g + 2 * groups, ...
        whole = groups * GROUP
        tops = np.maximum.reduce(values[:, :whole].reshape(rows, GROUP, groups), axis=1)
        best = _first(tops, np.arange(groups), k) + start
        index = (best[:, :, None] + np.arange(0, whole, groups)).reshape(rows, -1)
        if whole < size:
            index = np.concatenate((index, start + np.arange(whole, size)), 1)
    return _first(values.reshape(-1).take(index), index, k) - start


def _first(
    values: NDArray[np.signedinteger], index: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """Entries of `index` at the `k` largest values of each row, of equal ones the first."""
    keys = (values.astype(np.int64) << 32) - index
    if keys.shape[1] > k:
        keys.partition(keys.shape[1] - k, axis=1)
    best = keys[:, -k:]
    best.sort(axis=1)
    return -best[:, ::-1] & LOW


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


class Sampler:
    """Temperature, top-k and top-p in this order, as Hugging Face applies them; temperature 0 is
    greedy. Raises SkipbenchError for a value out of range.
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
        logits = logits.float()
        logits = (logits - logits.max(-1, keepdim=True).values) / self.temperature
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
