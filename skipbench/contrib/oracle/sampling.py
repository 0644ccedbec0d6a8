"""Tests of sampled outputs against the model's own distribution after temperature, top-k, top-p."""

from typing import NamedTuple

import msgspec
import numpy as np
import torch
from scipy import stats
from torch import Tensor

from skipbench.decode.lossless import Cause, Verdict, tie_bound
from skipbench.decode.sampling import Sampler

BINS = 20
PER_BIN = 5  # tokens of a bin that are expected at least
LIKELIER = 5.0  # nats by which other settings must explain the tokens better to be named
LEAST = 1e-9  # probability of a token that a setting cannot emit, for its likelihood
FAILS = 0.001  # p-value below which sampled outputs count as wrong


class SamplingTest(msgspec.Struct, frozen=True):
    """All sampled tokens beside the model's distribution.

    Attributes:
        tokens: their number.
        p_value: where each lies in its distribution, most likely first, is uniform; None for too
            few tokens.
        outside: outputs with a token that the settings cannot emit.
        cause: settings that explain the tokens better.
    """

    tokens: int
    p_value: float | None
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
            "temperature applied twice": self._replace(temperature=self.temperature**2),
            "temperature not applied": self._replace(temperature=1.0),
            "top-p not applied": self._replace(top_p=1.0),
            "top-k not applied": self._replace(top_k=0),
        }
        return {name: other for name, other in found.items() if other != self}


class Draws:
    """Sampled outputs, tested together; `seed`: of places within a token's mass."""

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        self.sampler = Sampler(*settings)
        self._others = {name: Sampler(*s) for name, s in settings.others().items()}
        self._likelihood = dict.fromkeys(["", *self._others], 0.0)
        self._random = np.random.default_rng(seed)
        self.places, self.outside = list[float](), 0

    def add(self, ids: list[int], logits: Tensor, dtype: torch.dtype) -> Verdict:
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

    def result(self) -> SamplingTest:
        """The test of all outputs that were added."""
        n, p_value = len(self.places), None
        if (bins := min(BINS, n // PER_BIN)) > 1:
            counts = np.histogram(self.places, bins, (0, 1))[0]
            p_value = float(stats.chisquare(counts).pvalue)
        name, most = max(self._likelihood.items(), key=lambda pair: pair[1])
        more, cause = most - self._likelihood[""], None
        if name and more >= LIKELIER:
            cause = Cause(name, f"the tokens are {more:.1f} nats more likely so")
        return SamplingTest(n, p_value, self.outside, cause)
