"""Vanilla autoregressive decoding: nothing is drafted in the same loop, with the same clock."""

from skipbench.decode.draft import Draft, State
from skipbench.decode.method import Method


class Vanilla(Method):
    """One token per full pass; as a measured method, its speedup is the noise of the machine.

    >>> Vanilla().propose(State(None, [3, 1, 4]), budget=7).tokens
    []
    """

    name: str = "vanilla"

    drafts = False

    def propose(self, state: State, budget: int) -> Draft:
        return Draft()
