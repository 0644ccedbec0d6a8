"""Parallel decoding by Jacobi iteration: Accelerating Transformer Inference for Translation via
Parallel Decoding, arXiv:2305.10427.

A block of n guessed tokens is refined by fixed-point iteration (its Eq. 3): every pass puts the
model's choice in place of each token, and the prefix that did not change is final. A pass is a
verification whose draft is the block.

| paper | here | |
|---|---|---|
| y_i^(k) | `block[i]` | guess i after k iterations |
| block size b | `block_size` | tokens iterated together (its hybrid Gauss-Seidel-Jacobi decoding) |

Deviations from the paper and its published code, with their switches: docs/methods/parallel.md.
"""

import random
from typing import Literal

from skipbench.config.configurable import TwoOrMore
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method


class Parallel(Method):
    """Block Jacobi decoding.

    >>> method = Parallel(name="parallel", block_size=4)
    >>> method.begin(state := State(None, [3, 1, 5]))
    >>> method.propose(state, budget=7).tokens
    [5, 5, 5]
    """

    block_size: TwoOrMore = 8
    """Tokens iterated together, 2 or more."""
    init: Literal["last", "prompt", "random"] = "last"
    """First guess of a new block: `last` repeats the last token, `prompt` copies the prompt's
    tokens, `random` draws ids.
    """
    window: Literal["block", "sliding"] = "block"
    """`block` starts a new block once all tokens are fixed; `sliding` fills it up every pass."""
    seed: int = 0
    """Seed of `init=random`."""

    def begin(self, state: State) -> None:
        super().begin(state)
        self._random = random.Random(f"{self.seed}/{state.prompt_length}")
        self._block: list[int] = []  # guesses after the pending token

    def propose(self, state: State, budget: int) -> Draft:
        if not self._block or self.window == "sliding":
            # The bonus is a token of the block too, so a block of n puts n - 1 guesses to the test.
            missing = self.block_size - 1 - len(self._block)
            self._block += [self._guess(state) for _ in range(missing)]
        tokens = self._block[:budget]
        return Draft(tokens, steps=len(tokens))

    def _guess(self, state: State) -> int:
        if self.init == "last":
            return state.pending
        if self.init == "prompt":
            return self._random.choice(state.tokens[: state.prompt_length])
        return self._random.randrange(state.lm.config.vocab_size)

    def adapt(self, state: State, verification: Verification) -> None:
        """Takes the choices of this pass, which saw the old block, as guesses (Eq. 3)."""
        self._block = verification.target_tokens[len(verification.accepted) + 1 :]
