"""ASD: Draft on the Fly: Adaptive Self-Speculative Decoding using Cosine Similarity (Metel et al.),
arXiv:2410.01028.

For every prompt, the attention sub-layers that hardly turn the hidden state, by the cosine
similarity of the states before and after them, are left out of the draft; MLPs stay. Drafting ends
by Draft & Verify's adaptive threshold.

REIMPLEMENTATION, CONSTANTS UNVERIFIED: no code is public, and the available sources give neither
the similarity threshold nor the two structural rules; both are guesses of ours, marked below.

| paper | here | |
|---|---|---|
| similarity of sub-layer i | `cosine[i]` | mean over the last tokens of the prompt |
| threshold | `threshold` (guess: 0.9) | attention above it is dropped |
| structural rules | `keep_first`, `keep_last` (guess: 1, 1) | attention kept, in layers |
| context | `context_tokens` (guess: 32) | tokens of the prompt that are looked at |

Deviations from the paper and its published code, with their switches: docs/methods/asd.md.
"""

from typing import Annotated

import torch
from msgspec import Meta

from skipbench.config.configurable import Natural, Positive, PositiveShare
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.trial_passes import recent_states
from skipbench.errors import SkipbenchError


class ASD(SkipMethod):
    """Attention dropped by similarity.

    >>> from skipbench.decode.stopping import Adaptive
    >>> method = ASD(name="asd", layers=6, keep_first=2, stop=Adaptive())
    >>> list(method.candidates)  # layers whose attention may be dropped
    [2, 3, 4]
    """

    threshold: Annotated[float, Meta(ge=-1, le=1)] = 0.9
    """Cosine from -1 to 1 above which a layer's attention is dropped."""
    keep_first: Natural = 1
    """Layers at the start whose attention stays."""
    keep_last: Natural = 1
    """Layers at the end whose attention stays; not that of all layers."""
    context_tokens: Positive = 32
    """Tokens at the end of the text over which the cosine is averaged."""
    most: PositiveShare = 1.0
    """Maximum share of all attention sub-layers to drop, above 0 to 1."""
    every: Natural = 0
    """Rounds between two choices of the set; 0 chooses once per prompt."""

    logged = ("cosine",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_first + self.keep_last >= self.layers:
            raise SkipbenchError(
                f"asd: keep_first + keep_last = {self.keep_first + self.keep_last} keeps the "
                f"attention of all {self.layers} layers; lower them"
            )
        self.candidates = range(self.keep_first, self.layers - self.keep_last)

    def begin(self, state: State) -> None:
        super().begin(state)
        self._rounds = 0
        self._choose(state)

    def _choose(self, state: State) -> None:
        """Chooses a set by one pass over the last tokens."""
        states = torch.stack(recent_states(state, self.context_tokens)).float()
        # before and after every attention [L, rows, D]
        cosine = torch.cosine_similarity(states[:-1:2], states[1::2], dim=-1).mean(-1).tolist()
        similar = [i for i in self.candidates if cosine[i] > self.threshold]
        similar.sort(key=lambda i: -cosine[i])
        most = max(1, int(self.most * self.layers))
        self.skip = self.plan(2 * i for i in similar[:most])
        self.note(cosine=[round(c, 5) for c in cosine])

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        self._rounds += 1
        if self.every and self._rounds % self.every == 0 and state.finish is None:
            self._choose(state)
