"""A speculative loop on Hugging Face's model and cache, as repositories have it, with faults to
plant. Draft tokens are the model's own, every fifth another one, which it rejects.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from skipbench.contrib.oracle import causes

STEPS = 3
FAULTS = {
    "rollback by one": causes.STALE,
    "no rollback": causes.STALE,
    "rollback by one, positions kept": causes.STALE,
    "stale row": causes.STALE,
    "sibling seen": causes.STALE,
    "logits of the next row": causes.STALE,
    "positions drift": causes.POSITIONS,
    "positions after a rejection": causes.POSITIONS,
    "bonus missing": causes.MISSING,
    "bonus shown twice": causes.DOUBLED,
    "bonus committed twice": causes.DOUBLED,
    "draft token kept": causes.KEPT,
    "last draft token unverified": causes.KEPT,
    "draft token shown": causes.SHOWN,
    "second best": causes.RANK,
    "EOS in a draft ignored": causes.END,
    "draft model alone": causes.MODEL,
}
"""Faults of the loop itself, and the cause that has to be named."""


@dataclass
class Loop:
    """Greedy speculative decoding, one prompt after another."""

    model: Any
    eos: frozenset[int] = frozenset()
    fault: str = ""

    def __post_init__(self) -> None:
        if self.fault == "draft model alone":
            self.model = copy.deepcopy(self.model)
            self.model.model.layers = self.model.model.layers[: len(self.model.model.layers) // 2]

    @torch.inference_mode()
    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Up to `count` tokens, to an EOS (included)."""
        cache, self.shift, self.stale = DynamicCache(), 0, None
        first = int(self._forward(prompt, cache)[-1].argmax())
        self.tokens, shown, self.begin = [*prompt, first], [first], len(prompt)
        while len(shown) < count:
            last = shown[-1:] if self.fault == "EOS in a draft ignored" else shown
            if {*last} & self.eos:
                break
            shown += (self._tree if self.fault == "sibling seen" else self._chain)(cache)
        ends = set() if self.fault == "EOS in a draft ignored" else self.eos
        end = next((i + 1 for i, token in enumerate(shown) if token in ends), len(shown))
        return shown[: min(end, count)]

    def _forward(self, tokens: list[int], cache: Any, shift: int = 0) -> torch.Tensor:
        """Logits after each of `tokens`, whose rows are added to the cache."""
        start = cache.get_seq_length() + shift
        places = torch.arange(start, start + len(tokens))[None]
        given = {"past_key_values": cache, "position_ids": places}
        return self.model(torch.tensor([tokens]), **given).logits[0]

    def _drafted(self) -> list[int]:
        made = list(self.tokens)
        for at in range(len(made), len(made) + STEPS):
            logits = self.model(torch.tensor([made]), use_cache=False).logits[0, -1]
            rank = 1 + at % 4 if (at - self.begin) % 5 == 3 else 0
            made.append(int(logits.topk(5).indices[rank]))
        return made[len(self.tokens) :]

    def _chain(self, cache: Any) -> list[int]:
        """One round; returns the tokens that are shown."""
        fault, start, draft = self.fault, cache.get_seq_length(), self._drafted()
        shift = self.shift if fault.startswith("positions") else 0
        if fault == "rollback by one, positions kept":
            shift = len(self.tokens) - 1 - start
        logits = self._forward([self.tokens[-1], *draft], cache, shift)
        if self.stale is not None:  # the pending token's row stays that of the rejected one
            for layer, (keys, values) in zip(cache.layers, self.stale, strict=True):
                layer.keys[:, :, start], layer.values[:, :, start] = keys, values
            self.stale = None
        choice = logits.argmax(-1).tolist()
        right = (i for i, (a, b) in enumerate(zip(draft, choice, strict=False)) if a != b)
        accepted = next(right, STEPS)
        bonus, rejected = choice[accepted], accepted < STEPS
        if fault == "logits of the next row":
            bonus = choice[min(accepted + 1, STEPS)]
        if fault == "second best":
            bonus = int(logits[accepted].topk(2).indices[1])
        if fault == "last draft token unverified" and accepted == STEPS - 1:
            accepted, bonus = STEPS, choice[STEPS]
        if fault == "draft token kept" and rejected:
            bonus = draft[accepted]
        if fault == "stale row" and rejected:
            at = start + accepted + 1
            self.stale = [
                (one.keys[:, :, at].clone(), one.values[:, :, at].clone()) for one in cache.layers
            ]
        keep = start + 1 + accepted
        keep += rejected * {"rollback by one": -1, "no rollback": 1}.get(fault.split(",")[0], 0)
        if fault.startswith("positions"):
            self.shift = rejected + (self.shift if fault == "positions drift" else 0)
        _keep(cache, list(range(keep)))
        new = [*draft[:accepted], bonus]
        shown = list(new)
        if fault == "bonus missing":
            shown = new[:-1]
        if fault.startswith("bonus") and fault.endswith("twice"):
            shown = [*new, bonus]
        if fault == "bonus committed twice":
            self._forward([bonus], cache)
        if fault == "draft token shown" and rejected:
            shown[-1] = draft[accepted]
        self.tokens += shown if fault == "bonus committed twice" else new
        return shown

    def _tree(self, cache: Any) -> list[int]:
        """One round with two first tokens, of which the branch of the second sees the first."""
        start, text, draft = cache.get_seq_length(), self.tokens, self._drafted()
        logits = self.model(torch.tensor([text]), use_cache=False).logits[0, -1]
        one = next(t for t in logits.topk(2).indices.tolist() if t != draft[0])
        rows = [text[-1], one, *draft]
        places = [start, start + 1, *range(start + 1, start + len(rows) - 1)]
        given = {"past_key_values": cache, "position_ids": torch.tensor([places])}
        choice = self.model(torch.tensor([rows]), **given).logits[0].argmax(-1).tolist()
        path = [1] if choice[0] == one else []
        while not path or path[0] != 1:
            row = path[-1] + 1 if path else 2
            if row == len(rows) or rows[row] != choice[path[-1] if path else 0]:
                break
            path.append(row)
        _keep(cache, [*range(start + 1), *(start + row for row in path)])
        new = [*(rows[row] for row in path), choice[path[-1] if path else 0]]
        self.tokens = [*text, *new]
        return new


def _keep(cache: Any, rows: list[int]) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, rows], layer.values[:, :, rows]
