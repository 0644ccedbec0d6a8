"""KnapSpec: Self-Speculative Decoding via Adaptive Layer Selection as a Knapsack Problem.

Sub-layers are items of a 0/1 knapsack whose weights are their latencies at the present context
length. One dynamic programme over the last r tokens (Algorithm 1, Eqs. 6 to 8) gives a candidate
set for every skipped weight; the candidate that promises most tokens per second (TPT, Eqs. 4 and 9)
drafts until the next programme.

| paper | here | |
|---|---|---|
| X^(i) | `x[i]` [r, D] | target's states of the r tokens of the last m rounds |
| t_Attn(n), t_MLP | `Latency` | seconds, profiled in the engine |
| w_Attn, w_MLP, Delta | `weights` | integers, the lighter one 1 |
| f^(i) | `run_sublayer(i - 1, ...)` | |
| g[i, j], j | `g[j]` [J, r, D] | best states behind sub-layer i with skipped weight j |
| K, tau, m, T, D | 2 `budget`, `tau`, `history`, `interval`, `lengths` | |
| tau_conf | `stop.threshold` | |

Deviations from the paper and its published code, with their switches: docs/methods/knapspec.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, pad

from skipbench.decode.drafting import Drafter
from skipbench.decode.method import Draft, Verification
from skipbench.decode.sampling import best_tokens
from skipbench.decode.state import State
from skipbench.decode.stopping import StopRule
from skipbench.decode.trial_passes import parallel_branches
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.upload import upload
from skipbench.metrics.costs import Latency, LatencyModel
from skipbench.metrics.formulas import tpt
from skipbench.skipset import SkipSet


def knapsack_plain(
    x: Tensor,
    run_sublayer: Callable[[int, Tensor], Tensor],
    weights: Sequence[int],
    budget: int,
    tau: float,
    free: Sequence[bool],
) -> tuple[list[int], list[frozenset[int]], list[float], Tensor]:
    """Algorithm 1 as the paper writes it, one branch after the other: to be read, and to test
    `knapsack` against.

    Arguments and results are those of `knapsack`.
    """

    def cosine(h: Tensor, i: int) -> float:
        return float(cosine_similarity(h.float(), x[i].float(), dim=-1).mean())

    g = {0: (cosine(x[0], 0), x[0], frozenset[int]())}  # g[0, 0] = X^(0)
    for i, w in enumerate(weights, 1):
        found: dict[int, tuple[float, Tensor, frozenset[int]]] = {}
        for j, (_, states, skipped) in g.items():
            # h_e of Eq. 7; Algorithm 2, line 6
            executed = run_sublayer(i - 1, states[None])[0] if j else x[i]
            sigma = cosine(executed, i)
            if sigma >= tau and (j not in found or sigma >= found[j][0]):
                found[j] = sigma, executed, skipped
            sigma = cosine(states, i)  # h_s of Eq. 7
            fits = free[i - 1] and j + w <= budget
            if fits and sigma >= tau and (j + w not in found or sigma > found[j + w][0]):  # Eq. 8
                found[j + w] = sigma, states, skipped | {i - 1}
        g = dict(sorted(found.items()))
    last = [h for _, h, _ in g.values()]
    sets = [skipped for *_, skipped in g.values()]
    return [*g], sets, [s for s, *_ in g.values()], torch.stack(last) if last else x[:0]


def knapsack(
    x: Tensor,
    run_sublayer: Callable[[int, Tensor], Tensor],
    weights: Sequence[int],
    budget: int,
    tau: float,
    free: Sequence[bool],
) -> tuple[list[int], list[frozenset[int]], list[float], Tensor]:
    """Algorithm 1, the forward search and the backtracking: all branches of a sub-layer in one
    call.

    Args:
        x: [S + 1, r, D] the target's states of r tokens, before the first and behind every
            sub-layer.
        run_sublayer: index, states [n, r, D] -> [n, r, D]; n alternatives for the same tokens.
        weights, free: of every sub-layer its weight, and whether it may be skipped.
        budget: largest skipped weight.
        tau: branches whose mean cosine to the target's states is below it are dropped.

    Returns:
        One candidate a surviving skipped weight, lightest first: weight, skipped sub-layers,
            cosine, last states [n, r, D].
    """
    count, unit = len(weights), normalize(x.float(), dim=-1)

    # g[0, 0] = X^(0), and no other branch; sigma of each branch, minus infinity if dead; lengths of
    # the states [J, r]
    g, best, length = x[:1], unit.new_ones(1), x[:1].float().norm(dim=-1)
    lengths = x.float().norm(dim=-1)  # of what skips nothing
    executed = torch.zeros(count, budget + 1, dtype=torch.bool, device=x.device)
    indices = torch.arange(budget + 1, device=x.device)
    for i, w in enumerate(weights, 1):
        reach = len(g) - 1  # heaviest branch that is alive
        h = [x[i : i + 1], run_sublayer(i - 1, g[1:])] if reach else [x[i : i + 1]]
        both = torch.cat([*h, g])  # h_e, and h_s of Eq. 7
        wide = both.float()
        length = torch.cat((lengths[i : i + 1], wide[1 : reach + 1].norm(dim=-1), length))
        sigma = ((wide * unit[i]).sum(-1) / length).mean(
            -1
        )  # mean over the tokens of the cosine to the target's states
        sigma.masked_fill_((sigma < tau) | (torch.cat((best, best)) == -torch.inf), -torch.inf)
        top = max(reach, min(reach + w, budget)) if free[i - 1] else reach
        run, skip = torch.split(sigma, reach + 1)
        run = pad(run, (0, top - reach), value=-torch.inf)
        fits = free[i - 1] and w <= top
        skip = (
            pad(skip, (w, top - reach - w), value=-torch.inf)
            if fits
            else torch.full_like(run, -torch.inf)
        )
        executed[i - 1, : top + 1] = keep = run >= skip  # Eq. 8
        best = torch.maximum(run, skip)
        alive = (best > -torch.inf).nonzero()[:, 0]
        if not len(alive):
            return [], [], [], g[:0]
        best = best[: int(alive[-1]) + 1]
        j = indices[: len(best)]
        # Of a dead branch any state will do.
        chosen = torch.where(keep[: len(best)], j, j + (reach + 1 - w)).clamp_(0, len(both) - 1)
        g, length = both.index_select(0, chosen), length.index_select(0, chosen)
    rows = backtrack(executed, weights, alive).tolist()
    sets = [frozenset(s for s in range(count) if row[s]) for row in rows]
    return alive.tolist(), sets, best[alive].tolist(), g[alive]


def backtrack(executed: Tensor, weights: Sequence[int], j: Tensor) -> Tensor:
    """[n, S], true where the branch that ends with skipped weight j [n] skips; `executed` [S,
    budget + 1] holds the decisions.
    """
    skipped = []
    for i in range(len(weights) - 1, -1, -1):
        skips = ~executed[i, j]
        skipped.append(skips)
        j = j - weights[i] * skips
    return torch.stack(skipped[::-1], 1)


def integer_weights(latency: Latency, cap: int | None) -> tuple[int, int]:
    """w_Attn and w_MLP (section 3.4, Integer Weight Normalization)."""
    delta = min(latency.attention_s, latency.mlp_s)
    attention, mlp = (round(t / delta) for t in (latency.attention_s, latency.mlp_s))
    return (attention, mlp) if cap is None else (min(attention, cap), min(mlp, cap))


def most_tokens_per_time(
    alpha: Sequence[float], sets: Sequence[SkipSet], latency: Latency, lengths: Sequence[int]
) -> tuple[int, int, float]:
    """Index of the set, gamma and TPT of the best pair (Eq. 4, section 3.5); of equal ones the
    first.
    """
    value, best, gamma = max(
        (tpt(a, d, latency.pass_s(s), latency.pass_s()), -n, -d)
        for n, (a, s) in enumerate(zip(alpha, sets, strict=True))
        for d in lengths
    )
    return -best, -gamma, value


class KnapSpec:
    """A new set every `interval` rounds, from the states of the last `history` rounds and the
    latencies at the present length.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        tau: branches whose mean cosine to the target's states is below it are pruned.
        interval: T, rounds between two programmes.
        history: m, rounds whose tokens a programme looks at; at most `interval`.
        lengths: first and last draft length that are compared (D).
        use_gamma: drafts at most gamma* tokens per round, besides the stop rule.
        weight_cap: largest integer weight of a sub-layer; null for none (the paper). It matters
            where attention or MLP takes more than 5 times as long as the other.
        budget: share of all weight that may be skipped, above 0 to 1 (the paper: K / 2 is half).
        protect_ends: never skips the first and the last layer.
        drop_first: leaves the lightest surviving candidate out, as the published code.
        start: `full` drafts with the full model until a prompt's first programme; `carry` keeps the
            set of the prompt before, and counts rounds across prompts.
        latency: seconds of [MLP, attention per context token, attention]; null profiles the engine.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: an interval, history or cap below 1, lengths or a budget out of range, or a
            word or number of latencies that is not known.
    """

    needs_hidden_states = True

    def __init__(
        self,
        layers: int,
        name: str,
        stop: StopRule,
        tau: float = 0.5,
        interval: int = 64,
        history: int = 5,
        lengths: Sequence[int] = (1, 10),
        use_gamma: bool = False,
        weight_cap: int | None = 5,
        budget: float = 0.5,
        protect_ends: bool = False,
        drop_first: bool = False,
        start: str = "full",
        latency: Sequence[float] | None = None,
        tree: Sequence[int] = (),
    ) -> None:
        if min(interval, history, 1 if weight_cap is None else weight_cap) < 1 or start not in (
            "carry",
            "full",
        ):
            raise SkipbenchError(
                f"knapspec: {interval=}, {history=}, {weight_cap=}, {start=}; wanted numbers of 1 "
                "or more (weight_cap may be null), and start carry or full"
            )
        if not 0 < budget <= 1:
            raise SkipbenchError(
                f"knapspec: {budget=}; wanted the share of all weight that may be skipped, "
                "above 0 to 1"
            )
        if len(lengths) != 2 or not 0 <= lengths[0] <= lengths[1] or lengths[1] < 1:
            raise SkipbenchError(
                f"knapspec: lengths={list(lengths)}; wanted the first and the last draft "
                "length, such as [1, 10]"
            )
        if latency is not None and (len(latency) != 3 or min(latency[0], latency[2]) <= 0):
            raise SkipbenchError(
                f"knapspec: latency={list(latency)}; wanted [mlp, attention a token, "
                "attention] in seconds"
            )
        self.name, self.layers, self.tau, self.interval, self.history = (
            name,
            layers,
            tau,
            interval,
            history,
        )
        self.lengths, self.use_gamma = range(lengths[0], lengths[1] + 1), use_gamma
        self.weight_cap, self.budget, self.drop_first, self.start = (
            weight_cap,
            budget,
            drop_first,
            start,
        )
        self.free = [not protect_ends or 2 <= s < 2 * layers - 2 for s in range(2 * layers)]
        self.latency = (
            None
            if latency is None
            else LatencyModel(latency[2], latency[1], latency[0], 0.0, layers)
        )
        self.drafter, self.skip = Drafter(stop, tree), SkipSet.of(layers)
        self._max_steps = stop.max_steps  # that of the stop rule is gamma* under `use_gamma`
        # rounds to the next programme; the first round of a prompt tells little
        self._due = history + 1

    def begin(self, state: State) -> None:
        self.drafter.begin()
        if self.start == "full":
            self.skip, self._due = SkipSet.of(self.layers), self.history + 1
            self.drafter.stop.max_steps = self._max_steps
        self._x: list[Tensor] = []  # of each of the last rounds [S + 1, tokens, D]
        self.log: dict[str, list[Any]] = {
            k: [] for k in ("optimised", "weights", "candidates", "gamma", "tpt")
        }

    def propose(self, state: State, budget: int) -> Draft:
        return self.drafter.propose(state, self.skip, budget)

    def adapt(self, state: State, verification: Verification) -> None:
        self.drafter.update(verification)
        self._due -= 1
        if state.finish is not None or self._due >= self.history:
            return
        rows = torch.tensor([0, *(node + 1 for node in verification.accepted)])
        states = torch.stack(verification.hidden_states)
        states = states.index_select(1, upload(rows, states.device))
        self._x = [*self._x, states][-self.history :]
        if self._due <= 0 and len(self._x) >= min(self.history, self.interval):
            self._optimise(state.lm)
            self._due, self._x = self.interval, []

    def _optimise(self, lm: LM) -> None:
        assert self.latency is not None
        latency = self.latency.at(lm.cache.length)
        attention, mlp = weights = integer_weights(latency, self.weight_cap)
        # K / 2, section 3.4, Efficiency via Pruning
        budget = int(self.budget * (attention + mlp) * self.layers)
        x = torch.cat(self._x, 1)[:, -(lm.cache.capacity - lm.cache.length) :]
        run = parallel_branches(lm, x.shape[1], budget)
        weight, skipped, cosine, states = knapsack(
            x, run, weights * self.layers, budget, self.tau, self.free
        )
        self.skip, alpha, gamma, value = SkipSet.of(self.layers), [], None, None
        if weight:  # not all pruned
            sets = [SkipSet(self.layers, s) for s in skipped]
            alpha = acceptance(lm, x[-1], states)
            first = min(int(self.drop_first), len(sets) - 1)
            best, gamma, value = most_tokens_per_time(
                alpha[first:], sets[first:], latency, self.lengths
            )
            self.skip = sets[first + best]
            if self.use_gamma:
                self.drafter.stop.max_steps = max(1, gamma)
        candidates = [[w, round(c, 5), a] for w, c, a in zip(weight, cosine, alpha, strict=True)]
        values = (len(self.drafter.log["steps"]), weights, candidates, gamma, value)
        for key, found in zip(self.log, values, strict=True):
            self.log[key].append(found)

    @property
    def state_dict(self) -> dict[str, Any]:
        """What the next prompt starts from."""
        return {"skip": str(self.skip), "due": self._due, "max_steps": self.drafter.stop.max_steps}

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self.skip, self._due = SkipSet.parse(state["skip"], self.layers), state["due"]
        self.drafter.stop.max_steps = state["max_steps"]


def acceptance(lm: LM, target: Tensor, states: Tensor) -> list[float]:
    """Share of the r tokens that each candidate predicts as the target does (Eq. 9), from last
    states [r, D] and [n, r, D].
    """
    best = best_tokens(lm.head(torch.cat((target, states.flatten(0, 1))))).view(-1, len(target))
    shares: list[float] = (best[1:] == best[0]).double().mean(-1).tolist()
    return shares
