"""Lookahead decoding: Break the Sequential Dependency of LLM Inference Using Lookahead Decoding,
arXiv:2402.02057.

Every pass also runs a two-dimensional window of Jacobi trajectories; the n-grams that they form
fill a pool, and those that begin with the pending token are verified in the same pass (its section
3, Algorithm 2).

| paper | here | |
|---|---|---|
| W | `window` | columns of the window |
| N | `level` | length of an n-gram with its key, and levels of the window plus one |
| G | `guesses` | n-grams kept per key and verified per pass |
| n-gram pool C | `pool` | key token -> its last `guesses` continuations, oldest first |
| | `SIZES` | (ours) sizes among which the price of rows chooses with `window=0` |

Deviations from the paper and its published code, with their switches: docs/methods/lookahead.md.
"""

import random
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from skipbench.config.configurable import Natural, Positive
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.priced import Priced
from skipbench.decode.sampling import best_tokens
from skipbench.errors import SkipbenchError
from skipbench.lm.rows import TokenRows


class Size(NamedTuple):
    """W, N and G."""

    window: int
    level: int
    guesses: int


SIZES = {
    Size(2, 3, 2): (1.611, 6.2),
    Size(2, 4, 2): (1.735, 9.2),
    Size(2, 4, 4): (1.843, 10.6),
    Size(4, 4, 4): (1.905, 16.7),
    Size(5, 5, 5): (1.932, 26.5),
}
"""Tokens per round and mean rows per round of each size, with the prompt's n-grams in the pool: on
`dataset=tuning` (docs/methods/README.md).
"""


class Lookahead(Priced, Method):
    """Jacobi trajectories feed a pool of n-grams.

    >>> method = Lookahead(name="lookahead", level=3, guesses=2)
    >>> method.pool = {}
    >>> for gram in [(7, 8), (1, 2), (7, 8), (3, 4)]:
    ...     method._enter(5, gram)
    >>> method.pool  # the newest two that followed 5
    {5: [(7, 8), (3, 4)]}
    """

    window: Natural = 7
    """W, columns of the window, 2 or more; 0 chooses W, N and G by the price of rows."""
    level: Annotated[int, Meta(ge=3)] = 5
    """N, tokens of an n-gram with its key, 3 or more."""
    guesses: Positive = 7
    """G, n-grams kept per key and verified per pass."""
    pool_from_prompt: bool = False
    """Enters the n-grams of the prompt and of accepted text into the pool."""
    repeat_hit: bool = False
    """Enters the last token of a hit repeatedly, not all its tokens, as the published code."""
    whole: bool = True
    """Accepts all N tokens of an n-gram; false leaves the last one out, as the published code."""
    seed: int = 0
    """Draws the first window from the prompt's tokens."""
    first_window: Sequence[int] = ()
    """Ids of the first window, W + N - 3 of them; empty draws them."""

    logged = ("guesses", "size")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.size = Size(self.window, self.level, self.guesses)
        self.needs_latency = not (self.window or self.row_prices)
        if not self.window and (self.size[1:] != (5, 7) or self.first_window):
            raise SkipbenchError(
                f"lookahead: level={self.level}, guesses={self.guesses}, "
                f"first_window={list(self.first_window)} without a window; window=0 chooses all "
                "of them, so leave them out or set window, too"
            )
        if self.window == 1:
            raise SkipbenchError("lookahead: window=1; wanted window of 2 or more, or 0")
        wanted = self.window + self.level - 3
        if self.first_window and len(self.first_window) != wanted:
            raise SkipbenchError(
                f"lookahead: first_window of {len(self.first_window)}; wanted none or {wanted} "
                "tokens, window + level - 3"
            )

    def begin(self, state: State) -> None:
        """Runs the first level after the prompt, where the published code prefills it."""
        super().begin(state)
        lm, at = state.lm, state.lm.cache.length
        if not self.window:
            self.size = self.size_by_price(state, SIZES)
        self.log["size"] = [list(self.size)]
        prompt, size = state.tokens[:at], self.size.window + self.size.level - 3
        draw = random.Random(f"{self.seed}/{prompt}")
        first = list(self.first_window) or [draw.choice(prompt) for _ in range(size)]
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        self._history: list[int] = []
        if self.pool_from_prompt:
            self._enter_text(state.tokens)
        choices: list[int] = best_tokens(lm.logits(first, TokenRows.chain(at, size))).tolist()
        self._levels = [first[1:], choices]  # level 0 begins after the pending token

    def propose(self, state: State, budget: int) -> Draft:
        self._pending = state.pending
        full = len(self._levels) == self.size.level - 1
        tokens, parent = list[int](), list[int]()
        nodes: dict[tuple[int, ...], int] = {(): -1}  # node of every prefix; n-grams share them
        for gram in self.pool.get(state.pending, []) if full else []:
            for n in range(1, min(budget, len(gram) if self.whole else self.size.level - 2) + 1):
                if gram[:n] not in nodes:
                    nodes[gram[:n]] = len(tokens)
                    tokens.append(gram[n - 1])
                    parent.append(nodes[gram[: n - 1]])
        guessed = len(tokens)
        # Level 0 is a chain after the pending token; an entry of a deeper level follows the one
        # above it. The columns of deeper levels begin at the pending token itself, those of level 0
        # one further.
        above = [-1, *range(guessed, guessed + len(self._levels[0]))]
        tokens += self._levels[0]
        parent += above[:-1]
        for entries in self._levels[1:]:
            first = len(tokens)
            tokens += entries
            parent += above[: len(entries)]
            above = list(range(first, first + len(entries)))
        self.note(guesses=guessed)
        return Draft(tokens, parent, steps=guessed, num_verifiable=guessed)

    def adapt(self, state: State, verification: Verification) -> None:
        """Moves the window on by one column, and enters its n-grams when all levels are there."""
        levels = self._levels
        fresh = verification.target_tokens[-len(levels[-1]) :]  # choices after the deepest level
        if len(levels) < self.size.level - 1:
            self._levels = [entries[1:] for entries in levels] + [fresh[1:]]
        else:
            keys = [self._pending, *levels[0]]
            for key, *gram in zip(keys, *levels[1:], fresh, strict=True):
                self._enter(key, tuple(gram))
            self._levels = [levels[1][1:], *levels[2:], fresh]
        if self.pool_from_prompt:
            new = state.tokens[len(self._history) :]
            self._enter_text(new[-1:] * len(new) if self.repeat_hit else new)

    def _enter_text(self, tokens: list[int]) -> None:
        """Enters the n-grams that end with one of the next tokens of the text."""
        for token in tokens:
            self._history.append(token)
            if len(self._history) >= self.size.level:
                key, *gram = self._history[-self.size.level :]
                self._enter(key, tuple(gram))

    def _enter(self, key: int, gram: tuple[int, ...]) -> None:
        """Enters an n-gram as the newest; the oldest goes when there are more than G."""
        kept = [g for g in self.pool.get(key, []) if g != gram]
        self.pool[key] = [*kept, gram][-self.size.guesses :]
