"""What a decoding method is: the two verbs `propose` and `adapt`, and the values that pass between it and the loop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from skipbench.decode.state import State


@dataclass(frozen=True)
class Draft:
    """Proposed tokens below the pending token: a chain, or a tree when `parent` says so.

    Attributes:
        tokens: n proposed ids, parents before children.
        parent: index of each node's parent, -1 for the pending token; `None` for a chain.
        q: for the children of a node (-1: of the pending token), the distribution [V] they were drawn from, in the order of
            the nodes and without replacement. A node that is missing has children that are guesses, not samples.
        steps: forward passes of the drafting model.
    """

    tokens: list[int] = field(default_factory=list)
    parent: list[int] | None = None
    q: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0

    def parents(self) -> list[int]:
        """Parent of every node, also for a chain."""
        return list(range(-1, len(self.tokens) - 1)) if self.parent is None else self.parent

    def first_choices(self) -> set[int]:
        """Nodes on the chain that follows the first child of every node."""
        chain, last = set[int](), -1
        for node, parent in enumerate(self.parents()):
            if parent == last:
                chain.add(node)
                last = node
        return chain


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    Attributes:
        path: accepted nodes of the draft, in order, before any cut at EOS or at the token limit.
        bonus: the target's own token behind them.
        states: the target's S + 1 hidden states [n + 1, D] of this pass, for methods that need them, else empty.
    """

    draft: Draft
    path: list[int]
    bonus: int
    states: list[Tensor]


class Method(Protocol):
    """A decoding method. All state between prompts is in `carry`, so that an interrupted run can go on.

    Class attributes:
        needs_states: whether `adapt` reads the target's hidden states.
        feature: one line for `list methods`.
    """

    name: str
    feature: str
    needs_states: bool

    def begin(self, state: "State") -> None:
        """A new prompt has been prefilled."""
        ...

    def propose(self, state: "State", room: int) -> Draft:
        """At most `room` tokens below the pending one. Scratch rows of the cache may be overwritten."""
        ...

    def adapt(self, state: "State", verdict: Verdict) -> None:
        """Learns from a round; the accepted tokens are already committed."""
        ...

    def carry(self) -> dict[str, Any]:
        """What the next prompt starts from, as plain JSON values."""
        ...

    def resume(self, carry: dict[str, Any]) -> None:
        """Restores what `carry` returned."""
        ...

    def skip_text(self) -> str:
        """The current skip set in text form."""
        ...

    def trace(self) -> dict[str, list[Any]]:
        """Course of the method's quantities over the prompt that just ended, one entry a round."""
        ...
