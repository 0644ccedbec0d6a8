"""`auto`: one draft tree per round from every source, as large as its measured price allows.

Published training-free methods each have one source of draft tokens and a fixed rule for how many
to draft. Here every source says how likely its tokens are, every row of the verification has a
measured price, and a node is added while its chance is worth more than its price.

| symbol | here | |
|---|---|---|
| rho | `rate` | tokens per pass of one row, lately |
| C(n) | `prices[n]` | measured price of verifying n rows, in passes of one row |
| p(node) | `Tree.products`, calibrated | chance that the path to the node is accepted |
| c | `ladder.steps` | price of one draft step with a skip set |
| a | `ladder.agreement.p` | chance that a token drafted with a skip set is right |
| round's value | `sum p - rho * (steps * c + C(1 + nodes))` | what a round makes largest |

The derivation (renewal reward), what the rule contains as special cases, and measurements:
docs/auto.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skipbench.decode.chances import Calibration, Corrections, Counters
from skipbench.decode.kinds import (
    ABSENT,
    CHOICES,
    CONTINUATIONS,
    DRAFTED_BOUNDS,
    MATCH_CLASS,
    NONE,
    PRIORS,
    TOP,
    UNCOUNTED,
    drafted_class,
    drafted_kind,
    free_kind,
    letter,
)
from skipbench.decode.ladder import MOST_STEPS, SkipLadder
from skipbench.decode.method import Draft, Verification
from skipbench.decode.sources import Match, Successors, TextIndex
from skipbench.decode.state import State
from skipbench.decode.top_tokens import most_likely
from skipbench.decode.tree import Child, Tree, grow, least_slopes
from skipbench.errors import SkipbenchError
from skipbench.lm.rows import TokenRows
from skipbench.profile.latency import LatencyModel
from skipbench.profile.rows import ROWS, curve, kept_verification_seconds
from skipbench.runs.record import SOURCES
from skipbench.skipset import IF_STORED, SkipSet

RATE_SHARE = 0.05  # of the newest round in the rate
RATE = 1.2  # before the first round

Proposal = tuple[float, int, int]
"""Chance where the parent is accepted, token, kind."""
Carried = tuple[list[Match], int]
"""Occurrences of a node's path, and where on the drafted chain the node stands, -1 beside it."""


@dataclass(frozen=True)
class Step:
    """One draft step: its first choice, the class of that one's probability, and all children of
    the node that it was drafted behind.
    """

    token: int
    confidence: int
    children: list[Child]


class Auto:
    """Copies, recycled successors and drafts of skip sets in one tree per round, by value.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        max_nodes: most nodes of a tree; the price decides below it.
        memory: contexts whose successors are kept, of one token and of two each.
        earlier: tokens of earlier outputs in which copies are looked up, too; 0 looks in the prompt
            and its own output only.
        window: output tokens that a skip set is tried on.
        skip: a skip set in text form to draft with, too; `known` for the one that `search` stored
            for `self-sd`, that ships with the model or was published, where there is one; empty for
            none.
        explore: share of the time that may be spent on finding and trying skip sets, beside four
            passes at the start; 0 drafts with the set of `skip` alone.
        row_prices: seconds of verifying 1, 2, 4, 8, 16 and 32 rows; empty measures them before the
            first prompt.

    Raises:
        SkipbenchError: a number out of range, prices that are not one positive number per size, or
            a skip set that does not fit the model.
    """

    needs_top_tokens = TOP

    def __init__(
        self,
        layers: int,
        name: str,
        max_nodes: int = 31,
        memory: int = 1024,
        earlier: int = 0,
        window: int = 24,
        skip: str = "known",
        explore: float = 0.01,
        row_prices: Sequence[float] = (),
    ) -> None:
        if min(max_nodes, memory, window) < 1 or earlier < 0 or not 0 <= explore <= 1:
            raise SkipbenchError(
                f"auto: {max_nodes=}, {memory=}, {window=}, {earlier=}, {explore=}; wanted "
                "max_nodes, memory and window of 1 or more, earlier of 0 or more, explore from 0 "
                "to 1"
            )
        if row_prices and (len(row_prices) != len(ROWS) or min(row_prices) <= 0):
            raise SkipbenchError(
                f"auto: row_prices={list(row_prices)}; wanted {len(ROWS)} positive numbers, the "
                f"seconds of {', '.join(map(str, ROWS))} rows, or none to measure them"
            )
        self.name, self.max_nodes, self.earlier = name, max_nodes, earlier
        self.given = dict(zip(ROWS, row_prices, strict=True)) if row_prices else None
        self.text, self.successors = TextIndex(), Successors(memory)
        self.counters, self.calibration = Counters(PRIORS), Calibration()
        given = None if skip in ("", IF_STORED) else SkipSet.parse(skip, layers)
        self.ladder = SkipLadder(layers, window, explore, given)
        self.next_step = Corrections(len(DRAFTED_BOUNDS) + 1)
        """By class of the last drafted token: how much likelier the next one is right than the
        set's agreement says.
        """
        self.latency: LatencyModel | None = None
        self.tokens, self.passes = RATE, 1.0
        """Emitted per round lately, and their price."""
        self.measured: dict[str, dict[int, float]] = {}
        """Seconds by rows, by class of the context's length."""

    def begin(self, state: State) -> None:
        self.log: dict[str, list[Any]] = {
            "expected": [],
            "price": [],
            "source": [],
            "sets": [],
            "steps": [],
            "explored": [],
        }
        self._chain: list[Step] = []
        self._rung = -1
        self.text.begin(state.tokens)
        self.prices = curve(self._seconds(state), self.max_nodes + 1)
        self.slopes = least_slopes(self.prices)
        self.ladder.begin(state, self.latency)

    def _seconds(self, state: State) -> dict[int, float]:
        """Measured where the context is below 1024 tokens, and anew at every fourfold above."""
        if self.given is not None:
            return self.given
        length_class = max(0, state.lm.cache.length.bit_length() - 9) // 2
        key = str(length_class)
        if key not in self.measured:
            self.measured[key] = kept_verification_seconds(state.lm, length_class)
        return self.measured[key]

    @property
    def rate(self) -> float:
        """rho; never less than that of not drafting."""
        return max(1.0, self.tokens / self.passes)

    def propose(self, state: State, budget: int) -> Draft:
        self._before = state.tokens[-2] if len(state.tokens) > 1 else state.pending
        self._pending = state.pending
        rate, self._chain = self.rate, []
        self.tree = self._grow(rate, budget)
        rung, value = self.ladder.best(self.prices, rate, budget)
        verify = rate * self.prices[1 + len(self.tree.tokens)]
        self._step_price = 0.0
        if rung >= 0 and value > self.tree.expected - verify:
            self._draft(state, rung, rate, budget)
            self.tree = self._grow(rate, budget)
            self._step_price = len(self._chain) * self.ladder.steps[rung]
        tokens, parents = self.tree.tokens, self.tree.parents
        sources = [SOURCES[letter(kind)] for kind in self.tree.kinds]
        return Draft(tokens, parents, steps=len(tokens), sources=sources)

    def _grow(self, rate: float, budget: int) -> Tree:
        """The tree of all sources, the drafted chain among them."""
        root: Carried = (self.text.find(), 0)
        return grow(root, self._children, self.calibration, self.prices, self.slopes, rate, budget)

    def _draft(self, state: State, rung: int, rate: float, budget: int) -> None:
        """Draft steps with the rung's skip set, as long as the next one is worth its price: the
        chance of the chain so far, times that of one more token behind a token of this confidence.
        """
        lm, base, skip = state.lm, state.lm.cache.length, self.ladder.sets[rung]
        agreement, step = self.ladder.chance(rung), self.ladder.steps[rung]
        if rung != self._rung:
            self._rung = rung
            self.log["sets"].append([len(self.log["source"]), str(skip)])
        chance, path, matches = 1.0, list[int](), self.text.find()
        for at in range(min(budget, MOST_STEPS, self.max_nodes)):
            if at:
                more = self.next_step.corrected(self._chain[-1].confidence, agreement)
                if self.calibration(chance) * more <= rate * (step + self.slopes[1 + at]):
                    break
            rows = TokenRows.chain(base + at, 1)
            last = path[-1] if path else state.pending
            choices = most_likely(lm.logits([last], rows, skip), CHOICES)
            matches = matches or self.text.find(path)
            children = self._with_drafted(self._free(path, matches), choices, matches, at)
            token, confidence = choices[0]
            self._chain.append(Step(token, drafted_class(confidence), children))
            chance *= next(child[0] for child in children if child[1] == token)
            path.append(token)
            matches = self.text.follow(matches, token)

    def _children(self, path: list[int], carried: Carried) -> list[Child]:
        """What every source proposes behind a path, the likeliest first."""
        matches, step = carried
        if 0 <= step < len(self._chain):
            return self._chain[step].children
        matches = matches or self.text.find(path)
        follow = self.text.follow
        return [(p, t, kind, (follow(matches, t), -1)) for p, t, kind in self._free(path, matches)]

    def _free(self, path: list[int], matches: list[Match]) -> list[Proposal]:
        """What copies and recycled successors propose behind a path, the likeliest first."""
        if path:
            before, token = path[-2] if len(path) > 1 else self._pending, path[-1]
        else:
            before, token = self._before, self._pending
        match, text = -1, self.text.text
        ranks: dict[int, int] = {}
        for at, length in matches:
            if not ranks:
                match = MATCH_CLASS[length] if length < len(MATCH_CLASS) else 5
            ranks.setdefault(text[at], len(ranks))
            if len(ranks) == CONTINUATIONS:
                break
        recycled, context = self.successors.get(before, token)
        p = self.counters.p
        found: list[Proposal] = []
        first = free_kind(match, 0, 0, context)  # kinds of this node differ from it by the ranks
        for rank, candidate in enumerate(recycled):
            copied = ranks.pop(candidate, NONE)
            kind = first + (copied * (TOP + 1) + rank) * 3
            found.append((p[kind], candidate, kind))
        for candidate, copied in ranks.items():
            kind = first + (copied * (TOP + 1) + ABSENT) * 3
            found.append((p[kind], candidate, kind))
        found.sort(key=_likeliest)
        return found

    def _with_drafted(
        self,
        free: list[Proposal],
        choices: list[tuple[int, float]],
        matches: list[Match],
        step: int,
    ) -> list[Child]:
        """The children of a node of the chain: the draft's choices among the free tokens, which are
        as likely as they were where the draft's are wrong.
        """
        said = {token: letter(kind) for _, token, kind in free}
        found: list[Proposal] = []
        left = 1.0  # chance that none of the draft's choices is right
        for rank, (token, probability) in enumerate(choices):
            confirmed = 0 if token not in said else 1 if said[token] == "r" else 2
            kind = drafted_kind(probability, rank, confirmed)
            chance = self.counters.p[kind]
            found.append((chance, token, kind))
            left = max(0.0, left - chance)
        drafted = {token for token, _ in choices}
        found += [(p * left, t, UNCOUNTED) for p, t, _ in free if t not in drafted]
        found.sort(key=_likeliest)
        follow, first = self.text.follow, choices[0][0]
        return [
            (p, t, kind, (follow(matches, t), step + 1 if t == first else -1))
            for p, t, kind in found
        ]

    def adapt(self, state: State, verification: Verification) -> None:
        tree, accepted = self.tree, verification.accepted
        self._count(tree, accepted)
        path = set(accepted)
        for node, product in enumerate(tree.products):
            self.calibration.update(product, node in path)
        price = self.prices[1 + len(tree.tokens)] + self._step_price
        self.tokens += RATE_SHARE * (len(accepted) + 1 - self.tokens)
        self.passes += RATE_SHARE * (price - self.passes)
        self.ladder.learn(self._rung if self._chain else -1, len(accepted), price)
        self.successors.learn(
            self._before, self._pending, tree.tokens, tree.parents, verification.top_tokens
        )
        self.text.extend(state.tokens[self.text.tokens :])
        if state.finish is not None:
            self.text.keep(state.output, self.earlier)
        self.ladder.spent += price
        explored = 0.0
        if state.finish is None:
            explored = self.ladder.explore_one(state, self.prices, self.rate)
        self.log["explored"].append(round(explored, 4))
        self.log["expected"].append(round(tree.expected + 1, 4))
        self.log["steps"].append(len(self._chain))
        self.log["price"].append(round(price, 4))
        self.log["source"].append("".join(letter(tree.kinds[node]) for node in accepted))

    def _count(self, tree: Tree, accepted: Sequence[int]) -> None:
        """Counts the tokens whose parent was accepted."""
        at = {-1: 0}  # node of the chain -> steps behind it
        for node, hit in tree.tried(accepted):
            kind, step = tree.kinds[node], at.get(tree.parents[node])
            if kind != UNCOUNTED:
                self.counters.update(kind, hit)
            if step is None or step >= len(self._chain):
                continue
            if tree.tokens[node] == self._chain[step].token:
                at[node] = step + 1
                if step:
                    agreement = self.ladder.chance(self._rung)
                    self.next_step.update(self._chain[step - 1].confidence, agreement, hit)
                self.ladder.agreement.update(self._rung, hit)

    @property
    def state_dict(self) -> dict[str, Any]:
        """Successors, counters, calibration, rate and prices, which go from prompt to prompt."""
        return {
            "successors": self.successors.to_json(),
            "counters": self.counters.state_dict,
            "calibration": self.calibration.corrections.state_dict,
            "next_step": self.next_step.state_dict,
            "rate": [self.tokens, self.passes],
            "earlier": self.text.earlier,
            "ladder": self.ladder.state_dict,
            "measured": {k: {str(n): s for n, s in v.items()} for k, v in self.measured.items()},
        }

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self.successors.from_json(state["successors"])
        self.counters.state_dict = state["counters"]
        self.calibration.corrections.state_dict = state["calibration"]
        self.next_step.state_dict = state["next_step"]
        self.tokens, self.passes = state["rate"]
        self.text.earlier = list(state["earlier"])
        self.ladder.state_dict = state["ladder"]
        self.measured = {k: {int(n): s for n, s in v.items()} for k, v in state["measured"].items()}


def _likeliest(proposal: Proposal) -> float:
    return -proposal[0]
