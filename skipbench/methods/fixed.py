"""A skip set that never changes: the fixed strategies of Self-SD Table 8 and SWIFT Figure 2, or one given by hand."""

from collections.abc import Sequence

from skipbench.decode.drafting import Drafter
from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.decode.stopping import StopRule
from skipbench.skipset import SkipSet, fixed_set


class FixedSet:
    """Drafts with one skip set, by any stop rule, as a chain or as a tree; `exit_sublayer` as in `Drafter.propose`."""

    def __init__(self, name: str, skip: SkipSet, drafter: Drafter, exit_sublayer: int | None = None) -> None:
        self.name, self.skip, self.drafter, self.exit_sublayer = name, skip, drafter, exit_sublayer

    def begin(self, state: State) -> None:
        self.drafter.begin()

    def propose(self, state: State, budget: int) -> Draft:
        return self.drafter.propose(state, self.skip, budget, self.exit_sublayer)

    def adapt(self, state: State, verification: Verification) -> None:
        self.drafter.update(verification)


def strategy(layers: int, name: str, ratio: float, stop: StopRule, seed: int = 0, tree: Sequence[int] = ()) -> FixedSet:
    """The fixed strategy `name`: uniform, first, middle, last or random. Raises SkipbenchError for a ratio out of range."""
    return FixedSet(name, fixed_set(name, layers, ratio, seed), Drafter(stop, tree))


def explicit(layers: int, name: str, skip: str, stop: StopRule, tree: Sequence[int] = ()) -> FixedSet:
    """The set in text form, such as `attn:1,3-5;mlp:2`. Raises SkipbenchError when the model lacks a layer of it."""
    return FixedSet(name, SkipSet.parse(skip, layers), Drafter(stop, tree))
