"""`State`, `Draft` and `Verification`: the values that pass between a method and the loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from skipbench.decode.sampling import Logprob, Sampler
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.host import NO_HOST


@dataclass(frozen=True)
class Draft:
    """Proposed tokens after the pending token: a chain, or a tree where `parent` is given.

    >>> tree = Draft([7, 8, 9], parent=[-1, -1, 0], steps=2)  # 7 or 8 come next, 9 follows 7
    >>> tree.parents(), tree.first_choices()
    ([-1, -1, 0], {0, 2})
    >>> Draft([7, 8, 9]).parents()
    [-1, 0, 1]

    Attributes:
        tokens: n proposed ids, parents before children.
        parent: index of each node's parent, -1 for the pending token; `None` for a chain.
        q: distribution [V] that the children of a node (-1: of the pending token) were drawn from,
            in the order of the nodes and without replacement. Children of a node that is missing
            are guesses, not samples.
        steps: forward passes of the drafting model; a guess that needed none counts one per token.
        num_verifiable: only the first so many nodes may be accepted, all when `None`; the rows
            after them are computed for the method itself (Lookahead's window).
        early_exit_states: for early exit, the states of the pending token and of the first nodes of
            a chain whose early sub-layers have run as the target's own: one list per row, [1, D]
            before the first and after every sub-layer. Verification continues after the last.
        sources: name of the source of each node, for a method with several; else empty.
        unread: the tokens [n] of a chain on the device, while `tokens` has zeros in their places:
            the host reads them together with the target's choices.
        passes: forward passes that were run for it, of whatever model.
        plan: of those passes, where they are the model's own.
    """

    tokens: list[int] = field(default_factory=list)
    parent: list[int] | None = None
    q: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0
    num_verifiable: int | None = None
    early_exit_states: list[list[Tensor]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    unread: Tensor | None = None
    passes: int = 0
    plan: DraftPlan | None = None

    def parents(self) -> list[int]:
        """Parent of every node, also for a chain."""
        return list(range(-1, len(self.tokens) - 1)) if self.parent is None else self.parent

    def token_rows(self, start: int) -> TokenRows:
        """Rows of its verification: the pending token at cache row `start`, then the nodes."""
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
        accepted: accepted nodes in order, before any cut at EOS or at the token limit.
        bonus: the target's token after them.
        target_tokens: the target's most likely token after the pending token and after every
            node, n + 1 of them; 0 where its logits are not finite.
        hidden_states: the target's S + 1 hidden states [n + 1, D] of this pass, for methods that
            need them, else empty.
        top_tokens: the target's `needs_top_tokens` most likely tokens after the pending token and
            after every node, most likely first, n + 1 lists; else empty.
        logprobs: of the accepted tokens and the bonus, where `State.top_logprobs` asks for them.
    """

    draft: Draft
    accepted: list[int]
    bonus: int
    target_tokens: list[int]
    hidden_states: list[Tensor]
    top_tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)

    @property
    def last_row(self) -> int:
        """Row of the pass before the bonus: the last accepted token's, 0 for the pending one's."""
        return self.accepted[-1] + 1 if self.accepted else 0

    @property
    def chain(self) -> int:
        """How many nodes on the chain of first choices were accepted."""
        if self.draft.parent is None:
            return len(self.accepted)
        return len(self.draft.first_choices().intersection(self.accepted))


@dataclass(frozen=True)
class Launched:
    """A pass of a verification that the host has not read.

    Attributes:
        logits, hidden_states: after the pending token and every node [n + 1, V], and as of
            `Verification`.
        best, read: the best tokens [n + 1] on the device, -1 where logits are not finite, and how
            to read them, the draft's unread ones behind; `None` where more than them is read.
        switches: the turn of the cache that it belongs to.
        began, ended: moments of the clock.
    """

    draft: Draft
    logits: Tensor
    hidden_states: list[Tensor] = field(default_factory=list)
    best: Tensor | None = None
    read: Callable[[], list[Any]] | None = None
    switches: int = 0
    began: Any = None
    ended: Any = None


Finish = Literal["eos", "length"]
Process = Callable[[list[int], Draft, Tensor], Tensor]
"""Committed tokens, the draft, and the target's logits [n + 1, V] after the pending token and
every node -> the logits to choose from; only the target's, so that any draft stays lossless.
"""


class State:
    """Committed tokens and the limits of one prompt.

    Invariant at the top of every round: `lm.cache.length == len(tokens) - 1`; the last committed
    token is pending, its K/V does not exist yet.
    """

    def __init__(
        self,
        lm: LM,
        prompt: list[int],
        sampler: Sampler | None = None,
        max_new_tokens: int = 128,
        eos: frozenset[int] = frozenset(),
        process: Process | None = None,
        reference: list[int] | None = None,
        top_logprobs: int | None = None,
    ) -> None:
        """`sampler`: greedy where none is given; `eos`: ids that end the output; `reference`: an
        output whose tokens are accepted in the place of the target's choices (teacher forcing);
        `top_logprobs`: how many log-probabilities are kept per emitted token, besides its own.
        """
        self.lm, self.sampler, self.process = lm, sampler or Sampler(), process
        self.prompt_length, self.tokens = len(prompt), list(prompt)
        self.max_new_tokens, self.eos, self.reference = max_new_tokens, eos, reference
        self.top_logprobs = top_logprobs
        self.finish: Finish | None = None
        self.launched: Launched | None = None  # the pass of the next round
        self.late = False  # rounds are launched before the host reads the ones before
        self.host = NO_HOST  # the host's part of the method's rounds, where it is known

    @property
    def reads_late(self) -> bool:
        """True on a device that works while the host reads, where of every row nothing but the best
        token is asked for.
        """
        plain = self.process is None and not self.reference and self.top_logprobs is None
        return plain and self.sampler.greedy and self.lm.engine.works_ahead

    @property
    def pending(self) -> int:
        return self.tokens[-1]

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_new_tokens - (len(self.tokens) - self.prompt_length)

    def forced(self, draft: Draft) -> list[int] | None:
        """The reference's tokens after the pending token and after every node, n + 1 of them; past
        its end its last one.
        """
        if not self.reference:
            return None
        places = [len(self.tokens) - self.prompt_length]
        for parent in draft.parents():
            places.append(places[parent + 1] + 1)
        return [self.reference[min(place, len(self.reference) - 1)] for place in places]

    def emit(self, tokens: list[int]) -> int:
        """Appends tokens up to the first EOS (kept) or the limit; returns how many."""
        kept = tokens[: self.remaining]
        for i, token in enumerate(kept):
            if token in self.eos:
                kept = kept[: i + 1]
                self.finish = "eos"
                break
        self.tokens += kept
        if self.finish is None and self.remaining == 0:
            self.finish = "length"
        return len(kept)

    def commit(self, verification: Verification) -> int:
        """Keeps the accepted K/V rows and emits the round's tokens; returns how many."""
        base, draft, accepted = self.lm.cache.length, verification.draft, verification.accepted
        emitted = self.emit([draft.tokens[node] for node in accepted] + [verification.bonus])
        # Row 0 of the pass is the pending token's, row 1 + n node n's. Emitted tokens but the last
        # have their row kept.
        rows = [0, *(1 + node for node in accepted[: emitted - 1])]
        self.lm.cache.keep([base + row for row in rows])
        return emitted
