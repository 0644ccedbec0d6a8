"""Sources of draft tokens that need no forward pass: earlier occurrences of the text's n-grams,
and the target's most likely tokens where a context was verified before.
"""

from collections.abc import Sequence

from skipbench.config.configurable import Stateful
from skipbench.decode.draft import State

Match = tuple[int, int]
"""Index in the text of the token that follows an occurrence, and how many tokens before it are
those of the context.
"""
SEPARATOR = -1  # between two texts; no token


class TextIndex(Stateful):
    """Finds earlier occurrences of the last tokens of a text, or of a path drafted after it.

    Occurrences are kept by their last two tokens, the newest `matches` of them, and compared
    backwards; a context whose last two tokens are new is looked up by the last one.
    """

    carried = ("earlier",)

    def __init__(self, matches: int = 8, longest: int = 16, limit: int = 0) -> None:
        """`matches`: occurrences per context; `longest`: tokens compared; `limit`: of `earlier`."""
        self.matches, self.longest, self.limit = matches, longest, limit
        self.earlier: list[int] = []
        """Earlier outputs, each followed by a separator."""
        self.begin([])

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts a text, after the `earlier` ones."""
        self.text = list(self.earlier)
        self._pairs: dict[tuple[int, int], list[int]] = {}
        self._single: dict[int, int] = {}
        self._indexed, self._start = 0, len(self.text)
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, each of them a continuation of those before it."""
        text = self.text
        text += tokens
        pairs, single, keep = self._pairs, self._single, 2 * self.matches
        for at in range(max(1, self._indexed), len(text)):
            before, token = text[at - 1], text[at]
            if token < 0 or before < 0:
                continue
            single[before] = at
            if at > 1 and text[at - 2] >= 0:
                places = pairs.setdefault((text[at - 2], before), [])
                places.append(at)
                if len(places) > keep:
                    del places[: self.matches]
        self._indexed = len(text)

    def advance(self, state: State) -> None:
        """Appends the new tokens of the present text, and keeps its output once it is finished."""
        self.extend(state.tokens[len(self.text) - self._start :])
        if state.finish is not None and self.limit:
            self.earlier = [*self.earlier, *state.output, SEPARATOR][-self.limit :]

    def find(self, path: Sequence[int] = ()) -> list[Match]:
        """Occurrences of the end of the text and `path`, the longest first, then the newest."""
        text, drafted, end = self.text, len(path), len(self.text)
        newest = path[-2:] if drafted > 1 else [*text[drafted - 2 :], *path]
        token = newest[-1] if newest else SEPARATOR
        positions = self._pairs.get((newest[0], token)) if len(newest) > 1 else None
        if positions is None:
            at = self._single.get(token)
            return [] if at is None else [(at, 1)]

        def back(k: int) -> int:
            """The k-th last token of the context."""
            if k <= drafted:
                return path[-k]
            return text[end + drafted - k] if k - drafted <= end else SEPARATOR

        matches: list[Match] = []
        for at in reversed(positions[-self.matches :]):
            length, longest = 2, min(self.longest, at)
            while length < longest and text[at - 1 - length] == back(length + 1) != SEPARATOR:
                length += 1
            matches.append((at, length))
        matches.sort(key=lambda match: -match[1])  # stable: of equal ones the newest stays first
        return matches

    def follow(self, matches: Sequence[Match], token: int) -> list[Match]:
        """The `matches` that go on with `token`, one token further."""
        text, end = self.text, len(self.text)
        return [
            (at + 1, length + 1)
            for at, length in matches
            if text[at] == token and at + 1 < end and text[at + 1] >= 0
        ]


class Successors(Stateful):
    """The target's most likely tokens after a context of one or two tokens, as last verified
    (Token Recycling's matrix, arXiv:2408.08696, with a second one for pairs of tokens).
    """

    def __init__(self, capacity: int, pairs: bool = True) -> None:
        """`capacity`: contexts kept per kind, the newest; `pairs`: keeps those of two tokens."""
        self.capacity, self.pairs = capacity, pairs
        self._single: dict[int, list[int]] = {}
        self._pair: dict[tuple[int, int], list[int]] = {}

    def get(self, before: int, token: int) -> tuple[list[int], int]:
        """The most likely tokens, and the length of the context they were stored under, 0 to 2."""
        if (top := self._pair.get((before, token))) is not None:
            return top, 2
        top = self._single.get(token)
        return ([], 0) if top is None else (top, 1)

    def update(self, before: int, token: int, top: list[int]) -> None:
        """Enters the most likely tokens `top` of a verified row."""
        self.learn(before, token, [], [], [top])

    def learn(
        self, before: int, pending: int, tokens: list[int], parents: list[int], top: list[list[int]]
    ) -> None:
        """Enters every row of a verification: `pending` after `before`, and the nodes `tokens`, the
        front ones last, so that of rows with one context the likelier one stays.
        """
        path, single, pair = [pending, *tokens], self._single, self._pair
        contexts = [before, *[path[parent + 1] for parent in parents]]
        for context, token, best in zip(contexts[::-1], path[::-1], top[::-1], strict=True):
            single.pop(token, None)  # to enter it again as the newest
            single[token] = best
            if self.pairs:
                pair.pop((context, token), None)
                pair[context, token] = best
        while len(single) > self.capacity:
            del single[next(iter(single))]
        while len(pair) > self.capacity:
            del pair[next(iter(pair))]

    def state_dict(self) -> list[list[list[int]]]:
        """Rows `[token, *top]` and `[before, token, *top]`, oldest first."""
        single = [[token, *top] for token, top in self._single.items()]
        return [single, [[*context, *top] for context, top in self._pair.items()]]

    def load_state_dict(self, state: list[list[list[int]]]) -> None:
        self._single = {row[0]: row[1:] for row in state[0]}
        self._pair = {(row[0], row[1]): row[2:] for row in state[1]}
