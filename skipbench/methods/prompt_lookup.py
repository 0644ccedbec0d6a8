"""Prompt lookup decoding (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding): n-grams of
the text itself as drafts.

The last n tokens are looked up in the prompt and the output; the tokens that followed there are
proposed. Longer n-grams are tried first.

Deviations from the published code, with their switches: docs/methods/prompt-lookup.md.
"""

from typing import Literal

from skipbench.config.configurable import Positive
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method


class PromptLookup(Method):
    """Drafts by copying.

    >>> method = PromptLookup(name="prompt-lookup", length=3)
    >>> method.begin(state := State(None, [7, 1, 2, 3, 4, 5, 1, 2]))
    >>> method.propose(state, budget=7).tokens  # what followed 1, 2 before
    [3, 4, 5]
    """

    ngram: Positive = 3
    """Longest n-gram to look up, in tokens."""
    length: Positive = 10
    """Maximum tokens to copy per round."""
    occurrence: Literal["first", "last"] = "last"
    """`last`, the most recent occurrence, or `first`."""
    output: bool = True
    """Looks in the prompt and in the output; false looks in the prompt only."""
    continuation: Literal["extend", "cut", "full"] = "extend"
    """Where the text ends before `length` tokens are copied: `extend` continues from the copied
    tokens, `cut` drafts fewer, `full` looks only at occurrences with `length` tokens after them.
    """

    logged = ("ngram",)

    def begin(self, state: State) -> None:
        super().begin(state)
        self._following: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after it
        self._next = 1  # first index whose predecessors are not in the table
        self._index(state.tokens[: state.prompt_length])

    def _index(self, tokens: list[int]) -> None:
        """Enters every n-gram that ends before a known token, or before `length` of them."""
        end = len(tokens) - (self.length if self.continuation == "full" else 1) + 1
        for at in range(self._next, end):
            for n in range(1, min(self.ngram, at) + 1):
                key = tuple(tokens[at - n : at])
                if self.occurrence == "last" or key not in self._following:
                    self._following[key] = at
        self._next = max(self._next, end)

    def propose(self, state: State, budget: int) -> Draft:
        tokens, length = state.tokens, min(self.length, budget)
        for n in range(min(self.ngram, len(tokens)), 0, -1):
            at = self._following.get(tuple(tokens[-n:]))
            if at is not None and budget > 0:
                end = len(tokens) if self.output else state.prompt_length
                copied = tokens[at : min(at + length, end)]
                while self.continuation == "extend" and end == len(tokens) and len(copied) < length:
                    copied.append(copied[at - end])  # the token one period before
                self.note(ngram=n)
                return Draft(copied, steps=len(copied))
        self.note(ngram=0)
        return Draft()

    def adapt(self, state: State, verification: Verification) -> None:
        if self.output:
            self._index(state.tokens)
