"""`FreeTokens`: draft tokens that need no forward pass, copies and recycled successors, each with
the chance that it is right.
"""

from collections.abc import Iterable, Sequence

from skipbench.config.configurable import Stateful
from skipbench.contrib.auto.kinds import (
    ABSENT,
    CONTINUATIONS,
    FREE,
    FREE_WEIGHT,
    LONGEST_CLASS,
    MATCH_CLASS,
    NONE,
    PRIORS,
    STRIDES,
)
from skipbench.contrib.lowbit.chances import Counters
from skipbench.decode.sources import Match, Successors, TextIndex
from skipbench.decode.tree import Child

Carried = tuple[list[Match], int]
"""Occurrences of the path to a node's parent; place on the drafted chain, -1 beside it."""
NOWHERE: Carried = ([], -1)


class FreeTokens(Stateful):
    """Copies of the text and successors, in one list per path; counts which kinds were right."""

    carried = "successors", "counters", "tried", "text"

    def __init__(self, memory: int, earlier: int) -> None:
        """`memory`: contexts whose successors are kept; `earlier`: tokens of earlier outputs."""
        self.text, self.successors = TextIndex(limit=earlier), Successors(memory)
        self.counters = Counters(PRIORS)
        self.tried = [0.0, 0.0]
        """Free tokens accepted, and expected by the priors, after an accepted parent."""
        self.begin([])

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts a text."""
        self.text.begin(tokens)
        self._share, self._known = self._worth(), dict[int, float]()
        """Chance by number of kind, until more is counted."""

    def chance(self, kind: int) -> float:
        """Chance of a free kind: where copies fail, untried kinds are trusted less, too."""
        known = self.counters.chance(kind, self._share * PRIORS[kind])
        self._known[kind] = known
        return known

    def count(self, tries: Iterable[tuple[int, bool]]) -> None:
        """Counts tries of kinds, which may be those of drafted tokens."""
        for kind, hit in tries:
            self.counters.update(kind, hit)
            self._known.pop(kind, None)
            if kind < FREE:
                self.tried = [self.tried[0] + hit, self.tried[1] + PRIORS[kind]]
        before, self._share = self._share, self._worth()
        if self._share != before:
            self._known.clear()

    def _worth(self) -> float:
        """Share of the priors of all free kinds together that was accepted."""
        hits, expected = self.tried
        return min(1.0, (hits + FREE_WEIGHT) / (expected + FREE_WEIGHT))

    def after(
        self, before: int, token: int, path: list[int], matches: list[Match]
    ) -> tuple[list[Child], list[Match]]:
        """The candidates after a path that ends in `before` and `token`, in no order, beside the
        drafted chain; and the occurrences of the path, given those of its parent.
        """
        if path:
            matches = self.text.follow(matches, token)
        matches = matches or self.text.find(path)
        candidates, context = self.successors.get(before, token)
        _, of_copied, of_recycled = STRIDES
        first = _first(matches, context)
        none = first + NONE * of_copied
        kinds = list(range(none, none + len(candidates) * of_recycled, of_recycled))
        if matches:
            text, recycled = self.text.text, candidates
            candidates = recycled.copy()
            copied = list(dict.fromkeys([text[at] for at, _ in matches]))[:CONTINUATIONS]
            for rank, copy in enumerate(copied):
                if copy in recycled:
                    kinds[recycled.index(copy)] -= (NONE - rank) * of_copied
                else:
                    candidates.append(copy)
                    kinds.append(first + rank * of_copied + ABSENT * of_recycled)
        known, chance, beside = self._known.get, self.chance, (matches, -1)
        pairs = zip(candidates, kinds, strict=True)
        return [(known(kind) or chance(kind), c, kind, beside) for c, kind in pairs], matches


def _first(matches: list[Match], context: int) -> int:
    """Number of the first kind with these matches and this context of the successors."""
    if not matches:
        return context
    length = matches[0][1]
    match = MATCH_CLASS[length] if length < len(MATCH_CLASS) else LONGEST_CLASS
    return (match + 1) * STRIDES[0] + context
