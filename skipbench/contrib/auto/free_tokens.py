"""`FreeTokens`: draft tokens that need no forward pass, copies and recycled successors, each with
the chance that it is right.
"""

from collections.abc import Sequence

from skipbench.config.configurable import Stateful
from skipbench.contrib.auto.chances import Counters
from skipbench.contrib.auto.kinds import (
    ABSENT,
    CONTINUATIONS,
    FREE,
    FREE_WEIGHT,
    MATCH_CLASS,
    NONE,
    NUMBER,
    PRIORS,
)
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
        self._known: dict[tuple[int, int, int, int], tuple[float, int]] = {}
        """Chance and number of kinds, by `Kind`, until more is counted."""

    def chance(self, kind: int) -> float:
        """Chance of a free kind: where copies fail, untried kinds are trusted less, too."""
        hits, expected = self.tried
        share = min(1.0, (hits + FREE_WEIGHT) / (expected + FREE_WEIGHT))
        return self.counters.chance(kind, share * PRIORS[kind])

    def count(self, kind: int, hit: bool) -> None:
        """Counts a try of a kind, which may be one of drafted tokens."""
        self._known.clear()
        self.counters.update(kind, hit)
        if kind < FREE:
            self.tried = [self.tried[0] + hit, self.tried[1] + PRIORS[kind]]

    def after(
        self, before: int, token: int, path: list[int], matches: list[Match]
    ) -> tuple[list[Child], list[Match]]:
        """The candidates after a path that ends in `before` and `token`, in no order, beside the
        drafted chain; and the occurrences of the path, given those of its parent.
        """
        if path:
            matches = self.text.follow(matches, token)
        matches = matches or self.text.find(path)
        match, text = -1, self.text.text
        if matches:
            length = matches[0][1]
            match = MATCH_CLASS[length] if length < len(MATCH_CLASS) else 5
        copied = list(dict.fromkeys(text[at] for at, _ in matches))[:CONTINUATIONS]
        ranks = {candidate: rank for rank, candidate in enumerate(copied)}
        top, context = self.successors.get(before, token)
        recycled = {candidate: rank for rank, candidate in enumerate(top)}
        children: list[Child] = []
        beside = (matches, -1)
        for candidate in recycled | ranks:
            of = match, ranks.get(candidate, NONE), recycled.get(candidate, ABSENT), context
            if (known := self._known.get(of)) is None:
                known = self._known[of] = self.chance(NUMBER[of]), NUMBER[of]
            children.append((known[0], candidate, known[1], beside))
        return children, matches
