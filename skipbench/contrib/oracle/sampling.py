"""Tests of sampled outputs against the model's own distribution after temperature, top-k, top-p."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, stats
from torch import Tensor

from skipbench.decode.lossless import Cause, Verdict, tie_bound
from skipbench.decode.sampling import Sampler

BINS = 20
PER_BIN = 5  # tokens of a bin that are expected at least
SHARED = 8  # outputs from which on the tokens after a context they share are tested
REPEATS = 999  # multinomial draws per such context
LIKELIER = 5.0  # nats by which other settings must explain the tokens better to be named
LEAST = 1e-9  # probability of a token that a setting cannot emit, for its likelihood
FAILS = 0.001  # p-value below which sampled outputs count as wrong


class SamplingTest(msgspec.Struct, frozen=True):
    """All sampled tokens beside the model's distribution.

    Attributes:
        tokens, contexts: number of tokens, and of contexts that several outputs share.
        p_value: of both tests together; None for too few tokens.
        p_ranks: where each token lies in its distribution, most likely first, is uniform.
        p_contexts: counts of tokens after shared contexts, exact multinomial; None without any.
        detectable: share of tokens drawn elsewhere that is found with 80 % power at p = .05.
        outside: outputs with a token that the settings cannot emit.
        cause: settings that explain the tokens better.
    """

    tokens: int
    contexts: int
    p_value: float | None
    p_ranks: float | None
    p_contexts: float | None
    detectable: float | None
    outside: int
    cause: Cause | None

    @property
    def wrong(self) -> bool:
        return self.outside > 0 or (self.p_value is not None and self.p_value < FAILS)


class Settings(NamedTuple):
    temperature: float
    top_p: float = 1.0
    top_k: int = 0

    def others(self) -> dict[str, "Settings"]:
        """Settings that a fault would make of these."""
        found = {
            "temperature applied twice": self._replace(
                temperature=self.temperature * self.temperature
            ),
            "temperature not applied": self._replace(temperature=1.0),
            "top-p not applied": self._replace(top_p=1.0),
            "top-k not applied": self._replace(top_k=0),
        }
        return {name: other for name, other in found.items() if other != self}


class Draws:
    """Collects sampled outputs, and tests them together. All outputs are known before the first is
    added, so that the tokens after a shared context are counted at once.
    """

    def __init__(
        self, settings: Settings, outputs: list[tuple[list[int], list[int]]], seed: int = 0
    ) -> None:
        """`outputs`: ids of prompts and outputs; `seed`: of places within a token's mass."""
        self.sampler = Sampler(*settings)
        self._others = {name: Sampler(*s) for name, s in settings.others().items()}
        self._likelihood = dict.fromkeys(["", *self._others], 0.0)
        self._random = np.random.default_rng(seed)
        self.places, self._contexts, self.outside = list[float](), list[float](), 0
        after = defaultdict[int, list[int]](list)  # tokens after each context, by its hash
        for prompt, ids in outputs:
            for context, token in _contexts(prompt, ids):
                after[context].append(token)
        self._shared = {key: tokens for key, tokens in after.items() if len(tokens) >= SHARED}

    def add(self, prompt: list[int], ids: list[int], logits: Tensor, dtype: torch.dtype) -> Verdict:
        """Adds an output with logits [n, V] before its tokens; a verdict on impossible ones."""
        token = torch.tensor(ids, device=logits.device)[:, None]
        p = self.sampler.probs(logits)
        chosen = p.gather(-1, token)
        likely = {"": p} | {name: s.probs(logits) for name, s in self._others.items()}
        for name, q in likely.items():
            self._likelihood[name] += float(q.gather(-1, token).clamp(min=LEAST).log().sum())
        order = torch.arange(p.shape[-1], device=p.device)
        before = torch.where((p > chosen) | ((p == chosen) & (order < token)), p, 0.0)
        spread = torch.from_numpy(self._random.random(len(ids)))
        place = before.double().sum(-1).cpu() + spread * chosen[:, 0].double().cpu()
        self.places += place.clamp(0, 1).tolist()
        for row, (context, _) in zip(p, _contexts(prompt, ids), strict=True):
            if (counted := self._shared.pop(context, None)) is not None:
                self._contexts.append(self._multinomial(row.double().cpu().numpy(), counted))
        for at in (chosen[:, 0] == 0).nonzero()[:, 0].tolist():
            row, least = logits[at], float(logits[at][p[at] > 0].min())
            bound = tie_bound(float(row.abs().max()), dtype)
            if least - float(row[ids[at]]) > bound:
                self.outside += 1
                best, given = int(row.argmax()), ids[at]
                below = f"its logit is {least - float(row[given]):.3g} below the cut"
                cause = Cause("token outside of top-k or top-p", below)
                values = float(row[best]), float(row[given])
                return Verdict("wrong", "", len(ids), at, best, given, *values, bound, cause=cause)
        return Verdict("sampled", tokens=len(ids))

    def _multinomial(self, p: NDArray[np.float64], tokens: list[int]) -> float:
        """Exact p-value of the tokens after one context, by draws; ties are split by chance."""
        n = len(tokens)
        cells = np.flatnonzero(p * n >= 1)
        inner = p[cells]
        shares = np.append(inner, max(0.0, 1 - inner.sum()))
        shares /= shares.sum()
        counts = np.array([tokens.count(int(cell)) for cell in cells])
        seen = np.append(counts, n - counts.sum())
        drawn = self._random.multinomial(n, shares, REPEATS)
        expected = np.maximum(shares * n, LEAST)
        found, others = (((x - expected) ** 2 / expected).sum(-1) for x in (seen, drawn))
        more, same = int((others > found + 1e-9).sum()), int((abs(others - found) <= 1e-9).sum())
        return float((more + self._random.random() * (same + 1)) / (REPEATS + 1))

    def result(self) -> SamplingTest:
        """The test of all outputs that were added."""
        n, p_ranks, detectable = len(self.places), None, None
        if (bins := min(BINS, n // PER_BIN)) > 1:
            counts = np.histogram(self.places, bins, (0, 1))[0]
            p_ranks = float(stats.chisquare(counts).pvalue)
            detectable = _detectable(n, bins)
        p_contexts = None
        if self._contexts:
            p_contexts = float(stats.combine_pvalues(np.maximum(self._contexts, LEAST)).pvalue)
        both = [p for p in (p_ranks, p_contexts) if p is not None]
        p_value = min(1.0, len(both) * min(both)) if both else None  # Bonferroni
        name, most = max(self._likelihood.items(), key=lambda pair: pair[1])
        more, cause = most - self._likelihood[""], None
        if name and more >= LIKELIER:
            cause = Cause(name, f"the tokens are {more:.1f} nats more likely so")
        found = p_value, p_ranks, p_contexts, detectable
        return SamplingTest(n, len(self._contexts), *found, self.outside, cause)


def _contexts(prompt: list[int], ids: list[int]) -> Iterator[tuple[int, int]]:
    """A hash of the tokens before each of `ids`, and that token."""
    key = hash((*prompt,))
    for token in ids:
        yield key, token
        key = hash((key, token))


def _detectable(tokens: int, bins: int) -> float:
    """Share of tokens, all moved into one bin, that chi-square finds at p = .05, power 80 %."""
    critical = stats.chi2.isf(0.05, bins - 1)
    noncentrality = optimize.brentq(lambda x: stats.ncx2.sf(critical, bins - 1, x) - 0.8, 1e-9, 1e4)
    return min(1.0, float((noncentrality / (tokens * (bins - 1))) ** 0.5))
