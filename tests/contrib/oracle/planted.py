"""The embedded model for the oracle, and a speculative loop on Hugging Face's model and cache, as
repositories have it, with faults to plant. Draft tokens are the model's own, every fifth another
one, which it rejects.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from conftest import ROOT
from transformers import DynamicCache

from skipbench.contrib.oracle.replay import Replay
from skipbench.lm.model import LM

TINY = ROOT / "skipbench" / "models" / "tiny"
STEPS, LENGTH = 3, 44
TEXTS = (
    "Erik often played with Zoe, a mouse. One day Erik lost the white drum.",
    "Ella often played with Zoe, a frog. One day Ella lost the green basket.",
    "Dan's best friend was a bear named Zoe. One morning the blue key was gone.",
)
TEMPLATE = (
    "{% if messages[0].role != 'system' %}It was a cold winter.\n{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
)


@cache
def tiny() -> tuple[Any, LM, Any]:
    """The embedded model for Hugging Face and for the oracle, and its tokenizer."""
    pair = [
        transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
        for _ in range(2)
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = TEMPLATE
    lm = LM(pair[1], "fused")
    lm.allocate(512)
    return pair[0], lm, tokenizer


@cache
def plain(prompt: tuple[int, ...]) -> list[int]:
    """The model's own output."""
    return Replay(tiny()[1]).greedy([*prompt], LENGTH, frozenset())


@dataclass
class Loop:
    """Greedy speculative decoding of a prompt."""

    model: Any
    eos: frozenset[int] = frozenset()
    fault: str = ""

    @torch.inference_mode()
    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Up to `count` tokens, to an EOS (included)."""
        cache = DynamicCache()
        tokens = [*prompt, int(self._forward(prompt, cache)[-1].argmax())]
        begin, late = len(prompt), self.fault == "EOS in a draft ignored"
        while len(tokens) - begin < count:
            if {*(tokens[-1:] if late else tokens[begin:])} & self.eos:
                break
            tokens += self._round(tokens, begin, cache)
        shown = tokens[begin:][:count]
        ends = (i + 1 for i, token in enumerate(shown) if token in self.eos and not late)
        return shown[: next(ends, len(shown))]

    def _forward(self, tokens: list[int], cache: Any) -> torch.Tensor:
        """Logits after each of `tokens`, whose rows are added to the cache."""
        places = torch.arange(cache.get_seq_length(), cache.get_seq_length() + len(tokens))[None]
        given = {"past_key_values": cache, "position_ids": places}
        logits: torch.Tensor = self.model(torch.tensor([tokens]), **given).logits[0]
        return logits

    def _drafted(self, tokens: list[int], begin: int) -> list[int]:
        made = list(tokens)
        for at in range(len(made), len(made) + STEPS):
            logits = self.model(torch.tensor([made]), use_cache=False).logits[0, -1]
            rank = 1 + at % 4 if (at - begin) % 5 == 3 else 0
            made.append(int(logits.topk(5).indices[rank]))
        return made[len(tokens) :]

    def _round(self, tokens: list[int], begin: int, cache: Any) -> list[int]:
        """One round; returns the tokens that are emitted."""
        draft = self._drafted(tokens, begin)
        choice = self._forward([tokens[-1], *draft], cache).argmax(-1).tolist()
        right = (i for i, (a, b) in enumerate(zip(draft, choice, strict=False)) if a != b)
        accepted = next(right, STEPS)
        bonus, rejected = choice[accepted], accepted < STEPS
        if self.fault == "last draft token unverified" and accepted == STEPS - 1:
            accepted, bonus = STEPS, choice[STEPS]
        if self.fault == "draft token kept" and rejected:
            bonus = draft[accepted]
        less = STEPS - accepted + (rejected and self.fault == "rollback by one")
        if less:
            cache.crop(-less)
        return [*draft[:accepted], bonus]
