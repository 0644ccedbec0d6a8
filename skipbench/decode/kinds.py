"""Kinds of the draft tokens of `auto`: what is known of a token before it is verified. Per kind,
`Counters` keeps the chance that it is accepted where its parent is.

A free token's kind is the class of the longest match, its rank among the continuations of the
matches, its rank among recycled successors, and how many tokens of context these rest on. A
drafted token's kind is the class of the probability that the draft gives it, whether it is the
draft's first choice, and whether a free source says the same.
"""

TOP = 6  # of the target's most likely tokens kept per context; later ones are not worth a row
CONTINUATIONS = 3  # different tokens that copies propose per node
CHOICES = 3  # of the draft's most likely tokens per step

MATCH_CLASS = (0, 0, 1, 2, 3, 3, 3, *(4,) * 6)  # by length of the match; longer ones are class 5
MATCH_CHANCE = (0.15, 0.35, 0.5, 0.65, 0.8, 0.92)  # priors, as SmolLM2-135M's own outputs have it
LATER_SHARE = (1.0, 0.3, 0.1)  # of the first continuation, the second, the third
RECYCLED_CHANCE = (0.42, 0.12, 0.07, 0.05, 0.035, 0.025)
BESIDE_A_MATCH = (0.7, 0.45, 0.4, 0.3, 0.2, 0.1)  # of it, where the match says another token
NONE, ABSENT = CONTINUATIONS, TOP  # ranks of a token that the source does not propose

DRAFTED_BOUNDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)
"""Of the draft's probability, between two classes."""
DRAFTED_CHANCE = (0.02, 0.06, 0.12, 0.22, 0.35, 0.5, 0.65, 0.78, 0.88, 0.94, 0.98)
DOUBT = (1.0, 0.8, 0.4)
"""Share of a prior's doubt that stays where recycled successors say the same, or a copy."""
UNCOUNTED = -1  # kind of a free token beside drafted ones, which are right more often than not


def free_kind(match: int, copied: int, recycled: int, context: int) -> int:
    """Kind of a free token; `match` is -1 without one."""
    return (((match + 1) * (CONTINUATIONS + 1) + copied) * (TOP + 1) + recycled) * 3 + context


def _prior(match: int, copied: int, recycled: int) -> float:
    if copied < NONE and match >= 0:
        chance = MATCH_CHANCE[match] * LATER_SHARE[copied]
        return 1 - (1 - chance) * 0.8 if recycled == 0 else chance
    chance = RECYCLED_CHANCE[min(recycled, TOP - 1)]
    return chance * BESIDE_A_MATCH[match] if match >= 0 else chance


PRIORS = [
    _prior(match, copied, recycled)
    for match in range(-1, len(MATCH_CHANCE))
    for copied in range(CONTINUATIONS + 1)
    for recycled in range(TOP + 1)
    for _ in range(3)
]
"""Chance of every kind before it was tried: free ones, and drafted ones from `FREE` on."""
FREE = len(PRIORS)
PRIORS += [1 - (1 - p) * doubt for p in DRAFTED_CHANCE for _ in range(2) for doubt in DOUBT]


def drafted_class(probability: float) -> int:
    """Class of a drafted token by the draft's probability."""
    return sum(probability > bound for bound in DRAFTED_BOUNDS)


def drafted_kind(probability: float, rank: int, confirmed: int) -> int:
    """Kind of the draft's choice `rank`; `confirmed` is 0, 1 by recycled successors, 2 by a
    copy.
    """
    return FREE + (2 * drafted_class(probability) + (rank > 0)) * 3 + confirmed


def letter(kind: int) -> str:
    """Which source proposed a token, as `runs.record.SOURCES` has it; `o` is a free token beside
    drafted ones.
    """
    if kind == UNCOUNTED or kind >= FREE:
        return "d" if kind >= FREE else "o"
    recycled = kind // 3 % (TOP + 1) != ABSENT
    copied = kind // (3 * (TOP + 1)) % (CONTINUATIONS + 1) != NONE
    return "b" if recycled and copied else "s" if copied else "r"
