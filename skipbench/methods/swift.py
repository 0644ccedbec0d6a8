"""SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration, arXiv:2410.06916.

One candidate set per round is tried on tokens that the target has already generated, in one pass of
the draft over scratch rows (section 4.1). The best set drafts with early stopping, and the
confidence of each token says how many alternatives are verified with it as a tree (section 4.2).
The search goes on across prompts.

| paper | here | |
|---|---|---|
| z, r | `skip`, `ratio` | skipped sub-layers, and their share of those that may be skipped |
| o, S | `len(tried)`, `steps` | optimisation steps so far, and their maximum |
| beta | `beta` | every so many steps one is Bayesian (Eq. 2) |
| gamma | `window` | generated tokens that a candidate must predict (Eq. 3) |
| matchness | `score` | share that it predicts (Eq. 4) |
| N_D, epsilon | `stop.max_steps`, `stop.threshold` | maximum draft steps, early stopping |
| k | `tree` | alternatives by confidence |

Deviations from the paper and its published code, with their switches: docs/methods/swift.md.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from skipbench.config.configurable import Natural, Positive, Share
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.trial_passes import predicts
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.search.bayes import suggest_point

ADJUST_ROUNDS, ADJUST_BY = 100, 0.1
KAPPA = 2.5


class SWIFT(SkipMethod):
    """Layer sets searched while decoding.

    >>> from skipbench.decode.stopping import Fixed
    >>> method = SWIFT(name="swift", layers=8, ratio=0.5, beta=0, stop=Fixed(max_steps=25))
    >>> str(method.skip)  # spread evenly, until a candidate predicts more of the output
    'attn:2,4,6;mlp:2,4,6'
    >>> len(method.rounded(method._suggest()).skipped)  # a random candidate
    6
    """

    ratio: float = 0.45
    """r, share to skip of the sub-layers that may be skipped, at least one and not all of them."""
    steps: Natural = 1000
    """S, maximum optimisation steps; 0 keeps the first set."""
    beta: Natural = 25
    """Every so many steps one is Bayesian; 0 for none (random search)."""
    window: Positive = 32
    """gamma, generated tokens that a candidate must predict."""
    max_score: float = 0.95
    """Matchness above which a candidate ends the search."""
    patience: Positive = 300
    """Steps without a better candidate after which the search ends."""
    protect_ends: bool = True
    """Never skips the first and the last layer."""
    initial: Literal["ratio", "odd"] = "ratio"
    """First set: `ratio` spreads whole layers evenly; `odd` skips every odd one, with score 0."""
    context: Literal["first", "recent"] = "first"
    """Tokens that candidates are scored on: `first` of the output, or the most `recent`."""
    rescore: bool = True
    """Scores the best set again where these tokens have changed; false keeps its old score."""
    register: Literal["rounded", "raw"] = "rounded"
    """Point of a Bayesian step that the regression keeps: `rounded` to the candidate, or `raw`."""
    bayes_draws: Positive = 200
    """Random points at which the acquisition function is evaluated per Bayesian step."""
    bayes_starts: int = 0
    """Of them, starts of a gradient search."""
    bayes_restarts: int = 0
    """Refits of the regression's length scale per Bayesian step."""
    adjust_below: Share = 0.0
    """Lowers `ratio` by 0.1 where mean acceptance stays below this, 0 to 1; 0 never does."""
    seed: int = 0
    """Seed of random candidates and of the Bayesian steps."""

    logged = ("step", "matchness", "best", "ratio")
    carried = ("skip", "score", "ratio", "best_step")
    score: float | None = field(default=None, init=False)
    """Matchness of `skip`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = range(1, self.layers - 1) if self.protect_ends else range(self.layers)
        # the code's order of variables
        self.free = [2 * i for i in inner] + [2 * i + 1 for i in inner]
        draws, starts, restarts = self.bayes_draws, self.bayes_starts, self.bayes_restarts
        self.effort = {"draws": draws, "starts": starts, "restarts": restarts}
        self._moved = False  # the tokens that candidates are scored on
        self._restart(self.ratio)
        if self.initial == "odd":
            self.skip = self.plan(s for s in self.free if s // 2 % 2)
            self.score = 0.0

    def import_libraries(self) -> None:
        if 0 < self.beta <= self.steps:  # the first call imports more than the names
            suggest_point([[0.0]], [0.0], (self.seed, 0), kappa=KAPPA, **self.effort)

    def _restart(self, ratio: float) -> None:
        """Starts an empty search from whole layers spread evenly, and one attention if odd."""
        self.ratio, self.count = ratio, int(len(self.free) * ratio)
        if not self.free:
            raise SkipbenchError(
                f"swift: protect_ends keeps the first and the last of {self.layers} layers, and no "
                "other is there to skip; set method.protect_ends=false"
            )
        if not 0 < self.count < len(self.free):
            low, high = 1 / len(self.free), 1 - 1 / len(self.free)
            raise SkipbenchError(
                f"swift: {ratio=} skips {self.count} of {len(self.free)} sub-layers that may be "
                f"skipped; choose from {low:.3f} to {high:.3f}"
            )
        attention, layers = self.free[: len(self.free) // 2], (self.count + 1) // 2
        chosen = [attention[int((i + 0.5) * len(attention) / layers)] for i in range(layers)]
        even = [s for a in chosen for s in (a, a + 1)][: self.count]
        self.skip, self.best_step = self.plan(even), 0
        self.score = None  # until there is output
        self.tried: list[tuple[list[float], float]] = []  # point and matchness of every step
        self._draws = np.random.RandomState(self.seed)
        self._acceptance: deque[tuple[int, int]] = deque(maxlen=ADJUST_ROUNDS)

    @property
    def searching(self) -> bool:
        """Whether the optimisation phase lasts (section 4.1.2, last paragraph; B.2)."""
        o = len(self.tried)
        exceeded = o > 0 and self.tried[-1][1] > self.max_score  # no candidate follows such a one
        return o < self.steps and o - self.best_step <= self.patience and not exceeded

    def begin(self, state: State) -> None:
        super().begin(state)
        self._moved = bool(self.tried)  # the best set's score is of another prompt

    def adapt(self, state: State, verification: Verification) -> None:
        """One optimisation step per round, once the output has more than `window` + 2 tokens."""
        super().adapt(state, verification)
        if not self.searching or len(state.output) <= self.window + 2:
            return
        if self.score is None or (self._moved and self.rescore):
            self.score = self.matchness(state, self.skip)
        self._moved = self.context == "recent"
        point = self._suggest()
        skip = self.rounded(point)
        matchness = self.matchness(state, skip)
        corner = [float(s in skip.skipped) for s in self.free]
        self.tried.append((point if self.register == "raw" else corner, matchness))
        if matchness > self.score:
            self.skip, self.score, self.best_step = skip, matchness, len(self.tried)
        self.note(step=len(self.tried), matchness=matchness, best=self.score, ratio=self.ratio)
        # Footnote 3: a lower ratio when the acceptance rate stays below the tolerance
        self._acceptance.append((len(verification.accepted), verification.draft.steps))
        accepted, steps = map(sum, zip(*self._acceptance, strict=True))
        full = len(self._acceptance) == ADJUST_ROUNDS
        lower = round(self.ratio - ADJUST_BY, 9)  # 0.3 - 0.1 is below 0.2
        if full and accepted < self.adjust_below * steps and int(len(self.free) * lower) > 0:
            self._restart(lower)

    def _suggest(self) -> list[float]:
        """Eq. 2: the next candidate as a point; its largest coordinates are skipped."""
        o = len(self.tried) + 1
        if self.beta and o % self.beta == 0 and self.tried:
            points, values = zip(*self.tried, strict=True)
            suggested = suggest_point(points, values, (self.seed, o), kappa=KAPPA, **self.effort)
            return list(suggested.tolist())
        chosen = self._draw()
        return [float(i in chosen) for i in range(len(self.free))]

    def _draw(self) -> set[int]:
        """A random candidate, as indices of `free`."""
        return set(self._draws.choice(len(self.free), self.count, replace=False).tolist())

    def rounded(self, point: Sequence[float]) -> DraftPlan:
        """The set of the largest coordinates; equal ones by name as the code's: x0, x1, x10, ..."""
        largest = sorted(sorted(range(len(point)), key=str), key=lambda i: -point[i])
        return self.plan(self.free[i] for i in largest[: self.count])

    def matchness(self, state: State, skip: DraftPlan) -> float:
        """Eqs. 3 and 4: share of `window` generated tokens that the candidate predicts."""
        recent = len(state.tokens) - 1 - self.window
        at = recent if self.context == "recent" else state.prompt_length
        return predicts(state, at, self.window, skip).count(True) / self.window

    def state_dict(self) -> Any:
        """The search so far, which goes on across prompts; its points only while it lasts."""
        tried = self.tried if self.searching else [([], m) for _, m in self.tried]
        return super().state_dict() | {"tried": tried, "acceptance": list(self._acceptance)}

    def load_state_dict(self, state: Any) -> None:
        self._restart(state["ratio"])
        for o in range(1, len(state["tried"]) + 1):  # brings the generator to where it was
            if not self.beta or o % self.beta or o == 1:
                self._draw()
        super().load_state_dict(state)
        self.tried = [(point, matchness) for point, matchness in state["tried"]]
        self._acceptance.extend((a, s) for a, s in state["acceptance"])
