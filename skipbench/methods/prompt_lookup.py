"""Prompt lookup decoding (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding): n-grams of
the text itself as drafts.

The last n tokens are looked up in the prompt and in what was generated; what followed there is
proposed. Longer n-grams are tried first.

Deviations from the published code, with their switches: docs/methods/prompt-lookup.md.
"""

from typing import Any

from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.errors import SkipbenchError

CONTINUATIONS = ("extend", "cut", "full")


class PromptLookup:
    """Drafts by copying.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        ngram: longest n-gram to look up, in tokens.
        length: most tokens to copy per round.
        occurrence: `last`, the most recent occurrence, or `first`.
        output: looks in the prompt and in the output; false looks in the prompt only.
        continuation: where the text ends before `length` tokens are copied: `extend` goes on from
            the copied tokens, `cut` drafts fewer, `full` looks only at occurrences with `length`
            tokens behind them.

    Raises:
        SkipbenchError: a number below 1, or a word that is not known.
    """

    def __init__(
        self,
        layers: int,
        name: str,
        ngram: int = 3,
        length: int = 10,
        occurrence: str = "last",
        output: bool = True,
        continuation: str = "extend",
    ) -> None:
        if (
            min(ngram, length) < 1
            or occurrence not in ("first", "last")
            or continuation not in CONTINUATIONS
        ):
            raise SkipbenchError(
                f"prompt-lookup: {ngram=}, {length=}, {occurrence=}, {continuation=}; wanted "
                "numbers of 1 or more, occurrence first or last, and continuation "
                f"{', '.join(CONTINUATIONS)}"
            )
        self.continuation = continuation
        self._least = length if continuation == "full" else 1  # known tokens behind an occurrence
        self.name, self.ngram, self.length, self.occurrence, self.output = (
            name,
            ngram,
            length,
            occurrence,
            output,
        )

    def begin(self, state: State) -> None:
        self._behind: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token behind it
        self._next = 1  # first index whose predecessors are not in the table
        self.log: dict[str, list[Any]] = {"ngram": []}
        self._index(state.tokens[: state.prompt_length])

    def _index(self, tokens: list[int]) -> None:
        """Enters every n-gram that ends before a known token, or before `length` of them."""
        end = len(tokens) - self._least + 1
        for at in range(self._next, end):
            for n in range(1, min(self.ngram, at) + 1):
                key = tuple(tokens[at - n : at])
                if self.occurrence == "last" or key not in self._behind:
                    self._behind[key] = at
        self._next = max(self._next, end)

    def propose(self, state: State, budget: int) -> Draft:
        tokens, length = state.tokens, min(self.length, budget)
        for n in range(min(self.ngram, len(tokens)), 0, -1):
            at = self._behind.get(tuple(tokens[-n:]))
            if at is not None and budget > 0:
                end = len(tokens) if self.output else state.prompt_length
                copied = tokens[at : min(at + length, end)]
                while self.continuation == "extend" and end == len(tokens) and len(copied) < length:
                    copied.append(copied[at - end])  # the token one period before
                self.log["ngram"].append(n)
                return Draft(copied, steps=len(copied))
        self.log["ngram"].append(0)
        return Draft()

    def adapt(self, state: State, verification: Verification) -> None:
        if self.output:
            self._index(state.tokens)
