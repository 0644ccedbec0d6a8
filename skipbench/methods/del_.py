"""DEL: Context-Aware Dynamic Exit Layer for Efficient Self-Speculative Decoding, arXiv:2504.05598.

Early exit whose layer and length change every round: all layers' predictions at the tokens that a
round has passed through the model anyway (shadow tokens) are compared with the target's, and the
exit layer and draft length with the most tokens per layer (TPL, Eq. 2 of the KnapSpec paper) are
taken for the next round. Early layers are shared exactly, as in LayerSkip, and like LayerSkip it is
meant for checkpoints trained for early exit.

| paper | here | |
|---|---|---|
| l | `exit_layer` | exit layer, 1 to L - 1 |
| d, d_max | `length`, `max_length` | draft length, 0 to d_max - 1 |
| alpha_l | `alpha` [L - 1] | decayed share of shadow tokens that match |
| omega | `omega` | decay per round |
| tau_l | `threshold` | between the mean confidences of matching and of other shadow tokens |

The published code is the port of KnapSpec's authors.
Deviations from the paper and its published code, with their switches: docs/methods/del.md.
"""

import math
from collections.abc import Sequence
from dataclasses import field

import torch
from torch import Tensor

from skipbench.config.configurable import Positive, PositiveShare, TwoOrMore
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.trial_passes import recent_states

# of the prompt, whose shadow tokens the first choice rests on; the published port's number
CONTEXT_TOKENS = 33


class DEL(SkipMethod):
    """Dynamic early exit.

    >>> from skipbench.decode.stopping import Fixed
    >>> method = DEL(name="del", layers=4, max_length=3, stop=Fixed())
    >>> method.counts = torch.tensor([[0.0, 4.0], [3.0, 1.0], [4.0, 0.0]])  # matching and other
    >>> method._choose()  # layer 3 is always right: 3 tokens per 2 * 3 + 4 layers
    >>> method.exit_layer, method.length
    (3, 2)
    """

    layers: TwoOrMore
    tree: Sequence[int] = field(default=(), init=False)
    max_length: Positive = 18
    """d_max: draft lengths 0 to `max_length - 1` are compared."""
    omega: PositiveShare = 0.95
    """Decay of the match counts per round, above 0 to 1."""
    use_gamma: bool = True
    """Drafts the length that was chosen; false drafts up to `stop.max_steps` tokens."""
    dynamic_threshold: bool = True
    """Stops at the threshold tau_l of the exit layer; false uses `stop.threshold`."""
    count_rejected: bool = False
    """Counts the rows of rejected tokens, too, where the exit layer is 1 (published code)."""

    needs_hidden_states, logged = True, ("exit_layer", "length")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_states_shared()
        exits = torch.arange(1, self.layers)[:, None]
        # denominator of TPL [L - 1, d_max]
        self._layers_run = (torch.arange(self.max_length) * exits + self.layers).double()

    def begin(self, state: State) -> None:
        super().begin(state)
        # matching and other shadow tokens per layer
        self.counts = torch.zeros(self.layers - 1, 2, dtype=torch.float64)
        self.confidence = torch.zeros_like(self.counts)  # sums of their probabilities
        self._learn(state, recent_states(state, CONTEXT_TOKENS))

    def propose(self, state: State, budget: int) -> Draft:
        budget = min(budget, self.length) if self.use_gamma else budget
        if self.dynamic_threshold:  # tau_l; 0, which never ends a draft, where a mean is unknown
            tau = float((self.confidence / self.counts)[self.exit_layer - 1].mean())
            self.stop.threshold = 0.0 if math.isnan(tau) else tau
        self.note(exit_layer=self.exit_layer, length=self.length)
        return super().propose(state, budget) if budget else Draft()

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        every = self.count_rejected and self.exit_layer == 1
        rows = len(verification.draft.tokens if every else verification.accepted) + 1
        self._learn(state, [states[:rows] for states in verification.hidden_states])

    def _learn(self, state: State, states: list[Tensor]) -> None:
        """Counts the shadow tokens of these rows, then chooses the next exit."""
        layers = torch.stack(states[2::2])  # [L, rows, D] after every layer
        p, token = state.lm.head(layers.flatten(0, 1)).float().softmax(-1).max(-1)
        p, token = p.view(self.layers, -1).double().cpu(), token.view(self.layers, -1).cpu()
        match = token[:-1] == token[-1]
        fresh = torch.stack((match, ~match), -1).double()  # [L - 1, rows, 2]
        self.counts = self.omega * self.counts + fresh.sum(1)
        self.confidence = self.omega * self.confidence + (fresh * p[:-1, :, None]).sum(1)
        self._choose()

    def _choose(self) -> None:
        """Chooses the next exit layer and draft length by TPL; of equal ones the first."""
        alpha = (self.counts[:, 0] / self.counts.sum(-1))[:, None]
        # (1 - alpha^(d + 1)) / (1 - alpha), alpha = 1 included
        tokens = (alpha ** torch.arange(self.max_length)).cumsum(-1)
        best = int((tokens / self._layers_run).numpy().argmax())  # TPL(l, d)
        self.exit_layer, self.length = best // self.max_length + 1, best % self.max_length
        self.exit_sublayer = 2 * self.exit_layer
        self.skip = self.plan(range(self.exit_sublayer, 2 * self.layers))
