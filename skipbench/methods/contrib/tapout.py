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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plays = [0] * len(self.thresholds)
        self._rewards = [0.0] * len(self.thresholds)
        self._choose()

    def _choose(self) -> None:
        """UCB1: mean reward and sqrt(2 ln t / n); arms that were not played come first."""
        total = sum(self._plays)

        def bound(arm: int) -> float:
            plays = self._plays[arm]
            if not plays:
                return math.inf
            return self._rewards[arm] / plays + math.sqrt(2 * math.log(total) / plays)

        self._arm = max(range(len(self.thresholds)), key=bound)
        self.threshold = self.thresholds[self._arm]

    def update(self, accepted: int, drafted: int) -> None:
        if drafted == 0:
            return
        length, rate = accepted / self.max_steps, accepted / drafted
        self._plays[self._arm] += 1
        self._rewards[self._arm] += self.blend * length + (1 - self.blend) * rate
        self._choose()

    def state_dict(self) -> Any:
        """Plays and rewards per arm."""
        return {"plays": list(self._plays), "rewards": list(self._rewards)}

    def load_state_dict(self, state: Any) -> None:
        self._plays, self._rewards = list(state["plays"]), list(state["rewards"])
        self._choose()
