"""What a decoding method is: the two verbs `propose` and `adapt`, and the values that pass between
it and the loop.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from skipbench.lm.rows import TokenRows
from skipbench.profile.latency import LatencyModel

if TYPE_CHECKING:
    from skipbench.decode.state import State


@dataclass(frozen=True)
class Draft:
    """Proposed tokens below the pending token: a chain, or a tree when `parent` says so.

    Attributes:
        tokens: n proposed ids, parents before children.
        parent: index of each node's parent, -1 for the pending token; `None` for a chain.
        q: for the children of a node (-1: of the pending token), the distribution [V] they were
            drawn from, in the order of the nodes and without replacement. A node that is missing
            has children that are guesses, not samples.
        steps: forward passes of the drafting model; a guess that needed none counts one per token.
        num_verifiable: only the first so many nodes may be accepted, all when `None`; the rows
            behind them are computed for the method's own use (Lookahead's window).
        early_exit_states: for early exit, the states of the pending token and of the first nodes of
            a chain whose early sub-layers have run as the target's own: one list per row, [1, D]
            before the first and after every sub-layer. Verification goes on behind the last of
            them.
        sources: what proposed each node, for a method with several sources; empty where it has
            one.
    """

    tokens: list[int] = field(default_factory=list)
    parent: list[int] | None = None
    q: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0
    num_verifiable: int | None = None
    early_exit_states: list[list[Tensor]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def parents(self) -> list[int]:
        """Parent of every node, also for a chain."""
        return list(range(-1, len(self.tokens) - 1)) if self.parent is None else self.parent

    def token_rows(self, start: int) -> TokenRows:
        """The rows of its verification: the pending token at cache row `start`, the nodes behind
        it.
        """
        if self.parent is None:
            return TokenRows.chain(start, 1 + len(self.tokens)).verified()
        return TokenRows.tree(start, (-1, *(parent + 1 for parent in self.parent))).verified()

    def first_choices(self) -> set[int]:
        """Nodes on the chain that follows the first child of every node."""
        chain, last = set[int](), -1
        for node, parent in enumerate(self.parents()[: self.num_verifiable]):
            if parent == last:
                chain.add(node)
                last = node
        return chain


@dataclass(frozen=True)
class Verification:
    """Result of one verification pass.

    Attributes:
        accepted: accepted nodes of the draft, in order, before any cut at EOS or at the token
            limit.
        bonus: the target's own token behind them.
        target_tokens: the target's most likely token behind the pending token and behind every
            node, n + 1 of them; 0 where its logits are not finite.
        hidden_states: the target's S + 1 hidden states [n + 1, D] of this pass, for methods that
            need them, else empty.
        top_tokens: the target's `needs_top_tokens` most likely tokens behind the pending token and
            behind every node, most likely first, n + 1 lists, for methods that need them, else
            empty.
    """

    draft: Draft
    accepted: list[int]
    bonus: int
    target_tokens: list[int]
    hidden_states: list[Tensor]
    top_tokens: list[list[int]] = field(default_factory=list)

    @property
    def last_row(self) -> int:
        """Row of the pass whose output became the bonus: that of the last accepted token, 0 for the
        pending one.
        """
        return self.accepted[-1] + 1 if self.accepted else 0


class Method(Protocol):
    """A decoding method: `begin`, `propose`, `adapt`. Nothing else has to be written.

    Optional attributes, with the value that counts where one is missing:
        needs_hidden_states (False): `adapt` reads the target's hidden states.
        needs_top_tokens (0): `adapt` reads so many of the target's most likely tokens per row.
        skip ("" for none): the skip set that drafts now; `str` of it is recorded per sample.
        state_dict ({}): JSON values that the next prompt starts from, so that an interrupted run
            can go on. A property with a setter where they are not one plain dict.
        searching (none): whether the search for a skip set that goes on while decoding lasts.
        log ({}): the method's quantities over the prompt at hand, one list per quantity; set anew
            in `begin`.
        drafter (None): the `Drafter` in use, whose log and stop rule are recorded with the method's
            own.
    """

    name: str

    def begin(self, state: "State") -> None:
        """Starts a prompt, which has been prefilled."""
        ...

    def propose(self, state: "State", budget: int) -> Draft:
        """Proposes at most `budget` tokens below the pending one.

        Scratch rows of the cache may be overwritten.
        """
        ...

    def adapt(self, state: "State", verification: Verification) -> None:
        """Learns from a round; the accepted tokens are already committed."""
        ...


class MethodCopies:
    """One method per request in flight: the one that is given where it is idle, else a copy, which
    goes on from what that one has learnt and is kept for later requests.
    """

    def __init__(self, method: Method) -> None:
        self.first = method
        self._idle = [method]

    def take(self) -> Method:
        """A method for one request, between two rounds of the others."""
        return self._idle.pop() if self._idle else copy.deepcopy(self.first)

    def give_back(self, method: Method) -> None:
        self._idle.insert(len(self._idle) if method is self.first else 0, method)


def skip_text(method: Method) -> str:
    """The current skip set in text form, empty for none."""
    return str(getattr(method, "skip", ""))


def state_dict(method: Method) -> dict[str, Any]:
    """What the next prompt starts from, as plain JSON values."""
    stop = getattr(getattr(method, "drafter", None), "stop", None)
    return {
        **getattr(method, "state_dict", {}),
        **({} if stop is None else {"stop": stop.state_dict}),
    }


def load_state_dict(method: Method, state: dict[str, Any]) -> None:
    """Restores what `state_dict` returned."""
    own = dict(state)
    if (stop := own.pop("stop", None)) is not None:
        method.drafter.stop.state_dict = stop  # type: ignore[attr-defined]  # an optional attribute
    if own:
        method.state_dict = own  # type: ignore[attr-defined]  # an optional attribute


def log_of(method: Method) -> dict[str, list[Any]]:
    """The quantities of the prompt that just ended: the drafter's and the method's own."""
    drafter = getattr(method, "drafter", None)
    return {**({} if drafter is None else drafter.log), **getattr(method, "log", {})}


@runtime_checkable
class UsesLatency(Protocol):
    """A method that weighs sub-layers by their latency: `latency`, where it is `None`, is set
    before the first prompt.
    """

    latency: LatencyModel | None
