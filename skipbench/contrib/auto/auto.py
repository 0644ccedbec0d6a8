"""`auto`: one draft tree per round from every source, as large as its measured price allows.

Published training-free methods each have one source of draft tokens and a fixed rule for how many
to draft. Here every source estimates its tokens' chances, every row of the verification has a
measured price, and a node is added while its chance is worth more than its price.

| symbol | here | |
|---|---|---|
| rho | `rate` | tokens per round of one row in this prompt, at most what a round's options give |
| C(n) | `prices[n]` | price of a round of n rows, its pass and its host time, in those of one row |
| p(node) | `Tree.products`, calibrated | chance that the path to the node is accepted |
| c | `ladder.step(rung)` | price of one token drafted by a plan |
| a | `ladder.chance(rung)` | chance that a token drafted by a plan is right |
| round's value | `sum p - rho * (steps * c + C(1 + nodes))` | maximised by every round |

The derivation (renewal reward), what the rule contains as special cases, and measurements:
docs/auto.md.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from operator import itemgetter

from skipbench.config.configurable import Natural, Positive
from skipbench.contrib.auto.chances import Calibration
from skipbench.contrib.auto.free_tokens import NOWHERE, Carried, FreeTokens
from skipbench.contrib.auto.kinds import (
    FREE,
    LETTERS,
    PRIORS,
    TOP,
    UNCOUNTED,
    UNLIKELY,
    USUAL_ERROR,
    drafted_kind,
)
from skipbench.contrib.auto.prices import AutoPrices
from skipbench.contrib.cpu.top_tokens import two_best
from skipbench.contrib.lowbit.chances import MAX_STEPS, chain_value
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.tree import Child, Growth, Tree, min_slopes
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import DRAFT_ROWS
from skipbench.runs.record import SOURCES

RATE, RATE_PASSES = 1.5, 4.0
"""A prompt's rate before its first round, and the passes that it counts for: low, because copies
correct a low one in a round or two, and none come where a high one forbids every draft.
"""
RATE_KEPT = 0.97  # share of the tokens and passes of earlier rounds that count behind a round


class Auto(AutoPrices):
    """Copies, recycled successors and drafts of cheaper passes in one tree per round, by value.

    >>> method = Auto(name="auto", layers=4, row_prices=[1, 1.02, 1.04, 1.1, 1.2, 1.4])
    >>> lm = type("LM", (), {"cache": type("Cache", (), {"length": 6}), "prices": Prices()})
    >>> method.begin(state := State(lm, [1, 2, 3, 4, 1, 2]))
    >>> method.propose(state, budget=7).tokens[:2]  # cheap rows: copies what followed 1, 2
    [3, 4]
    """

    memory: Positive = 1024
    """Contexts of one token, and of two, whose successors are kept."""
    earlier: Natural = 0
    """Tokens of earlier outputs in which copies are looked up, besides the present text."""
    needs_latency, needs_top_tokens = True, TOP
    carried = "free", "calibration", "ladder"
    logged = ("expected", "price", "source", "sets", "explored")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.free = FreeTokens(self.memory, self.earlier)
        self.calibration = Calibration()

    def begin(self, state: State) -> None:
        super().begin(state)
        self._drafted: list[tuple[int, int]] = []  # token, kind
        self._rung = -1
        self._past = [RATE * RATE_PASSES, RATE_PASSES]
        """Tokens and passes of one row of this prompt."""
        self._eos = state.eos
        self.free.begin(state.tokens)
        self.take_prices(state)
        self.slopes = min_slopes(self.prices)
        price = partial(self.step_price, state)
        self.ladder.begin(price, self.low)

    @property
    def rate(self) -> float:
        """Tokens per pass of one row in this prompt; not drafting has 1."""
        return max(1.0, self._past[0] / self._past[1])

    def propose(self, state: State, budget: int) -> Draft:
        self._before = state.tokens[-2] if len(state.tokens) > 1 else state.pending
        self._pending, self._drafted, self._step_price = state.pending, [], 0.0
        self._passes, self.tree = 0, Tree()
        rate = self.rate
        growth = self._growth(budget)
        self.tree = growth.best(rate)
        # a token is worth what it costs here: passes are spared for copies where there are some
        of_tree = (1 + self.tree.expected) / self.prices[1 + len(self.tree.tokens)]
        here = max(1.0, of_tree, self.ladder.chain_rate(self.prices, budget))
        if here < rate:
            rate = here
            self.tree = growth.best(rate)
        rung, value = self.ladder.best(self.prices, rate, budget)
        if rung >= 0 and value > self.tree.expected - rate * self.prices[1 + len(self.tree.tokens)]:
            self._draft(state, rung, rate, budget)
            self.tree = self._growth(budget).best(rate)
        self._price = self.prices[1 + len(self.tree.tokens)]
        shape, steps = (self.tree.tokens, self.tree.parents), len(self.tree.tokens)
        sources = [SOURCES[LETTERS[kind]] for kind in self.tree.kinds]
        plan = self.ladder.plans[self._rung] if self._passes else None
        return Draft(*shape, steps=steps, sources=sources, passes=self._passes, plan=plan)

    def _growth(self, budget: int) -> Growth:
        """The tree of all sources, the drafted chain among them."""
        root: Carried = ([], 0)
        return Growth(root, self._children, self.calibration, self.prices, self.slopes, budget)

    def _draft(self, state: State, rung: int, rate: float, budget: int) -> None:
        """Draft passes by the rung's plan, as long as the next token is worth its price."""
        lm, base, plan = state.lm, state.lm.cache.length, self.ladder.plans[rung]
        if rung != self._rung:
            self._rung = rung
            self.log["sets"].append([len(self.log["source"]), str(plan)])
        most = self.ladder.longest(rung, self.prices, min(budget, self.max_nodes))
        chance, token = 1.0, state.pending
        while (at := len(self._drafted)) < most:
            if at and self._drafted[-1][0] in self._eos:
                break
            ahead, again = itertools.tee(self._free_path())
            if at and not (chance and self._drafts_on(rung, rate / chance, again)):
                break
            rows = [token, *self._ahead(ahead, most - at - 1)]
            self._step_price += self.ladder.pass_price(rung, len(rows))
            self._passes += 1
            logits = lm.logits(rows, TokenRows.chain(base + at, len(rows)), plan)
            # fewer bits are judged by the ratio of both
            best = two_best(logits, of_all=not plan.variant)
            for n, (token, first, second) in enumerate(best, 1):
                kind = drafted_kind(first, second, bool(plan.variant))
                self._drafted.append((token, kind))
                chance *= self._drafted_chance(kind)
                if rows[n : n + 1] != [token]:
                    break
        self.ladder.drafted(rung, len(self._drafted), self._step_price)

    def _drafts_on(self, rung: int, rate: float, free: Iterator[tuple[int, float]]) -> bool:
        """Whether a longer draft is worth more than the `free` tokens behind the drafted ones;
        `rate` over the chance of those.
        """
        prices = self.prices[len(self._drafted) :]
        agreement, step = self.ladder.chance(rung), self.ladder.step(rung)
        drafted = chain_value(agreement, step, prices, rate, MAX_STEPS)
        best, expected = -rate * prices[1], 0.0
        for more, (_, chance) in zip(prices[2:-1], free, strict=False):
            expected += chance
            best = max(best, expected - rate * more)
            if best >= drafted or chance < UNLIKELY:
                break
        return drafted > best

    def _ahead(self, free: Iterator[tuple[int, float]], most: int) -> list[int]:
        """Of the `free` tokens after the drafted ones those that the next draft pass reads, too:
        each that the draft confirms saves a pass.
        """
        prices, ahead = self.ladder.low, list[int]()
        rows = range(2, 1 + min(most + 1, DRAFT_ROWS[-1])) if prices else ()
        for n, (token, chance) in zip(rows, free, strict=False):
            if chance * prices[1] <= prices[n] - prices[n - 1]:
                break
            ahead.append(token)
        return ahead

    def _free_path(self) -> Iterator[tuple[int, float]]:
        """The likeliest free tokens after the drafted ones, each with the chance of its path."""
        path, chance, carried = [token for token, _ in self._drafted], 1.0, NOWHERE
        while children := self._children(path, carried):
            p, token, _, carried = children[0]
            chance *= p
            yield token, chance
            path.append(token)

    def _drafted_chance(self, kind: int) -> float:
        """Chance of a drafted token: the prior of its kind errs in proportion to its plan."""
        low = self.ladder.plans[self._rung].variant
        usual = 1 - self.ladder.chance(0) if low else USUAL_ERROR
        doubt = (1 - self.ladder.chance(self._rung)) / usual
        return self.free.counters.chance(kind, 1 - min(1.0, (1 - PRIORS[kind]) * doubt))

    def _children(self, path: list[int], carried: Carried) -> list[Child]:
        """Every source's proposals after a path, the likeliest first; none after an end."""
        if path and path[-1] in self._eos:
            return []
        matches, step = carried
        before, token = [self._before, self._pending, *path][-2:]
        children, matches = self.free.after(before, token, path, matches)
        if 0 <= step < len(self._drafted):  # the chances of the others hold where that is wrong
            drafted, kind = self._drafted[step]
            if same := [child for child in children if child[1] == drafted]:
                kind += 2 if LETTERS[same[0][2]] in "sb" else 1
            chance = self._drafted_chance(kind)
            children = [
                (chance, drafted, kind, (matches, step + 1)),
                *((p * (1 - chance), t, UNCOUNTED, c) for p, t, _, c in children if t != drafted),
            ]
        children.sort(key=itemgetter(0), reverse=True)
        return children

    def adapt(self, state: State, verification: Verification) -> None:
        tree, accepted = self.tree, verification.accepted
        tried = [(tree.kinds[node], hit) for node, hit in tree.tried(accepted)]
        self.free.count((kind, hit) for kind, hit in tried if kind != UNCOUNTED)
        for hit in (hit for kind, hit in tried if kind >= FREE):
            self.ladder.agreement.update(self._rung, hit)
        self.calibration.count(tree.products, accepted)
        price = self._price + self._step_price
        tokens, passes = self._past
        self._past = [RATE_KEPT * tokens + (len(accepted) + 1), RATE_KEPT * passes + price]
        if top := verification.top_tokens:
            self.free.successors.learn(self._before, self._pending, tree.tokens, tree.parents, top)
        self.free.text.advance(state)
        self.ladder.spent += price
        explore = self.ladder.explore_one
        explored = 0.0 if state.finish is not None else explore(state, self.prices, self.rate)
        self.note(
            explored=round(explored, 4),
            expected=round(tree.expected + 1, 4),
            price=round(price, 4),
            source="".join(LETTERS[tree.kinds[node]] for node in accepted),
        )
