"""`Host`: the host's part of a round; `Timed`: a round as the loop timed it."""

import itertools
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from skipbench.draft_plan import DraftPlan

ENOUGH, FEWEST, NEWEST = 16, 4, 64
"""Rounds that move the host's part half way; those that move it at all; and that are looked at."""


class Host(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds of a round beside its passes, in which the host proposes, reads what was verified,
    commits and adapts; and how long passes take in the loop.
    """

    round_s: float = 0.0  # of any round
    row_s: float = 0.0  # of every row that it verifies
    step_s: float = 0.0  # of every draft pass
    verify_pace: float = 1.0  # of verifications, over what they took when they were timed alone
    draft_pace: float = 1.0  # of draft passes likewise

    def beside_s(self, rows: float) -> float:
        """Of a round that verifies so many rows, without its draft passes."""
        return self.round_s + self.row_s * rows

    def mixed(self, other: "Host", share: float) -> "Host":
        """This one for a share, the rest as the other."""
        pairs = zip(*map(msgspec.structs.astuple, (self, other)), strict=True)
        return Host(*(share * own + (1 - share) * theirs for own, theirs in pairs))


NO_HOST = Host()


class Timed(NamedTuple):
    """A round at a context: the rows that it verified, its draft passes and their plan; seconds of
    its draft, of its verification's pass, and of all of it.
    """

    context: int
    rows: int
    passes: int
    plan: DraftPlan | None
    draft_s: float
    pass_s: float
    round_s: float

    @property
    def beside_s(self) -> float:
        """Beside its passes; a draft that has some is left out."""
        return self.round_s - self.pass_s - (self.draft_s if self.passes else 0.0)


def host_line(rounds: Sequence[Timed]) -> tuple[float, float]:
    """Seconds beside the passes, of a round and of each of its rows: by rounds without draft passes
    if there are enough, else by all. The slope is the median one of all pairs, never falling.
    """
    free = [r for r in rounds if not r.passes]
    pairs = sorted((r.rows, r.beside_s) for r in (free if len(free) >= ENOUGH else rounds))
    slopes = [(t - s) / (m - n) for (n, s), (m, t) in itertools.combinations(pairs, 2) if m > n]
    slope = max(0.0, median(slopes)) if slopes else 0.0
    base = median(s - slope * n for n, s in pairs)
    return (base, slope) if base >= 0 else (0.0, median(s / n for n, s in pairs))
