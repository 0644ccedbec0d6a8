"""A second speculative loop, drafting with half of the layers, with faults of another kind than
those in `planted`. Some leave one wrong token, from which no cause can be told.
"""

import copy
from typing import Any

import torch
from transformers import DynamicCache

from skipbench.contrib.oracle import causes

STEPS = 4
FAULTS = {
    "draft rows kept": {causes.STALE},  # K/V of skipped layers, never written again
    "tree positions by node": {causes.POSITIONS},
    "tree path not gathered": {causes.STALE},
    "first token drafted": {causes.KEPT},
    "accepted in the top 3": {causes.KEPT},
    "repetition penalty": {causes.PROCESSOR},
    "prompt cut": {causes.PROMPT},
    "pads seen": {causes.PROMPT},
    "prefix of another prompt": {causes.PROMPT, causes.STALE},
    "over the limit": {causes.END},
    "batch rows swapped": {causes.STALE, causes.ORDER},
    "outputs in another order": {causes.ORDER},
}
"""Faults of the loop, and the causes that name them."""


class Loop:
    """Greedy speculative decoding of several prompts with one fault."""

    def __init__(self, model: Any, fault: str = "") -> None:
        self.model, self.fault = model, fault
        self.small = copy.deepcopy(model)
        del self.small.model.layers[len(model.model.layers) // 2 :]
        self.penalty = 1.3 if fault == "repetition penalty" else 1.0

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        if self.fault == "over the limit":
            count += 3
        made = [self._one(prompt, prompts[i - 1], count) for i, prompt in enumerate(prompts)]
        return [*made[1:], made[0]] if self.fault == "outputs in another order" else made

    def _logits(self, model: Any, tokens: list[int], cache: Any, places: Any = None) -> Any:
        start = cache.get_seq_length()
        places = range(start, start + len(tokens)) if places is None else places
        given = {"past_key_values": cache, "position_ids": torch.tensor([[*places]])}
        return model(torch.tensor([tokens]), **given).logits[0]

    def _choice(self, logits: Any, text: list[int]) -> int:
        seen = torch.tensor(sorted({*text}))
        scores = logits[seen]
        logits = logits.clone()
        logits[seen] = torch.where(scores > 0, scores / self.penalty, scores * self.penalty)
        return int(logits.argmax())

    def _draft(self, text: list[int], count: int) -> list[int]:
        made = list(text)
        for _ in range(count):
            made.append(int(self.small(torch.tensor([made])).logits[0, -1].argmax()))
        return made[len(text) :]

    def _one(self, prompt: list[int], other: list[int], count: int) -> list[int]:
        text, fault, cache = list(prompt), self.fault, DynamicCache()
        if fault == "prompt cut":
            text = text[-len(text) // 2 :]
        if fault == "pads seen":
            text = [2] * 3 + text
        if fault == "prefix of another prompt":
            text = [*text[:8], other[8], *text[9:]]
        begin = len(text)
        logits = self._logits(self.model, text, cache)
        first = self._choice(logits[-1], text)
        text.append(self._draft(text, 1)[0] if fault == "first token drafted" else first)
        rounds = 0
        while len(text) - begin < count:
            rounds += 1
            if fault == "batch rows swapped" and rounds == 4:
                cache = DynamicCache()
                self._logits(self.model, other[: len(text) - 1], cache)
                self._logits(self.model, text[len(other) : -1], cache)
            text += (self._tree if fault.startswith("tree") else self._chain)(text, cache)
        return text[begin : begin + count]

    def _chain(self, text: list[int], cache: Any) -> list[int]:
        draft, start = self._draft(text, STEPS), cache.get_seq_length()
        logits = self._logits(self.model, [text[-1], *draft], cache)
        new = list[int]()
        for step, row in enumerate(logits):
            choice = self._choice(row, text + new)
            if step == STEPS or draft[step] != choice:
                top = row.topk(3).indices.tolist()
                if not (self.fault == "accepted in the top 3" and draft[step : step + 1]) or (
                    draft[step] not in top
                ):
                    new.append(choice)
                    break
                choice = draft[step]
            new.append(choice)
        if len(new) <= STEPS:
            cache.crop(len(new) - STEPS - 1)
        if self.fault == "draft rows kept" and len(new) > 1:
            low = DynamicCache()
            self.small(torch.tensor([(text + new)[: start + len(new)]]), past_key_values=low)
            rows = slice(start + 1, start + len(new))
            for layer, drafted in zip(cache.layers, [*low.layers, *low.layers], strict=False):
                layer.keys[:, :, rows] = drafted.keys[:, :, rows]
                layer.values[:, :, rows] = drafted.values[:, :, rows]
        return new

    def _tree(self, text: list[int], cache: Any) -> list[int]:
        """Two chains below the pending token, each of its own first token."""
        start = cache.get_seq_length()
        tops = self.small(torch.tensor([text])).logits[0, -1].topk(2).indices.tolist()[::-1]
        chains = [[top, *self._draft([*text, top], 2)] for top in tops]
        nodes = [text[-1], *chains[0], *chains[1]]
        depth = [0, 1, 2, 3, 1, 2, 3]
        if self.fault == "tree positions by node":
            depth = [*range(7)]
        mask = torch.zeros(7, start + 7)
        mask[:, start:] = torch.finfo(torch.float32).min
        for row, seen in enumerate([[], [], [1], [1, 2], [], [4], [4, 5]]):
            mask[row, [start, start + row, *(start + at for at in seen)]] = 0
        places = torch.tensor([[start + d for d in depth]])
        given = {"past_key_values": cache, "position_ids": places}
        out = self.model(torch.tensor([nodes]), attention_mask=mask[None, None], **given).logits[0]
        path, new = [0], list[int]()
        while True:
            choice = int(out[path[-1]].argmax())
            new.append(choice)
            below = [1, 4] if path[-1] == 0 else [path[-1] + 1] if path[-1] not in (3, 6) else []
            found = next((row for row in below if nodes[row] == choice), None)
            if found is None:
                break
            path.append(found)
        keep = [*range(start), *(start + row for row in path)]
        if self.fault == "tree path not gathered":
            keep = [*range(start + len(path))]
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
        return new
