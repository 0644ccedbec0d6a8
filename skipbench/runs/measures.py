"""`Metrics`: a `metrics.json`. Field names are the format; docs/metrics.md defines each.

A value that cannot be computed, or that an arm does not have, is left out; unknown names are
dropped.
"""

import msgspec

Interval = tuple[float, float]


class Speedup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Geometric means over questions of vanilla's seconds per token over the method's."""

    e2e: float | None = None  # prefill included
    e2e_ci95: Interval | None = None
    paired: float | None = None  # decoding only
    ci95: Interval | None = None
    by_question: dict[str, float] | None = None  # prefill included; `e2e` is their mean

    @property
    def headline(self) -> tuple[float | None, Interval | None]:
        """What is printed as the speedup, and its interval."""
        return self.e2e, self.e2e_ci95


class ExpectedSpeedup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SWIFT's Eq. 6 with the paper's cost and with measured ones."""

    paper: float | None = None
    measured_cost: float | None = None


class Lossless(msgspec.Struct, frozen=True, kw_only=True):
    """Samples by how their tokens compare with vanilla's."""

    identical: int = 0
    ties: int = 0
    diverged: int = 0
    unchecked: int = 0
    sampled: int = 0
    failed: int = 0

    @property
    def comparable(self) -> int:
        """Greedy samples that did not fail."""
        return self.identical + self.ties + self.diverged + self.unchecked


class PhaseSeconds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds of the method's arm, over all samples."""

    prefill: float | None = None
    draft: float | None = None
    verify: float | None = None
    adapt: float | None = None
    other: float | None = None

    @property
    def by_phase(self) -> dict[str, float]:
        return {k: v for k, v in msgspec.structs.asdict(self).items() if v is not None}

    @property
    def decoding(self) -> dict[str, float]:
        """`by_phase` without the prefill."""
        return {k: v for k, v in self.by_phase.items() if k != "prefill"}


class Percentiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Skipped(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean number of skipped sub-layers at the end of a sample, and their share."""

    attention: float | None = None
    mlp: float | None = None
    ratio: float | None = None


Scores = dict[str, float | None]  # mean score by the scorer's name


class GroupScores(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    means: Scores = {}
    samples: int = 0


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    means: Scores = {}
    by: dict[str, dict[str, GroupScores]] = {}  # by group and label


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per token of a sub-layer and of the lm_head, profiled in the engine under test."""

    attention_s: float
    mlp_s: float
    head_s: float
    layers: int


class Optimisation(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of choosing the skip set."""

    random_steps: int = 0
    bayes_steps: int = 0
    programmes: int | None = None  # of CLaSp and KnapSpec
    seconds: float

    @property
    def steps(self) -> int:
        return self.random_steps + self.bayes_steps + (self.programmes or 0)

    @property
    def step_ms(self) -> float | None:
        return 1e3 * self.seconds / self.steps if self.steps else None


class Estimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A paper's speedup, the ratio of its mean speeds, prefill included."""

    speedup: float | None = None
    ci95: Interval | None = None
    tokens_per_s: float | None = None


class Estimators(msgspec.Struct, frozen=True, kw_only=True, rename={"self_sd": "self-sd"}):
    """By the papers' ids."""

    swift: Estimate
    self_sd: Estimate
    knapspec: Estimate
    clasp: Estimate


class Metrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`metrics.json`, the numbers of an arm; what each field means is in docs/metrics.md."""

    samples: int = 0
    rounds: int = 0
    M: float | None = None
    alpha: float | None = None
    alpha_macro: float | None = None
    alpha_chain: float | None = None  # of a tree the chain of first choices alone
    alpha_cond: float | None = None
    tau: float | None = None
    tau_draft: float | None = None
    M_eq1: float | None = None
    accepted_by_position: list[float] = []
    accepted_share: float | None = None
    draft_steps: float | None = None  # per round, as `draft_passes` and `rows`
    draft_passes: float | None = None
    rows: float | None = None
    tpt: float | None = None
    tokens_per_s: float | None = None
    expected_speedup: ExpectedSpeedup = ExpectedSpeedup()
    speedup: Speedup = Speedup()
    estimators: Estimators | None = None
    seconds: PhaseSeconds = PhaseSeconds()
    lossless: Lossless = Lossless()
    looped: int = 0
    ttft_s: Percentiles | None = None
    s_per_output_token: Percentiles | None = None
    skipped: Skipped | None = None
    score: Score | None = None
    score_equal: bool | None = None
    score_rules: dict[str, str] | None = None
    peak_memory_bytes: int | None = None
    setup_s: float | None = None  # per process; None: the method needs none
    variant_bytes: int | None = msgspec.field(default=None, name="int8_bytes")  # for drafts
    profiled: Profiled | None = None
    optimisation: Optimisation | None = None
    vanilla: "Metrics | None" = None  # of the same turns, as far as vanilla has such numbers

    @property
    def turns(self) -> int:
        """With those that failed."""
        return self.samples + self.lossless.failed

    @property
    def baseline(self) -> "Metrics":
        """Vanilla's numbers; none where they are not known."""
        return self.vanilla or Metrics()

    @property
    def alpha_of_passes(self) -> float | None:
        """`alpha` where every draft step was a pass of a model."""
        return self.alpha if self.draft_passes == self.draft_steps else None
