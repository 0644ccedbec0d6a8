"""What a decoding method is: the two verbs `propose` and `adapt`, and the values that pass between it and the loop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from skipbench.profile.latency import LatencyModel

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
        steps: forward passes of the drafting model; a guess that needed none counts one a token.
        candidates: only the first so many nodes may be accepted, all when `None`; the rows behind them are computed for
            the method's own use (Lookahead's window).
        early: for early exit, the states of the pending token and of the first nodes of a chain whose early sub-layers
            have run as the target's own: one list a row, [1, D] before the first and after every sub-layer. Verification
            goes on behind the last of them.
    """

    tokens: list[int] = field(default_factory=list)
    parent: list[int] | None = None
    q: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0
    candidates: int | None = None
    early: list[list[Tensor]] = field(default_factory=list)

    def parents(self) -> list[int]:
        """Parent of every node, also for a chain."""
        return list(range(-1, len(self.tokens) - 1)) if self.parent is None else self.parent

    def first_choices(self) -> set[int]:
        """Nodes on the chain that follows the first child of every node."""
        chain, last = set[int](), -1
        for node, parent in enumerate(self.parents()[: self.candidates]):
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
        choice: the target's most likely token behind the pending token and behind every node, n + 1 of them.
        states: the target's S + 1 hidden states [n + 1, D] of this pass, for methods that need them, else empty.
    """

    draft: Draft
    path: list[int]
    bonus: int
    choice: list[int]
    states: list[Tensor]

    @property
    def last_row(self) -> int:
        """Row of the pass whose output became the bonus: that of the last accepted token, 0 for the pending one."""
        return self.path[-1] + 1 if self.path else 0


class Method(Protocol):
    """A decoding method. All state between prompts is in `carry`, so that an interrupted run can go on.

    Attributes:
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
        """Course of the method's quantities over the prompt that just ended, one entry a round.

        `skip` holds `[first round, set]` of every set that drafted. Where it is missing and
        `skip_text` is empty, drafts count as made without a forward pass.
        """
        ...


@runtime_checkable
class UsesLatency(Protocol):
    """A method that weighs sub-layers by their latency: `latency`, where it is `None`, is set before the first prompt."""

    latency: LatencyModel | None
