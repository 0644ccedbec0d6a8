"""ASD: Draft on the Fly: Adaptive Self-Speculative Decoding using Cosine Similarity (Metel et al.),
arXiv:2410.01028.

For every prompt, the attention sub-layers that hardly turn the hidden state, by the cosine
similarity of the states before and behind them, are left out of the draft; MLPs stay. Drafting ends
by Draft & Verify's adaptive threshold.

REIMPLEMENTATION, CONSTANTS UNVERIFIED: no code is public, and the sources at hand give neither the
similarity threshold nor the two structural rules. What stands here in their place is a guess of
ours, marked so below.

| paper | here | |
|---|---|---|
| similarity of sub-layer i | `cosine[i]` | mean over the last tokens of the prompt |
| threshold | `threshold` (guess: 0.9) | attention above it is dropped |
| structural rules | `keep_first`, `keep_last` (guess: 1, 1) | attention kept, in layers |
| context | `context_tokens` (guess: 32) | tokens of the prompt that are looked at |

Deviations from the paper and its published code, with their switches: docs/methods/asd.md.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from skipbench.decode.drafting import Drafter
from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.decode.stopping import StopRule
from skipbench.decode.trial_passes import forward_committed
from skipbench.errors import SkipbenchError
from skipbench.skipset import SkipSet


class ASD:
    """Attention dropped by similarity.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        threshold: cosine from -1 to 1 above which a layer's attention is dropped.
        keep_first: layers at the start whose attention stays.
        keep_last: layers at the end whose attention stays.
        context_tokens: tokens at the end of the text over which the cosine is averaged.
        most: largest share of all attention sub-layers to drop, above 0 to 1.
        every: rounds between two choices of the set; 0 chooses once per prompt.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: a number out of range, or rules that keep the attention of every layer.
    """

    def __init__(
        self,
        layers: int,
        name: str,
        stop: StopRule,
        threshold: float = 0.9,
        keep_first: int = 1,
        keep_last: int = 1,
        context_tokens: int = 32,
        most: float = 1.0,
        every: int = 0,
        tree: Sequence[int] = (),
    ) -> None:
        if (
            not -1 <= threshold <= 1
            or not 0 < most <= 1
            or context_tokens < 1
            or min(keep_first, keep_last, every) < 0
        ):
            raise SkipbenchError(
                f"asd: {threshold=}, {most=}, {context_tokens=}, {keep_first=}, {keep_last=}, "
                f"{every=}; wanted -1 <= threshold <= 1, 0 < most <= 1, context_tokens of 1 or "
                "more, and the rest 0 or more"
            )
        if keep_first + keep_last >= layers:
            raise SkipbenchError(
                f"asd: keep_first + keep_last = {keep_first + keep_last} keeps the attention "
                f"of all {layers} layers; lower them"
            )
        self.name, self.layers, self.threshold, self.every = name, layers, threshold, every
        self.candidates = range(keep_first, layers - keep_last)
        self.context_tokens, self.most = context_tokens, max(1, int(most * layers))
        self.drafter, self.skip = Drafter(stop, tree), SkipSet.of(layers)

    def begin(self, state: State) -> None:
        self.drafter.begin()
        self._rounds = 0
        self.log: dict[str, list[Any]] = {"cosine": []}
        self._choose(state)

    def _choose(self, state: State) -> None:
        """One pass over scratch rows of the last tokens, whose states the prefill does not keep."""
        at, hidden_states = state.lm.cache.length, list[Tensor]()
        rows = min(self.context_tokens, at)
        forward_committed(
            state, at - rows, rows, hidden_states=hidden_states, last=state.lm.sublayers - 1
        )
        before = torch.stack(hidden_states[:-1:2])  # of every attention [L, rows, D]
        behind = torch.stack(hidden_states[1::2])
        cosine = torch.cosine_similarity(before.float(), behind.float(), dim=-1).mean(-1).tolist()
        similar = sorted(
            (i for i in self.candidates if cosine[i] > self.threshold), key=lambda i: -cosine[i]
        )
        self.skip = SkipSet.of(self.layers, [2 * i for i in similar[: self.most]])
        self.log["cosine"].append([round(c, 5) for c in cosine])

    def propose(self, state: State, budget: int) -> Draft:
        return self.drafter.propose(state, self.skip, budget)

    def adapt(self, state: State, verification: Verification) -> None:
        self.drafter.update(verification)
        self._rounds += 1
        if self.every and self._rounds % self.every == 0 and state.finish is None:
            self._choose(state)
