"""CAS-Spec: Cascade Adaptive Self-Speculative Decoding for On-the-Fly Lossless Inference
Acceleration of LLMs (Ning et al., NeurIPS 2025), arXiv:2510.26843.

The model without some of its layers, at several strengths, and copies of the text at the bottom are
a cascade of drafts. Dynamic Tree Cascade (DyTC) grows one tree per round: it takes the likeliest
leaf, chooses by acceptance and cost which draft continues it and by how many tokens, and stops
where nothing more pays. Acceptance is followed while decoding.

REIMPLEMENTATION, CONSTANTS UNVERIFIED: no code is public, and only the paper's introduction and
summaries of it were available. They give no numbers of equations, no limits of a length,
of a tree and of TOP-P, no first values of the estimates, no cost of a copy, and neither what the
warm-up does nor what ends a tree. Guesses of ours replace them, marked so below.

| paper | here | |
|---|---|---|
| M_d1, M_d2 | `skips` | skip sets of `sparsity` 0.4 and 0.6, one inside the other |
| M_dn, c_dn | `bottom`, `bottom_cost` | prompt lookup (cost a guess: 0.01 passes) |
| alpha_s, lambda, H | `Estimate` | share accepted, smoothed by 0.7, of the last 20 tries |
| c_s | `costs` | price of a draft step in passes of one row, (ours) with the host's part |
| T(s, k) | `worth` | criterion that chooses draft s and k tokens |
| TOP-P siblings | `top_p`, `width` | (guess: 0.9 and 3) alternatives, drafted in the same pass |
| warm-up | `warm_up` | (guess) tokens until which rounds begin with each draft in turn |
| | `forget` | (ours) alpha of a draft that is not tried goes back to its first value |

Deviations from the paper, with their switches: docs/methods/cas-spec.md.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor

from skipbench.config.configurable import Natural, Positive, PositiveFloat, Share
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.sources import TextIndex
from skipbench.decode.tree import Tree
from skipbench.decode.trial_passes import recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.rows import TokenRows
from skipbench.profile.influence import ranked, squared_turns

SMOOTHING, TRIES = 0.7, 20  # lambda and H
FIRST, FIRST_COPY = 0.7, 0.3  # guesses: acceptance before a draft was tried
CONTEXT, NGRAM = 32, 3  # guesses: tokens that rank the sub-layers; longest n-gram distinguished


class Estimate(NamedTuple):
    """Acceptance rate: alpha <- lambda alpha + (1 - lambda) share of the last H tries."""

    value: float
    tries: Sequence[int] = ()

    def after(self, hits: Sequence[bool]) -> "Estimate":
        tries = [*self.tries, *map(int, hits)][-TRIES:]
        share = sum(tries) / len(tries)
        return Estimate(SMOOTHING * self.value + (1 - SMOOTHING) * share, tries)


def accepted_of(alpha: float, k: int) -> float:
    """alpha (1 - alpha^k) / (1 - alpha): expected accepted tokens of k drafted ones."""
    return sum(alpha**i for i in range(1, k + 1))


def worth(
    alpha: float, cost: float, k: int, alpha_dn: float, cost_dn: float, objective: str
) -> float:
    """T(s, k): k tokens by a draft and one by the bottom draft after them, over their cost;
    `walltime` adds the verification: one pass, and its token.
    """
    tokens, passes = accepted_of(alpha, k) + alpha**k * alpha_dn, cost * k + cost_dn
    return tokens / passes if objective == "drafting" else (1 + tokens) / (1 + passes)


class CASSpec(Method):
    """A cascade of skip sets and copies, by Dynamic Tree Cascade.

    >>> accepted_of(alpha=0.5, k=2)  # 0.5 + 0.25
    0.75
    >>> [str(s) for s in CASSpec(layers=4, name="cas-spec", sets=["attn:1", "attn:1,2"]).skips]
    ['attn:1', 'attn:1,2']
    """

    sparsity: Sequence[Annotated[float, Meta(gt=0, lt=1)]] = (0.4, 0.6)
    """Shares of the sub-layers to skip, without those of the first and the last layer; the smallest
    first, above 0 to below 1.
    """
    sets: Sequence[str] = ()
    """Skip sets in text form, such as `attn:1,3-5;mlp:2`, in place of those by `sparsity`."""
    bottom_cost: PositiveFloat = 0.01
    """c_dn, price of a copied token in passes, above 0."""
    objective: Literal["walltime", "drafting"] = "walltime"
    """T with the cost of the verification and its token, `walltime`, or without, `drafting`."""
    max_length: Positive = 8
    """Maximum tokens that one choice drafts."""
    max_nodes: Positive = 32
    """Maximum nodes of a tree."""
    top_p: Share = 0.9
    """Children of a node reach this probability together, 0 to 1."""
    width: Positive = 3
    """Maximum children of a node, the first choice included."""
    warm_up: Natural = 20
    """Drafted tokens until which rounds begin with each draft in turn, whatever it is worth."""
    forget: Share = 0.01
    """Share of the way back to its first value, 0 to 1, that an untried draft's acceptance goes per
    round; at 0 a draft that once fell below its cost is never tried again.
    """

    needs_latency = True
    logged, carried = (
        ("steps_by_set", "chosen", "alpha"),
        (*("alpha", "by_match", "rounds", "drafted", "ranked"),),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < 3 or not (self.sparsity or self.sets):
            raise SkipbenchError(
                f"cas-spec: layers={self.layers}, sparsity={list(self.sparsity)}, "
                f"sets={list(self.sets)}; wanted 3 layers or more, and a share or a set"
            )
        self.skips = [DraftPlan.parse(text, self.layers) for text in self.sets]
        self.bottom = len(self.sets) or len(self.sparsity)  # index of the copies among the drafts
        self.first = [*[FIRST] * self.bottom, FIRST_COPY]
        self.alpha = [Estimate(first) for first in self.first]
        self.by_match = [Estimate(FIRST_COPY) for _ in range(NGRAM)]
        self.text, self.rounds, self.drafted = TextIndex(), 0, 0
        self.ranked: list[str] = []  # skip sets by `sparsity`

    def begin(self, state: State) -> None:
        """Prices the sets; the first prompt ranks sub-layers by how little they turn the state."""
        super().begin(state)
        if not self.skips:
            order = ranked(squared_turns(recent_states(state, CONTEXT)))
            free = [s for s in order if 0 < s // 2 < self.layers - 1]
            counts = [max(1, round(share * len(free))) for share in sorted(self.sparsity)]
            self.skips = [DraftPlan.of(self.layers, free[:count]) for count in counts]
            self.ranked = list(map(str, self.skips))
        price = partial(state.lm.prices.step_price, state.lm.cache.length)
        self.costs = [*map(price, self.skips), self.bottom_cost]
        if state.lm.prices.model is not None:  # every drafted token is a row of the host's, too
            host, pass_s = state.host, state.lm.prices.pass_s(1, state.lm.cache.length)
            steps = [host.step_price(cost, pass_s) for cost in self.costs[:-1]]
            self.costs = [cost + host.row_price(pass_s) for cost in (*steps, self.bottom_cost)]
        self.text.begin(state.tokens)
        self.log["sets"] = [str(skip) for skip in self.skips]

    def propose(self, state: State, budget: int) -> Draft:
        """DyTC."""
        self.tree, self.leaves, spent = Tree(), [-1], 0.0
        self._cached: tuple[int, list[int]] = (-1, [])  # set and tokens of the scratch rows
        chosen: list[list[int]] = []
        while self.leaves:
            leaf = max(self.leaves, key=self.tree.product)
            path = self.tree.path(leaf)
            limit = min(self.max_length, budget - len(path), self.max_nodes - len(self.tree.tokens))
            if limit <= 0:
                self.leaves.remove(leaf)
                continue
            # the continuation of the longest match of the text's end and the path
            at, match = next(iter(self.text.find(path)), (len(self.text.text), 0))
            copies, match = self.text.text[at : at + limit], min(match, NGRAM)
            draft, k = self._choose(leaf, limit, len(copies))
            gain = self.tree.product(leaf) * accepted_of(self.alpha[draft].value, k)
            price, tokens = self.costs[draft] * k, 1 + sum(self.tree.products)
            warms = leaf < 0 and self.drafted < self.warm_up
            if not warms and (tokens + gain) / (1 + spent + price) <= tokens / (1 + spent):
                break  # a guess: nothing raises the tokens per pass of the round
            chosen.append([leaf, draft, k])
            spent += price
            if draft == self.bottom:
                for token in copies[:k]:
                    leaf = self._add(token, leaf, self.by_match[match - 1].value, (draft, match))
            else:
                self._extend(state, leaf, [state.pending, *path], draft, k)
        steps = [sum(k for _, d, k in chosen if d == draft) for draft in range(self.bottom + 1)]
        self.note(steps_by_set=steps[:-1], chosen=chosen)
        sources = ["copied" if draft == self.bottom else "layers" for draft, _ in self.tree.kinds]
        shape = self.tree.tokens, self.tree.parents
        return Draft(*shape, steps=sum(steps), sources=sources, passes=sum(steps[:-1]))

    def _add(self, token: int, parent: int, estimate: float, kind: tuple[int, int]) -> int:
        """A new leaf; `kind`: draft, and length of a copy's match, or 0, -1 for a later sibling."""
        node = self.tree.add(token, parent, kind, self.tree.product(parent) * estimate)
        self.leaves = [*(leaf for leaf in self.leaves if leaf != parent), node]
        return node

    def _choose(self, leaf: int, limit: int, copies: int) -> tuple[int, int]:
        """The draft and length with the largest T; in the warm-up the root takes all in turn."""
        bottom = (self.alpha[-1].value, self.costs[-1], self.objective)
        limits = [*[limit] * self.bottom, copies]
        drafts = [d for d, length in enumerate(limits) if length]
        if leaf < 0 and self.drafted < self.warm_up:
            drafts = [drafts[self.rounds % len(drafts)]]
        _, draft, k = max(
            (worth(self.alpha[d].value, self.costs[d], k, *bottom), d, k)
            for d in drafts
            for k in range(1, limits[d] + 1)
        )
        return draft, k

    def _extend(self, state: State, leaf: int, tokens: list[int], draft: int, k: int) -> None:
        """k steps without the sub-layers of a set. The first one reads the tokens of the path that
        have no K/V of this set in scratch rows, and drafts a token for the leaf's siblings, too.
        """
        lm, base, tree = state.lm, state.lm.cache.length, self.tree
        cached = self._cached[1] if self._cached[0] == draft else []
        known = [*(a == b for a, b in zip(cached, tokens[:-1], strict=False)), False].index(False)
        parent = tree.parents[leaf] if leaf >= 0 else None
        siblings = [n for n in self.leaves if n != leaf and tree.parents[n] == parent]
        chain = len(tokens) - known
        fed: list[int] | Tensor = [*tokens[known:], *(tree.tokens[n] for n in siblings)]
        rows = TokenRows.chain(base + known, chain)
        if siblings:
            parents = (*range(-1, chain - 1), *[chain - 2] * len(siblings))
            rows = TokenRows.tree(base + known, parents)
        steps: list[Tensor] = []  # likeliest tokens after their probabilities, on the device
        for step in range(k):
            heads = 1 if step else 1 + len(siblings)
            p = lm.logits(fed, rows, self.skips[draft])[-heads:].float().softmax(-1)
            top = p.topk(min(self.width, p.shape[-1]))
            steps.append(torch.cat((top.values.double(), top.indices.double()), -1))
            fed, rows = top.indices[0, :1], TokenRows.chain(base + len(tokens) + step, 1)
        first, *others = (
            (row[: len(row) // 2], [int(token) for token in row[len(row) // 2 :]])
            for row in torch.cat(steps).tolist()
        )
        for sibling, (shares, best) in zip(siblings, others, strict=False):
            self._add(best[0], sibling, shares[0], (draft, 0))
        for shares, best in (first, *others[len(siblings) :]):
            parent, leaf = leaf, self._add(best[0], leaf, shares[0], (draft, 0))
            for n in range(1, len(best)):
                if sum(shares[:n]) < self.top_p and len(tree.tokens) < self.max_nodes:
                    self._add(best[n], parent, shares[n], (draft, -1))
        self._cached = (draft, [*tokens, *tree.path(leaf)[len(tokens) - 1 : -1]])

    def adapt(self, state: State, verification: Verification) -> None:
        hits: dict[tuple[int, int], list[bool]] = {}
        for node, hit in self.tree.tried(verification.accepted):
            draft, match = self.tree.kinds[node]
            for n in {0, match} if match >= 0 else ():
                hits.setdefault((draft, n), []).append(hit)
        for (draft, match), tries in hits.items():
            estimates, at = (self.by_match, match - 1) if match else (self.alpha, draft)
            estimates[at] = estimates[at].after(tries)
        for draft, ((value, tried), first) in enumerate(zip(self.alpha, self.first, strict=True)):
            if (draft, 0) not in hits:
                self.alpha[draft] = Estimate(value + self.forget * (first - value), tried)
        self.text.advance(state)
        self.rounds, self.drafted = self.rounds + 1, self.drafted + verification.draft.steps
        self.note(alpha=[round(estimate.value, 5) for estimate in self.alpha])

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        texts = self.sets or state["ranked"]
        self.skips = [DraftPlan.parse(text, self.layers) for text in texts]
        self.alpha = [Estimate(*pair) for pair in state["alpha"]]
        self.by_match = [Estimate(*pair) for pair in state["by_match"]]
