"""CLaSp: In-Context Layer Skip for Self-Speculative Decoding, arXiv:2505.24196.

After a verification, the target's hidden states of the last accepted token are the objective: a
dynamic programme picks the M layers whose absence turns the last state least (Algorithm 1, Eq. 2).
All branches of a step run as one sequence of siblings over the shared K/V cache (section 3.6), and
the programme runs only now and then (section 3.7).

| paper | here | |
|---|---|---|
| L, f_i | `units`, `run_unit(i - 1, ...)` | layers (or sub-layers) and their forward |
| M | `skipped` | units to skip |
| x_i | `x[i]` [D] | target's state of the last accepted token after unit i, x_0 its embedding |
| g[i, j] | `g[j]` [M + 1, D] | best state after unit i with j units skipped; one i is kept |
| S | the returned list | skipped units |
| K, draft-exiting threshold | `stop.max_steps`, `stop.threshold` | |
| layer optimisation interval | `interval` | |

The published code is the port of KnapSpec's authors.
Deviations from the paper and its published code, with their switches: docs/methods/clasp.md.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from skipbench.config.configurable import Positive
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.trial_passes import parallel_branches, recent_states
from skipbench.errors import SkipbenchError


def choose_layers(
    x: Tensor, run_unit: Callable[[int, Tensor], Tensor], skipped: int
) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Algorithm 1.

    Args:
        x: [N + 1, D] the target's states of one token, before the first and after every one of N
            units.
        run_unit: unit index, states [M, D] -> [M, D]; the states are alternatives for the same
            token.
        skipped: M, from 1 to N.

    Returns:
        Skipped units; and for reports the cosines of executing and of skipping, [N, M] each, and
        g[N, M] [D]. Row i - 1, column j - 1 of the cosines belongs to cell (i, j); minus infinity
        where it is not computed. Only cells from which (N, M) can be reached are: j of them are
        skipped with N - i units left, so that M - (N - i) <= j <= i.
    """
    units, width = x.shape[0] - 1, skipped
    norm = x.float() / x.float().norm(dim=-1, keepdim=True)
    g = x[0].repeat(width + 1, 1)  # g[0, 0] = x_0
    executes = torch.full((units, width), -torch.inf, device=x.device)
    skips = executes.clone()
    for i in range(1, units + 1):
        low, high = max(1, width - (units - i)), min(i, width)
        run = range(low, min(high, i - 1) + 1)  # cell (i, i) can only skip: its state is x_0
        # f_{i-1}(g[i-1, j]) and g[i-1, j-1], Eq. 2
        executed = [run_unit(i - 1, g[run.start : run.stop])] if run else []
        candidates = torch.cat((*executed, g[low - 1 : high]))
        cosine = (candidates.float() @ norm[i]) / candidates.float().norm(dim=-1)
        executes[i - 1, run.start - 1 : run.stop - 1] = cosine[: len(run)]
        skips[i - 1, low - 1 : high] = cosine[len(run) :]
        best = candidates[len(run) :]
        execute = cosine[: len(run)] > cosine[len(run) :][: len(run)]  # a tie skips
        best[: len(run)] = torch.where(execute[:, None], candidates[: len(run)], best[: len(run)])
        g[0], g[low : high + 1] = x[i], best
    executed, chosen = (executes > skips).tolist(), list[int]()
    for i in range(units, 0, -1):  # backtracking
        if len(chosen) < skipped and not executed[i - 1][skipped - len(chosen) - 1]:
            chosen.append(i - 1)
    return chosen[::-1], executes, skips, g[skipped]


class CLaSp(SkipMethod):
    """Layer skipping in context: a new set every `interval` rounds or tokens.

    >>> from skipbench.decode.stopping import Fixed
    >>> method = CLaSp(name="clasp", layers=8, ratio=0.25, stop=Fixed(max_steps=10))
    >>> method.skipped  # layers per set; `choose_layers` picks them from hidden states
    2
    >>> states = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # only layer 0 adds nothing
    >>> choose_layers(states, lambda unit, g: g + (states[unit + 1] - states[unit]), skipped=1)[0]
    [0]
    """

    ratio: float = 0.5
    """Share of the units to skip; M is `round(units * ratio)`, neither none nor all of them."""
    interval: Positive = 64
    """Rounds or tokens between two programmes (layer optimisation interval)."""
    interval_unit: Literal["rounds", "tokens"] = "rounds"
    """Unit of `interval`: `rounds` or `tokens`."""
    start: Literal["prompt", "full"] = "prompt"
    """First programme: on the `prompt`'s last token, or `full`: after the first round."""
    unit: Literal["layer", "sublayer"] = "layer"
    """`layer` skips whole layers; `sublayer` skips attention and MLP one by one."""
    programme: Literal["parallel", "sequential"] = "parallel"
    """Branches of a step: all in one pass, or a pass each (section 5.1); the sets are the same."""

    needs_hidden_states, logged = True, ("optimised", "cosine")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.size = 2 if self.unit == "layer" else 1  # sub-layers per unit
        units = 2 * self.layers // self.size
        self.skipped = round(units * self.ratio)
        if not 0 < self.skipped < units:
            raise SkipbenchError(
                f"clasp: ratio={self.ratio} skips {self.skipped} of {units} {self.unit}s; choose "
                f"from {1 / units:.3f} to {1 - 1 / units:.3f}"
            )

    def begin(self, state: State) -> None:
        super().begin(state)
        self.skip = self.plan()
        self._since: int | None = None  # rounds or tokens since the last programme
        if self.start == "prompt":
            self._optimise(state, [x[0] for x in recent_states(state, 1)])

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        if self._since is not None:
            self._since += 1 if self.interval_unit == "rounds" else len(verification.accepted) + 1
        if state.finish is None and (self._since is None or self._since >= self.interval):
            self._optimise(state, [x[verification.last_row] for x in verification.hidden_states])

    def _optimise(self, state: State, states: Sequence[Tensor]) -> None:
        """One programme for the last token in the cache, whose S + 1 states [D] are given."""
        x = torch.stack(list(states)[:: self.size])
        together = self.skipped if self.programme == "parallel" else 1
        run = parallel_branches(state.lm, 1, together, self.size, self.plan())
        chosen, _, _, last = choose_layers(x, lambda u, g: run(u, g[:, None])[:, 0], self.skipped)
        skipped = [self.size * unit + k for unit in chosen for k in range(self.size)]
        self.skip, self._since = self.plan(skipped), 0
        cosine = float(torch.cosine_similarity(last, x[-1], dim=0))
        self.note(optimised=len(self.draft_log["steps"]), cosine=round(cosine, 6))
