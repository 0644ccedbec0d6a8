"""Parallel decoding by Jacobi iteration: Accelerating Transformer Inference for Translation via
Parallel Decoding, arXiv:2305.10427.

A block of n guessed tokens is refined by fixed-point iteration (its Eq. 3): every pass puts the
model's choice in place of each token, and the prefix that did not change is final. A pass is a
verification whose draft is the block as it stands.

| paper | here | |
|---|---|---|
| y_i^(k) | `block[i]` | guess i after k iterations |
| block size b | `block_size` | tokens iterated together (its hybrid Gauss-Seidel-Jacobi decoding) |

Deviations from the paper and its published code, with their switches: docs/methods/parallel.md.
"""

import random

from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.errors import SkipbenchError

INITS = ("last", "prompt", "random")


class Parallel:
    """Block Jacobi decoding.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        block_size: tokens iterated together, 2 or more.
        init: first guess of a new block: `last` repeats the last token, `prompt` copies the
            prompt's tokens, `random` draws ids.
        window: `block` starts a new block once all its tokens are fixed; `sliding` fills it up
            after every pass.
        seed: seed of `init=random`.

    Raises:
        SkipbenchError: a block below 2 tokens, or a word that is not known.
    """

    def __init__(
        self,
        layers: int,
        name: str,
        block_size: int = 8,
        init: str = "last",
        window: str = "block",
        seed: int = 0,
    ) -> None:
        if block_size < 2 or init not in INITS or window not in ("block", "sliding"):
            raise SkipbenchError(
                f"parallel: {block_size=}, {init=}, {window=}; wanted a block of 2 or more tokens, "
                f"init {', '.join(INITS)}, and window block or sliding"
            )
        self.name, self.block_size, self.init, self.window, self.seed = (
            name,
            block_size,
            init,
            window,
            seed,
        )

    def begin(self, state: State) -> None:
        self._random = random.Random(f"{self.seed}/{state.prompt_length}")
        self._prompt, self._vocabulary = (
            state.tokens[: state.prompt_length],
            state.lm.config.vocab_size,
        )
        self._block: list[int] = []  # guesses behind the pending token

    def propose(self, state: State, budget: int) -> Draft:
        if not self._block or self.window == "sliding":
            # The bonus is a token of the block too, so a block of n puts n - 1 guesses to the test.
            self._block += [
                self._guess(state.pending) for _ in range(self.block_size - 1 - len(self._block))
            ]
        tokens = self._block[:budget]
        return Draft(tokens, steps=len(tokens))

    def _guess(self, pending: int) -> int:
        if self.init == "last":
            return pending
        return (
            self._random.choice(self._prompt)
            if self.init == "prompt"
            else self._random.randrange(self._vocabulary)
        )

    def adapt(self, state: State, verification: Verification) -> None:
        """What stood behind the bonus is replaced by the choices of this pass, which saw the old
        block (Eq. 3).
        """
        self._block = verification.target_tokens[len(verification.accepted) + 1 :]
