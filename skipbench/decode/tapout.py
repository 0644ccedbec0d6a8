"""TapOut: a bandit over stop rules (arXiv:2511.02017)."""

import math
from collections.abc import Sequence
from typing import Any

from skipbench.errors import SkipbenchError


class TapOut:
    """UCB1 over confidence thresholds: every round plays the one whose reward may be largest.

    The reward of a round is `blend * accepted / max_steps + (1 - blend) * accepted / drafted`.

    REIMPLEMENTATION, CONSTANTS UNVERIFIED: the paper's rules are several; here they are one rule at
    several thresholds, and the blend is a guess of ours.

    Args:
        max_steps: K, most draft steps per round.
        thresholds: the arms: a draft token whose probability is below it is the last one.
        blend: share of the accepted length in the reward, 0 to 1; the rest is the acceptance rate.

    Raises:
        SkipbenchError: a number out of range, or fewer than two thresholds.
    """

    def __init__(
        self,
        max_steps: int = 12,
        thresholds: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 0.95),
        blend: float = 0.5,
    ) -> None:
        if max_steps < 1 or not 0 <= blend <= 1 or len(thresholds) < 2:
            raise SkipbenchError(
                f"stop rule: {max_steps=}, {blend=}, thresholds={list(thresholds)}; wanted "
                "max_steps of 1 or more, blend from 0 to 1, and two thresholds or more"
            )
        if not all(0 <= threshold <= 1 for threshold in thresholds):
            raise SkipbenchError(
                f"stop rule: thresholds={list(thresholds)}; wanted numbers from 0 to 1"
            )
        self.max_steps, self.thresholds, self.blend = max_steps, list(thresholds), blend
        self._plays = [0] * len(self.thresholds)
        self._rewards = [0.0] * len(self.thresholds)
        self._choose()

    def begin(self) -> None:
        """The bandit goes on from prompt to prompt."""

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
        """`accepted` of `drafted` tokens of a round were right."""
        if drafted == 0:
            return
        length, rate = accepted / self.max_steps, accepted / drafted
        self._plays[self._arm] += 1
        self._rewards[self._arm] += self.blend * length + (1 - self.blend) * rate
        self._choose()

    @property
    def state_dict(self) -> dict[str, Any]:
        """Plays and rewards per arm."""
        return {"plays": list(self._plays), "rewards": list(self._rewards)}

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self._plays, self._rewards = list(state["plays"]), list(state["rewards"])
        self._choose()
