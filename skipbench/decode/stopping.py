"""When a chain of draft steps ends: after a fixed number, at low confidence, or at Self-SD's
adaptive threshold.
"""

from typing import Any, ClassVar, Protocol

from skipbench.errors import SkipbenchError

CONFIDENCES = ("top", "sampled")


class StopRule(Protocol):
    """Decides after every draft step whether to take another, and learns after every round."""

    max_steps: int
    """K: most draft steps of a round."""
    threshold: float
    """Drafting ends behind a token whose confidence is below this; 0 never ends it."""
    confidence: str
    """Under sampling, the confidence of a step: `top`, the draft's largest probability, or
    `sampled`, that of the token drawn.
    """

    def begin(self) -> None:
        """A new prompt starts."""
        ...

    def update(self, accepted: int, drafted: int) -> None:
        """`accepted` of `drafted` tokens of a round were right."""
        ...

    state_dict: dict[str, Any]
    """JSON values that the next prompt starts from; optional."""


def _check(max_steps: int, threshold: float, confidence: str) -> None:
    if max_steps < 1 or not 0 <= threshold <= 1 or confidence not in CONFIDENCES:
        raise SkipbenchError(
            f"stop rule: {max_steps=}, {threshold=}, {confidence=}; wanted max_steps >= 1, "
            f"0 <= threshold <= 1 and confidence {' or '.join(CONFIDENCES)}"
        )


class Fixed:
    """K steps, or fewer where a static confidence threshold ends them (Self-SD Tables 3 and 4).

    Args:
        max_steps: K, most draft steps per round.
        threshold: a draft token whose confidence is below it is the last one; 0 never ends a
            draft.
        confidence: under sampling, `top` compares the draft's largest probability, `sampled` that
            of the token drawn; both before temperature and top-p.

    Raises:
        SkipbenchError: a number out of range, or a word that is not known.
    """

    def __init__(self, max_steps: int = 8, threshold: float = 0.0, confidence: str = "top") -> None:
        _check(max_steps, threshold, confidence)
        self.max_steps, self.threshold, self.confidence = max_steps, threshold, confidence

    def begin(self) -> None:
        """Nothing to reset."""

    def update(self, accepted: int, drafted: int) -> None:
        """Nothing to learn."""

    state_dict: ClassVar[dict[str, Any]] = {}


class Adaptive:
    """Draft & Verify's adaptive draft-exiting (arXiv:2309.08168, section 3.4, Eqs. 2 to 4).

    | paper | here | |
    |---|---|---|
    | gamma | `threshold` | a draft token below it is kept and ends the draft |
    | alpha | `target` | acceptance rate that the rule holds |
    | epsilon | `step` | |
    | beta1, beta2 | `beta1`, `beta2` | smoothing of the acceptance rate and of gamma |

    Deviations, with their switches: docs/methods/self-sd.md.

    The acceptance rate starts anew with every prompt and gamma is carried over, as in the published
    code.

    Args:
        max_steps: K, most draft steps per round.
        threshold: gamma at the start, 0 to 1.
        target: alpha, the acceptance rate that the rule holds, 0 to 1.
        step: epsilon, by which gamma moves per update.
        beta1: weight of the past in the acceptance rate, 0 to below 1.
        beta2: weight of the past in gamma, 0 to 1.
        every: rounds per update of gamma.
        first_beta1: beta1 in a prompt's first round: 0 (`paper`), or unchanged (`code`).
        full_length_guard: leaves gamma alone after a draft of full length with acceptance above
            alpha.
        confidence: under sampling, `top` compares the draft's largest probability with gamma,
            `sampled` that of the token drawn; both before temperature and top-p.

    Raises:
        SkipbenchError: a number out of range, or a word that is not known.
    """

    def __init__(
        self,
        max_steps: int = 12,
        threshold: float = 0.6,
        target: float = 0.9,
        step: float = 0.01,
        beta1: float = 0.5,
        beta2: float = 0.9,
        every: int = 1,
        first_beta1: str = "paper",
        full_length_guard: bool = False,
        confidence: str = "top",
    ) -> None:
        _check(max_steps, threshold, confidence)
        if first_beta1 not in ("paper", "code"):
            raise SkipbenchError(f"stop rule: {first_beta1=}; wanted 'paper' or 'code'")
        self.max_steps, self.threshold, self.confidence = max_steps, threshold, confidence
        self.target, self.step, self.beta1, self.beta2 = target, step, beta1, beta2
        self.every, self.first_beta1, self.full_length_guard = every, first_beta1, full_length_guard
        if every < 1 or not (0 <= target <= 1 and 0 <= beta1 < 1 and 0 <= beta2 <= 1 and step >= 0):
            raise SkipbenchError(
                f"stop rule: {every=}, {target=}, {beta1=}, {beta2=}, {step=}; wanted every >= 1, "
                "target and beta2 from 0 to 1, beta1 from 0 to below 1, step >= 0"
            )
        self.begin()

    def begin(self) -> None:
        """A new prompt starts its own acceptance rate."""
        self.rate: float | None = None
        self.rounds = 0

    def update(self, accepted: int, drafted: int) -> None:
        """Eqs. 2 to 4 after one verification."""
        if drafted == 0:
            return
        self.rounds += 1
        if self.rounds % self.every:
            return
        rate, beta1 = self.rate, self.beta1
        if rate is None:
            rate = 0.0
            beta1 = 0.0 if self.first_beta1 == "paper" else beta1  # "when e is 1, beta1 = 0"
        self.rate = beta1 * rate + (1 - beta1) * accepted / drafted  # Eq. 2
        if self.rate <= self.target:
            moved = self.threshold + self.step  # Eq. 3
        elif self.full_length_guard and drafted == self.max_steps:
            moved = self.threshold
        else:
            moved = self.threshold - self.step  # Eq. 3
        self.threshold = self.beta2 * self.threshold + (1 - self.beta2) * moved  # Eq. 4

    @property
    def state_dict(self) -> dict[str, Any]:
        """gamma, which goes from prompt to prompt."""
        return {"threshold": self.threshold}

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self.threshold = state["threshold"]
