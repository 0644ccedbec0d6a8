"""Kinds of draft tokens, by what proposes them, and the chances they have before any try."""

import itertools
import math
from typing import NamedTuple

from skipbench.decode.drafting import CONFIDENCE_CLASSES

TOP = 6  # of the target's most likely tokens kept per context; later ones are not worth a row
UNLIKELY = 0.2  # chance of a path of free tokens that is not followed further
CONTINUATIONS = 3  # different tokens that copies propose per node

# Kinds of free tokens: class of the longest match, rank among the continuations of the matches,
# rank among recycled successors, and tokens of context that these rest on.
MATCH_CLASS, LONGEST_CLASS = (0, 0, 1, 2, 3, 3, 3, *(4,) * 6), 5  # by length of the match
# Priors as counted on `dataset=tuning` and the embedded model's prompts (docs/auto.md).
MATCH_CHANCE = (0.146, 0.321, 0.404, 0.65, 0.833, 0.924)
LATER_SHARE = (1.0, 0.173, 0.173)  # of the first continuation, the second, the third
CONFIRMED_DOUBT = 0.584  # of the doubt about a copy that the first recycled token confirms
RECYCLED_CHANCE = (0.405, 0.063, 0.051, 0.048, 0.01, 0.01)
# Factor where the match proposes another token.
BESIDE_A_MATCH = (1.006, 0.813, 0.548, 0.548, 0.141, 0.058)
NONE, ABSENT = CONTINUATIONS, TOP  # ranks of a token that the source does not propose


class Kind(NamedTuple):
    """Kind of a free token; its number is its place in `KINDS`."""

    match: int
    """Class of the longest match's length; -1 without one."""
    copied: int
    """Rank among the copied continuations, or NONE."""
    recycled: int
    """Rank among the recycled successors, or ABSENT."""
    context: int
    """Tokens of context that the successors were stored under; 0 without any."""

    @property
    def prior(self) -> float:
        """Chance before any try."""
        if self.copied < NONE and self.match >= 0:
            chance = MATCH_CHANCE[self.match] * LATER_SHARE[self.copied]
            return 1 - (1 - chance) * CONFIRMED_DOUBT if self.recycled == 0 else chance
        chance = RECYCLED_CHANCE[min(self.recycled, TOP - 1)]
        return chance * BESIDE_A_MATCH[self.match] if self.match >= 0 else chance

    @property
    def source(self) -> str:
        """`s`uffix match, `r`ecycled, or `b`oth."""
        return "r" if self.copied == NONE else "s" if self.recycled == ABSENT else "b"


RANKS = range(-1, len(MATCH_CHANCE)), range(CONTINUATIONS + 1), range(TOP + 1), range(3)
KINDS = [Kind(*ranks) for ranks in itertools.product(*RANKS)]
STRIDES = tuple(math.prod(map(len, RANKS[place:])) for place in range(1, len(RANKS)))
"""By how much the number of a kind grows with its match, its rank among copies, and that among
successors.
"""
FREE = len(KINDS)
# Then the kinds of drafted tokens: class of the draft's certainty, first of a skip set, then of 8
# bits; and the free source that proposes the same token: none, recycled successors, a copy.
DRAFTED_CHANCE = (0.35, 0.65, 0.85, 0.95)  # of a set that is wrong as often as `USUAL_ERROR`
USUAL_ERROR = 0.1
MARGIN_CLASSES = (0.1, 0.2, 0.4)
"""Of 1 - q / p, p and q the draft's probabilities of its first and second choice: fewer bits err
little, so that they are wrong where the two are close.
"""
INT8_CHANCE = (0.6, 0.8, 0.93, 0.97)  # counted on SmolLM2-135M: 0.67, 0.80, 0.98, 1.00
PRIORS = [kind.prior for kind in KINDS]
PRIORS += [1 - (1 - p) * f for p in (*DRAFTED_CHANCE, *INT8_CHANCE) for f in (1.0, 0.8, 0.4)]
FREE_WEIGHT = 4.0  # accepted tokens that the priors of all free kinds together count for
UNCOUNTED = -1  # kind of a free token beside a drafted one, which is right more often than not
LETTERS = [*(kind.source for kind in KINDS), *("d" * (len(PRIORS) - FREE)), "o"]
"""Source by kind, in the trace: of free kinds, `d`rafted, or `o`ther, for `UNCOUNTED`."""


def drafted_kind(first: float, second: float, quantized: bool) -> int:
    """Kind of a token that a draft gives the probability `first`, the next one `second`."""
    if quantized:
        return FREE + 3 * (4 + sum(1 - second / first > bound for bound in MARGIN_CLASSES))
    return FREE + 3 * sum(first > bound for bound in CONFIDENCE_CLASSES)
