"""The model on other contexts, each from the rows that the K/V cache still holds."""

import torch
from torch import Tensor

from skipbench.decode.lossless import tie_bound
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows


class Replay:
    """What the model says next, in its engine's arithmetic; near ties count as its choice."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self._held = list[int]()

    def logits(self, tokens: list[int], count: int) -> Tensor:
        """Logits [count, V] after each of the last `count` tokens."""
        limit = len(tokens) - count
        pairs = zip(self._held[:limit], tokens, strict=False)
        start = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._held), limit))
        if self.lm.cache.capacity < len(tokens) + 8:
            self.lm.allocate(2 * len(tokens) + 64)
            start = 0
        rows = TokenRows.chain(start, len(tokens) - start)
        with torch.inference_mode():
            hidden = self.lm.run(self.lm.embed(tokens[start:]), rows)
            logits = self.lm.head(hidden[-count:]).float()
        self._held = list(tokens)
        return logits

    def follows(self, context: list[int], given: list[int]) -> int:
        """How many of the `given` tokens, from the first on, are the model's after `context`, but
        for ties.
        """
        if not given or not context:
            return 0
        logits = self.logits(context + given[:-1], len(given))
        chosen = logits.gather(-1, torch.tensor(given, device=logits.device)[:, None])[:, 0]
        gaps = (logits.max(-1).values - chosen).tolist()
        largest = logits.abs().max(-1).values.tolist()
        pairs = enumerate(zip(gaps, largest, strict=True))
        far = (i for i, (gap, most) in pairs if gap > tie_bound(most, self.lm.dtype))
        return next(far, len(given))

    def greedy(self, context: list[int], count: int, eos: frozenset[int]) -> list[int]:
        """The model's next tokens, up to `count`, or to an EOS, which is among them."""
        made = list[int]()
        while len(made) < count and not {*made[-1:]} & eos:
            made.append(int(self.logits(context + made, 1)[0].argmax()))
        return made
