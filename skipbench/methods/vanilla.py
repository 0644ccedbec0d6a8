"""Vanilla autoregressive decoding: the method that drafts nothing, so that the baseline pays the
same loop, cache and clock.
"""

from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State


class Vanilla:
    """One token a full pass."""

    name = "vanilla"

    def begin(self, state: State) -> None:
        """Nothing to prepare."""

    def propose(self, state: State, budget: int) -> Draft:
        return Draft()

    def adapt(self, state: State, verification: Verification) -> None:
        """Nothing to learn."""


def vanilla(layers: int, name: str) -> Vanilla:
    """The baseline as a method of its own: its speedup over itself shows the noise of the machine.

    Args:
        layers, name: as every method takes them; not used.
    """
    return Vanilla()
