"""Methods of one row beside each other: ratios of the same questions, which cancel what prompts
have in common, with intervals that hold for all pairs of the row at once.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import msgspec

from skipbench.metrics.interval import FEWEST, Interval, ends_of, level, quantile

DRAWS = 4000


class Standing(msgspec.Struct, frozen=True):
    """A method among those of its row, vanilla included."""

    ratio: float  # of its speed to the fastest one's, a geometric mean over questions
    interval: Interval | None  # of `ratio`; None for the fastest, and below `FEWEST` questions
    tied: bool  # the fastest, or as fast within the noise; False below `FEWEST` questions
    faster: bool  # than vanilla, beyond the noise


def standings(arms: Sequence[Mapping[str, float]], vanilla: Collection[int] = ()) -> list[Standing]:
    """The standing of each method, given its speedups over vanilla by question; empty if there is
    no question that all have. Those at the places `vanilla`, it against itself, are never fastest.

    The intervals are those of the largest |t| over all pairs (Tukey's, for correlated means).
    """
    import numpy as np  # slow to import

    common = sorted(set.intersection(*map(set, arms))) if arms else []
    if not common:
        return []
    n = len(common)
    logs = np.log([*([arm[q] for q in common] for arm in arms), [1.0] * n])  # last: vanilla
    means = logs.mean(1).tolist()
    best = max((i for i in range(len(logs)) if i not in vanilla), key=lambda i: means[i])
    differences = {(a, b): logs[a] - logs[b] for a, b in combinations(range(len(logs)), 2)}
    variances = {pair: float(x.var(ddof=1)) / n for pair, x in differences.items() if n > 1}
    t = _largest_t([differences[pair] for pair, of in variances.items() if of > 1e-24])

    def half(a: int, b: int) -> float:
        """Half the width of the interval of a pair's log ratio."""
        return t * math.sqrt(variances[min(a, b), max(a, b)]) if a != b else 0.0

    known, base, found = n >= FEWEST, (*vanilla, len(arms)), list[Standing]()
    for i in range(len(arms)):
        behind, judged = means[i] - means[best], known and i not in vanilla
        found.append(
            Standing(
                ratio=math.exp(behind),
                interval=ends_of(behind, half(i, best)) if known and i != best else None,
                tied=judged and behind + half(i, best) >= 0,
                faster=judged and all(means[i] - means[v] > half(i, v) for v in base),
            )
        )
    return found


def _largest_t(differences: Sequence[Sequence[float]]) -> float:
    """Quantile of the largest |t| of all differences, with their correlation."""
    import numpy as np

    if not differences or (n := len(differences[0])) < FEWEST:
        return 0.0
    values, rng = np.asarray(differences), np.random.default_rng(0)
    rest = values - values.mean(1, keepdims=True)
    basis = (rest / np.sqrt((rest**2).sum(1, keepdims=True))).T
    # normal draws with the correlation of the differences; each difference over its own spread
    count = max(400, min(DRAWS, 60_000 // n))
    draws = np.stack([rng.standard_normal((n, n)) @ basis for _ in range(count)])
    largest = abs(draws.mean(1) / draws.std(1, ddof=1)).max(1) * math.sqrt(n)
    return max(quantile(n - 1, level(n)), float(np.quantile(largest, _level(n))))


def _level(questions: int) -> float:
    """Level of the largest |t|: exact for 5 questions, 98 % up to 10, falling to 95 % at 20."""
    return min(level(questions), 0.98, 0.95 + 0.03 * (questions - FEWEST))
