"""`SkipMethod`: the base of all methods that draft with sub-layers left out."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from skipbench.config.configurable import Positive
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.stopping import StopRule
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.cache import read_later
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import Prices

Passes = Callable[[list[int] | Tensor], Tensor]
"""A token, which follows those before -> the draft's logits [1, V] after it."""
CONFIDENCE_CLASSES = (0.5, 0.8, 0.95)  # SWIFT section 4.2.2: (0, .5], (.5, .8], (.8, .95], (.95, 1]


class SkipMethod(Method):
    """Draft steps over a skip set, which the method chooses, one stop rule, and optionally a tree.

    The tree is SWIFT's (arXiv:2410.06916, section 4.2.2): the chain of first choices, and beside
    each of its nodes `width - 1` leaves; the width falls with the confidence of the first choice.
    Under sampling, all children of a node are drawn from the draft's distribution without
    replacement, and the first one drawn is continued.

    Per round, `draft_log` holds the `threshold` after it, `steps`, how many of the first choices
    were `accepted`, and the `confidence` of each that the host read; of a tree, the `rank` among
    its siblings of an accepted leaf beside the chain, 0 for none. Per new skip set: its first round
    and itself, under `skip`.
    """

    layers: Positive
    stop: StopRule
    """When a chain of draft steps ends; chosen by `stop@method.stop`."""
    tree: Sequence[Positive] = ()
    """Children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the first
    choice included, such as [10, 5, 3, 1]; empty drafts a chain.
    """

    precision: Literal["full", "int8", "int4"] = "full"
    """Weights of draft steps, head included: the model's own, or a second copy in fewer bits."""

    given_prices: Prices | None = field(default=None, init=False)
    """In the place of what was measured."""
    skip: DraftPlan = field(init=False)
    exit_sublayer: int | None = field(default=None, init=False)
    """Leaves out the sub-layers from there on, and lets verification continue from the states of
    those before, which are then the full model's; `skip` only says so in the trace. `None` shares
    no states.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree and len(self.tree) != len(CONFIDENCE_CLASSES) + 1:
            raise SkipbenchError(
                f"tree widths={list(self.tree)}: wanted {len(CONFIDENCE_CLASSES) + 1} positive "
                "numbers, or none for a chain"
            )
        self.needs_latency = self.needs_latency or self.stop.needs_latency
        self.skip = self.plan()

    def plan(self, skipped: Iterable[int] = ()) -> DraftPlan:
        """A draft without these sub-layers, of which 2i is the attention of layer i and 2i + 1 its
        MLP; the rest as `precision` says.
        """
        return self.cheaper(DraftPlan.of(self.layers, skipped))

    def cheaper(self, skip: DraftPlan) -> DraftPlan:
        """A skip set read in `precision`."""
        return skip if self.precision == "full" else replace(skip, variant=self.precision)

    @property
    def variant(self) -> str:
        return self.checked_skip.variant or self.plan().variant

    @property
    def checked_skip(self) -> DraftPlan:
        """`skip`. Raises SkipbenchError where the method set something else than a plan."""
        if not isinstance(self.skip, DraftPlan):
            raise SkipbenchError(
                f"{self.name}: skip is a {type(self.skip).__name__}; wanted self.plan([...]) of "
                "numbers of sub-layers, 2i for the attention of layer i and 2i + 1 for its MLP"
            )
        return self.skip

    def check_states_shared(self) -> None:
        """Raises SkipbenchError for states of a draft that verification cannot continue from."""
        if self.precision != "full":
            raise SkipbenchError(
                f"{self.name}: precision={self.precision}; verification continues from the draft's "
                "states, which must be the full model's: wanted precision=full"
            )

    def prepare(self, state: State) -> None:
        if self.checked_skip.variant:  # makes the copy
            state.lm.logits([state.pending], TokenRows.chain(state.lm.cache.length, 1), self.skip)

    def begin(self, state: State) -> None:
        super().begin(state)
        self.stop.begin()
        names = ["skip", "threshold", "steps", "accepted", "confidence"]
        names += ["rank"] if self.tree else []
        self.draft_log: dict[str, list[Any]] = {name: [] for name in names}
        self._drafted: DraftPlan | None = None
        self._confidence: list[float] = []

    def propose(self, state: State, budget: int) -> Draft:
        return self.draft(state, budget, unread=state.reads_late)

    def draft(
        self, state: State, budget: int, first: Tensor | None = None, unread: bool = False
    ) -> Draft:
        """Drafts up to K tokens after the pending one; the first whose confidence is below the
        threshold is the last.

        Args:
            first: the draft's logits [1, V] after the pending one, if known.
            unread: leaves the tokens of a chain on the device, as `Draft.unread`.
        """
        plan = self.skip
        if plan is not self._drafted and plan != self._drafted:
            self._drafted = plan = self.checked_skip
            self.draft_log["skip"].append([len(self.draft_log["steps"]), str(plan)])
            self.stop.priced(state, plan, self.given_prices)
        steps = min(self.stop.begin_draft(), budget)
        passes = self._passes(state, plan, first)
        if not self.tree:
            return self._chain(state, passes, steps, unread)
        if state.sampler.greedy:
            return self._chain_with_leaves(state, passes, steps)
        return self._sampled_tree(state, passes, steps)

    def _passes(self, state: State, plan: DraftPlan, first: Tensor | None) -> Passes:
        """Passes of one row by the draft's plan, of which the first may be known."""
        lm, end, rows = state.lm, self.exit_sublayer, itertools.count(state.lm.cache.length)
        self._early = list[list[Tensor]]()  # states of every pass that early exit shares

        def logits(token: list[int] | Tensor) -> Tensor:
            row = TokenRows.chain(next(rows), 1)
            if first is not None and row.start == lm.cache.length:
                return first
            states = None if end is None else list[Tensor]()
            if states is not None:
                self._early.append(states)
            return lm.head(lm.run(lm.embed(token), row, plan, 0, end, states), plan)

        return logits

    def _chain(self, state: State, passes: Passes, steps: int, unread: bool) -> Draft:
        q = list[Tensor]()
        found = [token for token, _, _ in self._steps(state, passes, steps, q)]
        chain = torch.cat(found) if found else None
        tokens = [0] * len(found) if unread or chain is None else chain.tolist()
        late, shares, n = chain if unread else None, dict(enumerate(q, -1)), len(found)
        drafted = Draft(tokens, None, shares, n, passes=n, plan=self._drafted)
        return replace(drafted, early_exit_states=self._early, unread=late)

    def _chain_with_leaves(self, state: State, passes: Passes, steps: int) -> Draft:
        found = list[Tensor]()
        for token, probability, logits in self._steps(state, passes, steps, []):
            best = logits[0].topk(min(max(self.tree), logits.shape[-1])).indices
            # doubles hold every index, so that all comes to the host at once
            found.append(torch.cat([x.double() for x in (probability, token, best)]))
        return self._tree(torch.stack(found).tolist() if found else [], [])

    def _sampled_tree(self, state: State, passes: Passes, steps: int) -> Draft:
        """Which the host reads in every step."""
        token, nodes, q = [state.pending], list[list[float]](), list[Tensor]()
        for _ in range(steps):
            nodes.append(self._children(state, self.fitted(passes(token)), q))
            if self.stop.ends(nodes[-1][0]):
                break
            token = [int(nodes[-1][1])]
        return self._tree(nodes, q)

    def _steps(
        self, state: State, passes: Passes, steps: int, q: list[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Per step of a chain the token [1], its confidence [1] and the logits [1, V]. Tokens stay
        on the device and go from one step into the next; the host reads confidences if the stop
        rule does.
        """
        token: list[int] | Tensor = [state.pending]
        read: Callable[[], list[float]] | None = None
        # where the device works ahead, the next step has begun by then
        at_eos = self.stop.ends_at_eos and not state.lm.engine.works_ahead
        for _ in range(steps):
            if read is not None and isinstance(token, Tensor):
                self._confidence += read()
                if self.stop.ends(self._confidence[-1]) or (at_eos and int(token) in state.eos):
                    return
            logits = self.fitted(passes(token))
            token, probability = self._next(state, logits, q)
            yield token, probability, logits
            read = read_later(probability) if self.stop.reads_confidence else None

    def fitted(self, logits: Tensor) -> Tensor:
        """Logits [T, V] of a draft pass as those of the target's tokens."""
        return logits

    def _next(self, state: State, logits: Tensor, q: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The next token of a chain [1] and its confidence [1], both still on the device; under
        sampling, the distribution that it was drawn from is appended to `q`.

        Confidence is a probability before temperature and top-p: the largest one (Self-SD Algorithm
        4, SWIFT section 4.2), or that of the token drawn.
        """
        p = logits.float().softmax(-1)
        top, first = p.max(-1)
        if state.sampler.greedy:
            return first, top
        q.append(distribution := state.sampler.probs(logits)[0])
        token = state.sampler.pick(distribution)
        return token, top if self.stop.confidence == "top" else p[0].index_select(0, token)

    def _tree(self, steps: list[list[float]], q: list[Tensor]) -> Draft:
        """The chain of first choices with leaves, by confidence, first choice and its siblings."""
        tokens, parents, chain = list[int](), list[int](), [-1]
        for confidence, *best in steps:
            # of equal probabilities, topk may put another first
            children = list(dict.fromkeys(map(int, best)))[: self._width(confidence)]
            parents += [chain[-1]] * len(children)
            chain.append(len(tokens))
            tokens += children
        self._confidence = [confidence for confidence, *_ in steps]
        shares, n = dict(zip(chain, q, strict=False)), len(steps)
        return Draft(tokens, parents, shares, n, passes=n, plan=self._drafted)

    def _children(self, state: State, logits: Tensor, q: list[Tensor]) -> list[float]:
        """Confidence, and the children of the last node in the order drawn, in two transfers."""
        child, chance = self._next(state, logits, q)
        # doubles hold every index, so that both come to the host at once
        confidence, first = torch.cat((chance.double(), child.double())).tolist()
        left, siblings = q[-1].clone(), list[Tensor]()
        for _ in range(self._width(confidence) - 1):
            left.index_fill_(0, child, 0.0)
            child = state.sampler.pick(left)
            siblings += [left.sum()[None].double(), child.double()]
        values = torch.cat(siblings).tolist() if siblings else []
        # if no probability is left, ignore the pick
        pairs = zip(values[::2], values[1::2], strict=True)
        drawn = itertools.takewhile(lambda pair: pair[0] > 0, pairs)
        return [confidence, first, *(token for _, token in drawn)]

    def _width(self, confidence: float) -> int:
        return self.tree[sum(confidence > bound for bound in CONFIDENCE_CLASSES)]

    def adapt(self, state: State, verification: Verification) -> None:
        """Updates the stop rule and the log; in a tree only the chain of first choices counts."""
        draft, accepted = verification.draft, verification.chain
        self.stop.update(accepted, draft.steps)
        confidence = [round(value, 6) for value in self._confidence]
        values = [self.stop.threshold, draft.steps, accepted, confidence]
        if self.tree:
            parents, chain = draft.parents(), draft.first_choices()
            beside = (n for n in verification.accepted if n not in chain)
            values.append(next((parents[:n].count(parents[n]) for n in beside), 0))
        for name, value in zip(list(self.draft_log)[1:], values, strict=True):
            self.draft_log[name].append(value)
        self._confidence = []

    def trace(self) -> dict[str, list[Any]]:
        return {**self.draft_log, **self.log}

    def state_dict(self) -> Any:
        state = super().state_dict() | {"stop": self.stop.state_dict()}
        return state | {"skip": str(self.skip)} if "skip" in state else state

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.stop.load_state_dict(state["stop"])
        if "skip" in self.carried:
            self.skip = DraftPlan.parse(state["skip"], self.layers)
