"""A skip set that never changes: the fixed strategies of Self-SD Table 8 and SWIFT Figure 2, or one
given by hand.
"""

from collections.abc import Sequence

from skipbench.decode.drafting import Drafter
from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.decode.stopping import StopRule
from skipbench.skipset import SkipSet, fixed_set


class FixedSet:
    """Drafts with one skip set, as a chain or as a tree.

    Args:
        name: name of the method in records and tables.
        skip: the sub-layers that the draft leaves out.
        drafter: the stop rule and the widths of the tree.
        exit_sublayer: as in `Drafter.propose`; `None` shares no states with verification.
    """

    def __init__(
        self, name: str, skip: SkipSet, drafter: Drafter, exit_sublayer: int | None = None
    ) -> None:
        self.name, self.skip, self.drafter, self.exit_sublayer = name, skip, drafter, exit_sublayer

    def begin(self, state: State) -> None:
        self.drafter.begin()

    def propose(self, state: State, budget: int) -> Draft:
        return self.drafter.propose(state, self.skip, budget, self.exit_sublayer)

    def adapt(self, state: State, verification: Verification) -> None:
        self.drafter.update(verification)


def strategy(
    layers: int,
    name: str,
    ratio: float,
    stop: StopRule,
    attention: float | None = None,
    mlp: float | None = None,
    seed: int = 0,
    tree: Sequence[int] = (),
) -> FixedSet:
    """A set by rule.

    Args:
        layers: L, decoder layers of the model.
        name: the rule: uniform, first, middle, last or random.
        ratio: share of the layers to skip, above 0 to below 1; of the rule `random`, of the
            sub-layers.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        attention: share of the attention blocks to skip, in place of `ratio`; with `mlp`.
        mlp: share of the MLP blocks to skip. Self-SD Table 8 skips 24 attention and 12 MLP blocks
            of 40 layers: 0.6 and 0.3.
        seed: of the rule `random`.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: a ratio or share out of range, or one share without the other.
    """
    return FixedSet(name, fixed_set(name, layers, ratio, seed, attention, mlp), Drafter(stop, tree))


def explicit(
    layers: int, name: str, skip: str, stop: StopRule, tree: Sequence[int] = ()
) -> FixedSet:
    """A set given by hand.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        skip: the set in text form, such as `attn:1,3-5;mlp:2`, counted from 0.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: the model lacks a layer of the set.
    """
    return FixedSet(name, SkipSet.parse(skip, layers), Drafter(stop, tree))
