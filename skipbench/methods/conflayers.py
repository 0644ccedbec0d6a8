"""ConfLayers: layers skipped by the confidence of their states, arXiv:2604.14612.

One pass over the last tokens gives every layer a confidence, from the entropy of its hidden vectors
taken as a distribution, without the head. A layer that is less confident than its neighbours is
left out; how many neighbours count follows the curvature of the confidence over the layers. A set
is judged over some rounds and replaced while it does not do well.

REIMPLEMENTATION, CONSTANTS UNVERIFIED: the algorithm is that of the published code as read here;
the paper's text was not at hand.

| published code | here | |
|---|---|---|
| confidence | `confidence(x)` | 1 - H(softmax(x)) / ln D |
| lambda | `self.lam` | standard deviations below the neighbours' mean; held by the ratio |
| skip ratio r | `ratio` | least share of the inner layers to skip, r + 0.25 the most |
| bayes_interval | `interval` | rounds in which a set is judged |
| context_window | `window` | tokens of the pass |

Deviations from the published code, with their switches: docs/methods/conflayers.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skipbench.decode.drafting import Drafter
from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.decode.stopping import StopRule
from skipbench.decode.trial_passes import forward_committed
from skipbench.errors import SkipbenchError
from skipbench.skipset import SkipSet

SPREAD, LAMBDA_STEP = 0.25, 0.05  # width of the range of ratios; change of lambda per choice
MOST_CHOICES, GOOD_ACCEPTED, GOOD_SHARE = 1000, 4, 0.95  # when no other set is chosen any more


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
    bend = _centred((bend - bend.min()) / (bend.max() - bend.min() + 1e-8))
    found = []
    for i, value in enumerate(z):
        half = (2 + int(5 * leading * bend[i] * (i + 1) / layers)) // 2
        near = np.concatenate((z[max(0, i - half) : i], z[i + 1 : i + half + 1]))
        if value < near.mean() - lam * near.std():
            found.append(i)
    return found


def _centred(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scaled within 0 to 1 so that the mean becomes 0.5."""
    mean, low, high = x.mean(), x.min(), x.max()
    if np.isclose(low, high):
        return np.full_like(x, 0.5)
    scale = min(0.5 / (high - mean), 0.5 / (mean - low))
    found: NDArray[np.float64] = np.clip(0.5 + scale * (x - mean), 0, 1)
    return found


class ConfLayers:
    """Whole layers skipped by confidence.

    Args:
        layers: L, decoder layers of the model, 3 or more.
        name: name of the method in records and tables.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        ratio: least share of the inner layers to skip, 0 to 0.75.
        window: tokens of the pass that the confidence is taken from.
        interval: rounds in which a set is judged; one that accepts less than one token per round
            is replaced after half of them.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: a number out of range, or a model of fewer than 3 layers.
    """

    def __init__(
        self,
        layers: int,
        name: str,
        stop: StopRule,
        ratio: float = 0.45,
        window: int = 32,
        interval: int = 25,
        tree: Sequence[int] = (),
    ) -> None:
        if not 0 <= ratio <= 1 - SPREAD or window < 1 or interval < 2 or layers < 3:
            raise SkipbenchError(
                f"conflayers: {ratio=}, {window=}, {interval=}, {layers=}; wanted a ratio from 0 "
                f"to {1 - SPREAD}, a window of 1 or more, an interval of 2 or more, and 3 layers "
                "or more"
            )
        self.name, self.layers, self.ratio = name, layers, ratio
        self.window, self.interval = window, interval
        self.drafter = Drafter(stop, tree)
        self.skip = self._of(range(1, layers - 1, 2))
        self.lam, self.choices, self.best = 0.0, 0, 0.0
        self._rounds: list[tuple[int, int]] = []  # accepted and drafted, since the last choice

    def _of(self, chosen: Sequence[int]) -> SkipSet:
        return SkipSet.of(self.layers, [2 * i + k for i in chosen for k in (0, 1)])

    def begin(self, state: State) -> None:
        self.drafter.begin()
        self.log: dict[str, list[Any]] = {"confidence": []}

    def propose(self, state: State, budget: int) -> Draft:
        return self.drafter.propose(state, self.skip, budget)

    def adapt(self, state: State, verification: Verification) -> None:
        self.drafter.update(verification)
        if len(state.output) < self.window + 2 or self.choices >= MOST_CHOICES:
            return
        self._rounds.append((len(verification.accepted), verification.draft.steps))
        if state.finish is None and (not self.choices or self._judged_badly()):
            self._choose(state)

    def _judged_badly(self) -> bool:
        """Whether the rounds since the last choice call for another one."""
        accepted, drafted = map(sum, zip(*self._rounds, strict=True))
        rounds = len(self._rounds)
        if rounds == self.interval // 2 and accepted < rounds:
            return True
        if rounds < self.interval:
            return False
        mean = accepted / rounds
        if mean > GOOD_ACCEPTED and accepted > GOOD_SHARE * drafted:
            self.choices = MOST_CHOICES
            return False
        self.best = max(self.best, mean)
        return True

    def _choose(self, state: State) -> None:
        """One pass of the full model over scratch rows, and the set of its confidences."""
        states: list[Tensor] = []
        at = state.lm.cache.length - self.window
        forward_committed(state, at, self.window, hidden_states=states)
        inner = range(1, self.layers - 1)
        values = [confidence(states[2 * i + 1]) + confidence(states[2 * i + 2]) for i in inner]
        chosen = [inner[n] for n in below_neighbours(values, self.layers, self.lam)]
        share = len(chosen) / len(inner)
        if share < self.ratio:
            self.lam -= LAMBDA_STEP
        elif share > self.ratio + SPREAD:
            self.lam += LAMBDA_STEP
        if chosen:
            self.skip = self._of(chosen)
        self.choices += 1
        self._rounds = []
        self.log["confidence"].append([round(v, 5) for v in values])

    @property
    def state_dict(self) -> dict[str, Any]:
        """The set, and the state of the choices."""
        return {
            "skip": str(self.skip),
            "lam": self.lam,
            "choices": self.choices,
            "best": self.best,
            "rounds": self._rounds,
        }

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self.skip, self.lam = SkipSet.parse(state["skip"], self.layers), state["lam"]
        self.choices, self.best = state["choices"], state["best"]
        self._rounds = [(a, s) for a, s in state["rounds"]]
