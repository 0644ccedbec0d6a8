"""TapOut: a bandit over stop rules (arXiv:2511.02017)."""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

from msgspec import Meta

from skipbench.config.configurable import Positive, Share
from skipbench.decode.stopping import StopRule


class TapOut(StopRule):
    """UCB1 over confidence thresholds: every round plays the arm of the largest upper bound.

    The reward of a round is `blend * accepted / max_steps + (1 - blend) * accepted / drafted`.

    REIMPLEMENTATION, CONSTANTS UNVERIFIED: the paper's rules are several; here they are one rule at
    several thresholds, and the blend is a guess of ours.

    >>> rule = TapOut(thresholds=[0.4, 0.8])
    >>> rule.update(accepted=1, drafted=10)  # arm 0.4 was played; now the other one
    >>> rule.threshold
    0.8
    """

    threshold: float = field(default=0.0, init=False)
    confidence: str = field(default="top", init=False)  # type: ignore[assignment]  # no setting here
    max_steps: Positive = 12
    """K, maximum draft steps per round."""
    thresholds: Annotated[Sequence[Share], Meta(min_length=2)] = (0.2, 0.4, 0.6, 0.8, 0.95)
    """The arms: a draft token whose probability is below it is the last one."""
    blend: Share = 0.5
    """Share of the accepted length in the reward, 0 to 1; the rest is the acceptance rate."""

    carried = ("plays", "rewards")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.plays = [0] * len(self.thresholds)
        self.rewards = [0.0] * len(self.thresholds)
        self._choose()

    def _choose(self) -> None:
        """UCB1: mean reward and sqrt(2 ln t / n); arms that were not played come first."""
        bounds = [
            reward / n + math.sqrt(2 * math.log(sum(self.plays)) / n) if n else math.inf
            for n, reward in zip(self.plays, self.rewards, strict=True)
        ]
        self._arm = bounds.index(max(bounds))
        self.threshold = self.thresholds[self._arm]

    def update(self, accepted: int, drafted: int) -> None:
        if drafted == 0:
            return
        length, rate = accepted / self.max_steps, accepted / drafted
        self.plays[self._arm] += 1
        self.rewards[self._arm] += self.blend * length + (1 - self.blend) * rate
        self._choose()

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self._choose()
