"""KnapSpec: Self-Speculative Decoding via Adaptive Layer Selection as a Knapsack Problem.

Sub-layers are items of a 0/1 knapsack whose weights are their latencies at the present context
length. A dynamic programme over the last r tokens (Algorithm 1, Eqs. 6 to 8) gives a candidate set
per skipped weight; the one with the highest expected tokens per second (TPT, Eqs. 4 and 9) drafts
until the next programme.

| paper | here | |
|---|---|---|
| X^(i) | `x[i]` [r, D] | target's states of the r tokens of the last m rounds |
| t_Attn(n), t_MLP | `prices.part_s` | seconds, profiled in the engine |
| w_Attn, w_MLP, Delta | `weights` | integers, the lighter one 1 |
| f^(i) | `run_sublayer(i - 1, ...)` | |
| g[i, j], j | `g[j]` [J, r, D] | best states after sub-layer i with skipped weight j |
| K, tau, m, T, D | 2 `budget`, `tau`, `history`, `interval`, `lengths` | |
| tau_conf | `stop.threshold` | |

Deviations from the paper and its published code, with their switches: docs/methods/knapspec.md.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor

from skipbench.config.configurable import Natural, Positive, PositiveShare
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.sampling import best_tokens
from skipbench.decode.trial_passes import parallel_branches
from skipbench.errors import SkipbenchError
from skipbench.lm.cache import upload
from skipbench.lm.model import LM
from skipbench.metrics.formulas import tpt
from skipbench.metrics.host import NO_HOST, Host
from skipbench.metrics.prices import Latencies, Prices


def knapsack(
    x: Tensor,
    run_sublayer: Callable[[int, Tensor], Tensor],
    weights: Sequence[int],
    budget: int,
    tau: float,
    free: Sequence[bool],
    exact: bool = True,
) -> tuple[list[int], list[frozenset[int]], list[float], Tensor]:
    """Algorithm 1, the forward search and the backtracking: all branches of a sub-layer in one
    call.

    Args:
        x: [S + 1, r, D] the target's states of r tokens, before the first and after every
            sub-layer.
        run_sublayer: index, states [n, r, D] -> [n, r, D]; n alternatives for the same tokens.
        weights, free: per sub-layer its weight, and whether it may be skipped.
        budget: largest skipped weight.
        tau: branches whose mean cosine to the target's states is below it are dropped.
        exact: `run_sublayer` is the target's: the branch that skips nothing has its states.

    Returns:
        One candidate per surviving skipped weight, lightest first: weight, skipped sub-layers,
            cosine, last states [n, r, D].
    """
    norms = x.float().norm(dim=-1)
    target = x.float() / norms[..., None]
    executed = torch.zeros(len(weights), budget + 1, dtype=torch.bool, device=x.device)
    # Per branch: the skipped weight j, the states g[i, j], and their norms.
    j, g, norm = torch.zeros(1, dtype=torch.long, device=x.device), x[:1], norms[:1]
    for i, w in enumerate(weights, 1):
        # Eq. 7. Branch 0 skipped nothing: its states are the target's.
        ran = run_sublayer(i - 1, g[exact:]) if len(g) > exact else x[:0]
        h = torch.cat((x[i : i + exact], ran, g))
        norm = torch.cat((norms[i : i + exact], ran.float().norm(dim=-1), norm))
        sigma = ((h.float() * target[i]).sum(-1) / norm).mean(-1)  # mean cosine over the tokens
        sigma[: int(exact)].fill_(1.0)
        sigma.masked_fill_(sigma < tau, -torch.inf)
        # Per skipped weight: the branch that executes sub-layer i, and the one that skips it.
        best = sigma.new_full((2, budget + 1), -torch.inf)
        source = j.new_zeros(2, budget + 1)
        best[0, j], source[0, j] = sigma[: len(j)], torch.arange(len(j), device=x.device)
        skips = (j + w <= budget).nonzero()[:, 0] if free[i - 1] else j[:0]
        best[1, j[skips] + w], source[1, j[skips] + w] = sigma[len(j) + skips], len(j) + skips
        executed[i - 1] = best[0] >= best[1]  # Eq. 8
        chosen = torch.where(executed[i - 1], source[0], source[1])
        best = best.amax(0)
        j = best.isfinite().nonzero()[:, 0]
        g, norm = h.index_select(0, chosen[j]), norm.index_select(0, chosen[j])
    skipped, at = [], j
    for i in reversed(range(len(weights))):  # backtracking
        skipped.append(~executed[i, at])
        at = at - weights[i] * skipped[-1]
    sets = [
        frozenset(s for s, skip in enumerate(row) if skip)
        for row in torch.stack(skipped[::-1], 1).tolist()
    ]
    return j.tolist(), sets, best[j].tolist(), g


def integer_weights(attention_s: float, mlp_s: float, cap: int | None) -> tuple[int, int]:
    """w_Attn and w_MLP (section 3.4, Integer Weight Normalization)."""
    delta = min(attention_s, mlp_s)
    attention, mlp = (round(t / delta) for t in (attention_s, mlp_s))
    return (attention, mlp) if cap is None else (min(attention, cap), min(mlp, cap))


def highest_tpt(
    alpha: Sequence[float], draft_s: Sequence[float], target_s: float, lengths: Sequence[int]
) -> tuple[int, int, float]:
    """Index of the set, gamma and TPT of the best pair (Eq. 4, section 3.5), the first if equal."""
    value, best, gamma = max(
        (tpt(a, d, t, target_s), -n, -d)
        for n, (a, t) in enumerate(zip(alpha, draft_s, strict=True))
        for d in lengths
    )
    return -best, -gamma, value


class KnapSpec(SkipMethod):
    """A new set every `interval` rounds, from the states of the last `history` rounds and the
    latencies at the present length.

    >>> integer_weights(attention_s=2e-5, mlp_s=1e-5, cap=5)
    (2, 1)
    >>> x = torch.tensor([[[1.0, 0.0]], [[1.0, 0.1]], [[0.0, 1.0]]])  # sub-layer 1 turns the state
    >>> moves = x[1:] - x[:-1]
    >>> weights, sets, *_ = knapsack(
    ...     x, lambda i, g: g + moves[i], [2, 1], budget=2, tau=0.5, free=[True, True]
    ... )
    >>> list(zip(weights, map(set, sets)))
    [(0, set()), (2, {0})]
    """

    tau: float = 0.5
    """Branches whose mean cosine to the target's states is below it are pruned."""
    interval: Positive = 64
    """T, rounds between two programmes."""
    history: Positive = 5
    """m, rounds whose tokens a programme uses; at most `interval`."""
    lengths: Annotated[Sequence[Natural], Meta(min_length=2, max_length=2)] = (1, 10)
    """First and last draft length that are compared (D); the last is 1 or more."""
    use_gamma: bool = False
    """Drafts at most gamma* tokens per round, besides the stop rule."""
    weight_cap: Positive | None = 5
    """Largest integer weight of a sub-layer; null for none (the paper)."""
    budget: PositiveShare = 0.5
    """Share of all weight that may be skipped, above 0 to 1 (the paper: K / 2 is half)."""
    protect_ends: bool = False
    """Never skips the first and the last layer."""
    drop_first: bool = False
    """Leaves the lightest surviving candidate out, as the published code."""
    start: Literal["carry", "full"] = "full"
    """Starts a prompt with the `full` model, or `carry`s on set and rounds of the last one."""
    host: bool = False
    """Adds what the host does beside a draft pass and a round to Eq. 4, which has passes alone."""
    latency: Annotated[Sequence[float], Meta(min_length=3, max_length=3)] | None = None
    """Seconds of [MLP, attention per context token, attention]; null profiles the engine."""

    needs_hidden_states = needs_latency = True
    logged = ("optimised", "weights", "candidates", "gamma", "tpt")
    carried = ("skip", "due")

    def __post_init__(self) -> None:
        super().__post_init__()
        last = 2 * self.layers - 2
        self.free = [not self.protect_ends or 2 <= s < last for s in range(2 * self.layers)]
        if not self.lengths[0] <= self.lengths[1] > 0:
            raise SkipbenchError(
                f"knapspec: lengths={list(self.lengths)}; wanted the first and the last draft "
                "length, such as [1, 10]"
            )
        if self.latency is not None:
            self.needs_latency = False
            mlp, per_token, attention = self.latency
            if min(mlp, attention) <= 0:
                raise SkipbenchError(
                    f"knapspec: latency={list(self.latency)}; wanted [mlp, attention per token, "
                    "attention] in seconds"
                )
            self.given_prices = Prices(model=Latencies(attention, per_token, mlp, 0.0, self.layers))
        self._max_steps = self.stop.max_steps  # that of the stop rule is gamma* under `use_gamma`
        self.due = self.history + 1  # rounds; the first one of a prompt is not representative

    def begin(self, state: State) -> None:
        super().begin(state)
        if self.start == "full":
            self.skip, self.due = self.plan(), self.history + 1
            self.stop.max_steps = self._max_steps
        self._x: list[Tensor] = []  # of each of the last rounds [S + 1, tokens, D]

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        self.due -= 1
        if state.finish is not None or self.due >= self.history:
            return
        rows = torch.tensor([0, *(node + 1 for node in verification.accepted)])
        states = torch.stack(verification.hidden_states)
        states = states.index_select(1, upload(rows, states.device))
        self._x = [*self._x, states][-self.history :]
        if self.due <= 0 and len(self._x) >= min(self.history, self.interval):
            self._optimise(state.lm, state.host if self.host else NO_HOST)
            self.due, self._x = self.interval, []

    def _optimise(self, lm: LM, host: Host) -> None:
        prices, length, plan = self.given_prices or lm.prices, lm.cache.length, self.plan()
        kinds = ("attention", "mlp")
        attention_s, mlp_s = (prices.part_s(kind, length, plan.variant) for kind in kinds)
        attention, mlp = weights = integer_weights(attention_s, mlp_s, self.weight_cap)
        # K / 2, section 3.4, Efficiency via Pruning
        budget = int(self.budget * (attention + mlp) * self.layers)
        x = torch.cat(self._x, 1)[:, -(lm.cache.capacity - lm.cache.length) :]
        run = parallel_branches(lm, x.shape[1], budget, plan=plan)
        weight, skipped, cosine, states = knapsack(
            x, run, weights * self.layers, budget, self.tau, self.free, exact=plan.whole
        )
        self.skip, alpha, gamma, value = plan, [], None, None
        if weight:  # not all pruned
            sets = [self.plan(s) for s in skipped]
            # Eq. 9: share of the r tokens that a candidate predicts as the target does
            wanted = best_tokens(lm.head(x[-1]))
            tokens = best_tokens(lm.head(states.flatten(0, 1), plan)).view(-1, x.shape[1])
            alpha = (tokens == wanted).double().mean(-1).tolist()
            first = min(int(self.drop_first), len(sets) - 1)
            lengths = range(self.lengths[0], self.lengths[1] + 1)
            step_s = host.step_s + host.row_s  # a drafted token is one row more
            draft_s = [host.draft_pace * prices.pass_s(1, length, s) + step_s for s in sets[first:]]
            target_s = prices.round_s(1, length, host)
            best, gamma, value = highest_tpt(alpha[first:], draft_s, target_s, lengths)
            self.skip = sets[first + best]
            if self.use_gamma:
                self.stop.max_steps = max(1, gamma)
        candidates = [[w, round(c, 5), a] for w, c, a in zip(weight, cosine, alpha, strict=True)]
        self.note(optimised=len(self.draft_log["steps"]), weights=weights, candidates=candidates)
        self.note(gamma=gamma, tpt=value)

    def state_dict(self) -> Any:
        return super().state_dict() | {"max_steps": self.stop.max_steps}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.stop.max_steps = state["max_steps"]
