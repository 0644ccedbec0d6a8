"""ConfLayers: layers skipped by the confidence of their states, arXiv:2604.14612.

One pass over the last tokens gives every layer a confidence, from the entropy of its hidden vectors
taken as a distribution, without the head. A layer that is less confident than its neighbours is
left out; how many neighbours count follows the curvature of the confidence over the layers. A set
is judged over some rounds and replaced while it does not do well.

REIMPLEMENTATION, CONSTANTS UNVERIFIED: the algorithm is that of the published code as read here;
the paper's text was not available.

| published code | here | |
|---|---|---|
| confidence | `confidence(x)` | 1 - H(softmax(x)) / ln D |
| lambda | `self.lam` | standard deviations below the neighbours' mean; held by the ratio |
| skip ratio r | `ratio` | minimum share of the inner layers to skip; the maximum is r + 0.25 |
| bayes_interval | `interval` | rounds in which a set is judged |
| context_window | `window` | tokens of the pass |

Deviations from the published code, with their switches: docs/methods/conflayers.md.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta
from torch import Tensor

from skipbench.config.configurable import Positive, TwoOrMore
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.trial_passes import recent_states
from skipbench.draft_plan import DraftPlan

SPREAD, LAMBDA_STEP = 0.25, 0.05  # width of the range of ratios; change of lambda per choice
MAX_CHOICES, GOOD_ACCEPTED, GOOD_SHARE = 1000, 4, 0.95  # when no other set is chosen any more


def confidence(x: Tensor) -> float:
    """1 - H(softmax(x)) / ln D, mean over the rows of hidden states [rows, D]."""
    p = x.float().softmax(-1)
    entropy = -(p * (p + 1e-12).log()).sum(-1)
    return 1 - float(entropy.mean()) / float(np.log(x.shape[-1]))


def below_neighbours(values: Sequence[float], layers: int, lam: float) -> list[int]:
    """Indices of the confidences that lie `lam` standard deviations below their neighbours' mean.

    Neighbours reach farther where the curve bends up, and towards the last layers.
    """
    if len(values) < 2:
        return []
    z = (np.asarray(values) - np.mean(values)) / (np.std(values) + 1e-6)
    bend = np.gradient(np.gradient(z))
    equal = bend != bend[0]
    leading = int(np.argmax(equal)) or len(bend)  # values at the front that are equal
    bend = (bend - bend.min()) / (bend.max() - bend.min() + 1e-8)
    mean, low, high = bend.mean(), bend.min(), bend.max()
    if np.isclose(low, high):
        bend = np.full_like(bend, 0.5)
    else:  # scaled within 0 to 1 so that the mean becomes 0.5
        scale = min(0.5 / (high - mean), 0.5 / (mean - low))
        bend = np.clip(0.5 + scale * (bend - mean), 0, 1)
    below = []
    for i, value in enumerate(z):
        half = (2 + int(5 * leading * bend[i] * (i + 1) / layers)) // 2
        near = np.concatenate((z[max(0, i - half) : i], z[i + 1 : i + half + 1]))
        if value < near.mean() - lam * near.std():
            below.append(i)
    return below


class ConfLayers(SkipMethod):
    """Whole layers skipped by confidence.

    >>> from skipbench.decode.stopping import Fixed
    >>> method = ConfLayers(name="conflayers", layers=6, stop=Fixed())
    >>> str(method.skip)  # every second inner layer, before the first choice
    'attn:1,3;mlp:1,3'
    >>> below_neighbours([0.9, 0.2, 0.9, 0.9], layers=6, lam=0.0)
    [1]
    """

    layers: Annotated[int, Meta(ge=3)]
    ratio: Annotated[float, Meta(ge=0, le=1 - SPREAD)] = 0.45
    """Minimum share of the inner layers to skip, 0 to 0.75."""
    window: Positive = 32
    """Tokens of the pass that the confidence is taken from."""
    interval: TwoOrMore = 25
    """Rounds that judge a set, 2 or more; half of them if fewer tokens than rounds are accepted."""

    logged = ("confidence",)
    carried = ("skip", "lam", "choices", "best", "rounds")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skip = self.cheaper(DraftPlan.of_layers(self.layers, range(1, self.layers - 1, 2)))
        self.lam, self.choices, self.best = 0.0, 0, 0.0
        self.rounds: list[tuple[int, int]] = []  # accepted and drafted, since the last choice

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        if len(state.output) < self.window + 2 or self.choices >= MAX_CHOICES:
            return
        self.rounds.append((len(verification.accepted), verification.draft.steps))
        if state.finish is None and (not self.choices or self._is_bad()):
            self._choose(state)

    def _is_bad(self) -> bool:
        """Whether the rounds since the last choice call for another one."""
        accepted, drafted = map(sum, zip(*self.rounds, strict=True))
        rounds = len(self.rounds)
        if rounds < self.interval:
            return rounds == self.interval // 2 and accepted < rounds
        if accepted > GOOD_ACCEPTED * rounds and accepted > GOOD_SHARE * drafted:
            self.choices = MAX_CHOICES
            return False
        self.best = max(self.best, accepted / rounds)
        return True

    def _choose(self, state: State) -> None:
        """Chooses a set by the confidences in one pass of the full model."""
        states = recent_states(state, self.window)
        inner = range(1, self.layers - 1)
        values = [confidence(states[2 * i + 1]) + confidence(states[2 * i + 2]) for i in inner]
        chosen = [inner[n] for n in below_neighbours(values, self.layers, self.lam)]
        share = len(chosen) / len(inner)
        self.lam += LAMBDA_STEP * ((share > self.ratio + SPREAD) - (share < self.ratio))
        if chosen:
            self.skip = self.cheaper(DraftPlan.of_layers(self.layers, chosen))
        self.choices, self.rounds = self.choices + 1, []
        self.note(confidence=[round(v, 5) for v in values])
