"""When a chain of draft steps ends: after a fixed number, at low confidence, or at Self-SD's
adaptive threshold.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from skipbench.config.configurable import Configurable, Positive, Share
from skipbench.decode.draft import State
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.prices import Prices


class StopRule(Configurable, kw_only=False):
    """Decides after every draft step whether to take another, and learns after every round."""

    max_steps: Positive = 8
    """K, maximum draft steps per round."""
    threshold: Share = 0.0
    """A draft token whose confidence is below it is the last one; 0 never ends a draft."""
    confidence: Literal["top", "sampled"] = "top"
    """Under sampling, `top` compares the draft's largest probability with the threshold, `sampled`
    that of the token drawn; both before temperature and top-p.
    """

    label = "stop rule"
    needs_latency: ClassVar[bool] = False
    """`priced` reads the latencies of sub-layers."""
    ends_at_eos: ClassVar[bool] = False
    """A token that would end the output is a draft's last one, where the host has it (on a CPU)."""

    def begin(self) -> None:
        """Starts a prompt."""

    def priced(self, state: State, plan: DraftPlan, given: Prices | None) -> None:
        """Told the plan that drafts from now on; `given`: prices in the place of `lm.prices`."""

    @property
    def reads_confidence(self) -> bool:
        """Whether `ends` depends on confidences, which the host then reads."""
        return self.threshold > 0

    def begin_draft(self) -> int:
        """Starts a draft, and returns its maximum steps."""
        return self.max_steps

    def ends(self, confidence: float) -> bool:
        """Whether a token of this confidence, the next of the draft, is its last one."""
        return confidence < self.threshold

    def update(self, accepted: int, drafted: int) -> None:
        """Learns from a round in which `accepted` of `drafted` tokens were right."""


class Fixed(StopRule):
    """K steps, or fewer where a static confidence threshold ends them (Self-SD Tables 3 and 4).

    >>> Fixed(max_steps=5, threshold=0.7).threshold
    0.7
    """


class Adaptive(StopRule):
    """Draft & Verify's adaptive draft-exiting (arXiv:2309.08168, section 3.4, Eqs. 2 to 4).

    | paper | here | |
    |---|---|---|
    | gamma | `threshold` | a draft token below it is kept and ends the draft |
    | alpha | `target` | acceptance rate to hold |
    | epsilon | `step` | |
    | beta1, beta2 | `beta1`, `beta2` | smoothing of the acceptance rate and of gamma |

    The acceptance rate starts anew with every prompt and gamma is carried over, as in the published
    code. Deviations, with their switches: docs/methods/self-sd.md.

    >>> rule = Adaptive(threshold=0.6, step=0.1, beta2=0.5)
    >>> rule.update(accepted=1, drafted=4)  # too few were right: a higher threshold drafts fewer
    >>> round(rule.threshold, 3)
    0.65
    """

    max_steps: Positive = 12
    threshold: Share = 0.6
    """gamma at the start, 0 to 1."""
    target: Share = 0.9
    """alpha, the acceptance rate to hold, 0 to 1."""
    step: Annotated[float, Meta(ge=0)] = 0.01
    """epsilon, by which gamma moves per update."""
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    """Weight of the past in the acceptance rate, 0 to below 1."""
    beta2: Share = 0.9
    """Weight of the past in gamma, 0 to 1."""
    every: Positive = 1
    """Rounds per update of gamma."""
    first_beta1: Literal["paper", "code"] = "paper"
    """beta1 in a prompt's first round: 0 (`paper`), or unchanged (`code`)."""
    full_length_guard: bool = False
    """Leaves gamma alone after a draft of full length with acceptance above alpha."""

    carried = ("threshold",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begin()

    def begin(self) -> None:
        """Starts a prompt with a new acceptance rate."""
        self.rate: float | None = None
        self.rounds = 0

    def update(self, accepted: int, drafted: int) -> None:
        """Eqs. 2 to 4 after one verification."""
        if drafted == 0:
            return
        self.rounds += 1
        if self.rounds % self.every:
            return
        beta1 = self.beta1
        if self.rate is None:
            beta1 = 0.0 if self.first_beta1 == "paper" else beta1  # "when e is 1, beta1 = 0"
        self.rate = beta1 * (self.rate or 0.0) + (1 - beta1) * accepted / drafted  # Eq. 2
        moved = self.threshold  # Eq. 3
        if self.rate <= self.target:
            moved += self.step
        elif not self.full_length_guard or drafted < self.max_steps:
            moved -= self.step
        self.threshold = self.beta2 * self.threshold + (1 - self.beta2) * moved  # Eq. 4
