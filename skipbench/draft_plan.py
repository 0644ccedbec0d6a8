"""`DraftPlan`: what a draft pass computes, and what it leaves out.

A model of `L` layers has `S = 2L` sub-layers: `2i` is attention of layer `i`, `2i + 1` its MLP. The
text form names layers, not sub-layers, and all of its parts are optional; empty is the whole model.

| part | meaning |
|---|---|
| `attn:1,3-5`, `mlp:2` | these blocks are left out: a skip set |
| `int8:all`, `int8-attn:0,2`, `int8-mlp:1` | the weights of these blocks are read in 8 bits |
| `int6:all`, `int6-attn:0,2`, `int6-mlp:1` | the same in 6 bits |
| `window:512` | attention reads the first `SINKS` positions and the last 512 |
| `head:int8`, `head:int4` | the head in 8 bits; in 4 bits, its best tokens again in full |
| `head:likely` | only the head's rows of likely tokens |

Verification is always the full model.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from skipbench.errors import SkipbenchError

SINKS = 4
"""First positions that a window keeps: much attention goes there (StreamingLLM, 2309.17453)."""
LIKELY = 8192
"""First ids of a vocabulary that a head of likely tokens has, besides the prompt's: a tokenizer
numbers what it merges most often first.
"""
Head = Literal["full", "int8", "int4", "likely"]
HEADS: tuple[Head, ...] = get_args(Head)
BITS = {"int8": 8, "int6": 6}
"""Bits of sub-layers by their name."""
_LOW, _RANGE = "|".join(BITS), r"\d{1,4}(?:-\d{1,4})?"
_BLOCKS = re.compile(rf"(?:({_LOW})-)?(attn|mlp):({_RANGE}(?:,{_RANGE})*)")
_EVERY = re.compile(rf"({_LOW}):all")
_WINDOW = re.compile(r"window:([1-9]\d{0,8})")
EXAMPLE = "'attn:1,3-5;mlp:2,4' or 'int8:all;window:512;head:int8;attn:1,3'"


@dataclass(frozen=True)
class DraftPlan:
    """A cheaper pass of a model with `layers` layers, over the same K/V cache.

    >>> plan = DraftPlan.parse("attn:1,3;mlp:1", layers=4)
    >>> plan.attention, plan.mlp, plan.ratio
    ((1, 3), (1,), 0.375)
    >>> sorted(plan.skipped)  # attention of layer i is 2i, its MLP 2i + 1
    [2, 3, 6]
    >>> str(plan)
    'attn:1,3;mlp:1'
    >>> str(plan.cheaper(bits=8, window=512))
    'int8:all;window:512;attn:1,3;mlp:1'

    Raises SkipbenchError for an index outside `0..2 * layers - 1`.
    """

    layers: int
    skipped: frozenset[int] = frozenset()
    quantized: frozenset[int] = frozenset()
    """Sub-layers whose weights are read in `bits`; none of them is skipped."""
    bits: int = 8
    """Of `BITS`; 8 where `quantized` is empty."""
    window: int | None = None
    """Last positions that attention reads, besides the first `SINKS`; `None` for all."""
    head: Head = "full"

    def __post_init__(self) -> None:
        if outside := sorted(
            s for s in self.skipped | self.quantized if not 0 <= s < 2 * self.layers
        ):
            raise SkipbenchError(
                f"skip set names sub-layers {outside}, but a model of {self.layers} layers has 0 "
                f"to {2 * self.layers - 1} (attention of layer i is 2i, its MLP 2i + 1)"
            )
        object.__setattr__(self, "quantized", self.quantized - self.skipped)
        object.__setattr__(self, "bits", self.bits if self.quantized else 8)

    @classmethod
    def of(cls, layers: int, skipped: Iterable[int] = ()) -> "DraftPlan":
        """Leaves sub-layers out: a skip set."""
        return cls(layers, frozenset(skipped))

    @classmethod
    def of_layers(cls, layers: int, skipped: Iterable[int]) -> "DraftPlan":
        """Skips whole layers: attention and MLP."""
        return cls.of(layers, (s for i in skipped for s in (2 * i, 2 * i + 1)))

    @classmethod
    def parse(cls, text: str, layers: int) -> "DraftPlan":
        """Reads the text form. Raises SkipbenchError for other text or unknown layers."""
        blocks = dict[str | None, set[int]]((low, set()) for low in (None, *BITS))
        window, heads = None, {f"head:{head}": head for head in HEADS}
        head = HEADS[0]
        for part in filter(None, text.replace(" ", "").split(";")):
            if match := _BLOCKS.fullmatch(part):
                kind = 0 if match[2] == "attn" else 1
                blocks[match[1]].update(2 * i + kind for i in _numbers(match[3], text))
            elif match := _EVERY.fullmatch(part):
                blocks[match[1]].update(range(2 * layers))
            elif match := _WINDOW.fullmatch(part):
                window = int(match[1])
            elif part in heads:
                head = heads[part]
            else:
                fault = f"skip set {text!r}: cannot read {part!r}"
                raise SkipbenchError(f"{fault}; write it like {EXAMPLE}")
        used = [low for low in BITS if blocks[low]] or ["int8"]
        if len(used) > 1:
            raise SkipbenchError(f"skip set {text!r}: wanted {' or '.join(BITS)}, not both")
        low, bits = frozenset(blocks[used[0]]), BITS[used[0]]
        return cls(layers, frozenset(blocks[None]), low, bits, window, head)

    def __str__(self) -> str:
        every = self.quantized and len(self.quantized) + len(self.skipped) == 2 * self.layers
        low = f"int{self.bits}"
        parts = [f"{low}:all" if every else _text(f"{low}-", self.quantized)]
        parts += [f"window:{self.window}" if self.window else ""]
        parts += [f"head:{self.head}" if self.head != "full" else "", _text("", self.skipped)]
        return ";".join(filter(None, parts))

    def cheaper(
        self, bits: int | None = None, window: int | None = None, head: Head = "full"
    ) -> "DraftPlan":
        """The same skip set, all that is left of it in `bits` (`None`: as it is), with a window,
        with another head.
        """
        low = frozenset(range(2 * self.layers)) if bits else self.quantized
        return replace(self, quantized=low, bits=bits or self.bits, window=window, head=head)

    @property
    def levers(self) -> frozenset[str]:
        """Of `int8`, `int6`, `int4` and `likely`, what it uses: prices of full sub-layers do not
        tell theirs.
        """
        return frozenset([self.head, f"int{self.bits}" if self.quantized else "full"]) - {"full"}

    @property
    def whole(self) -> bool:
        """True if every sub-layer runs as in the full model."""
        return not (self.skipped or self.quantized or self.window)

    @property
    def attention(self) -> tuple[int, ...]:
        """Layers whose attention is skipped."""
        return _layers(self.skipped, 0)

    @property
    def mlp(self) -> tuple[int, ...]:
        """Layers whose MLP is skipped."""
        return _layers(self.skipped, 1)

    @property
    def ratio(self) -> float:
        """Share of the sub-layers that is skipped, `r` in SWIFT."""
        return len(self.skipped) / (2 * self.layers)

    @property
    def low(self) -> tuple[int, int]:
        """How many attention and MLP blocks are read in `bits`."""
        mlp = sum(s % 2 for s in self.quantized)
        return len(self.quantized) - mlp, mlp

    def positions_read(self, context: float) -> float:
        """Cached positions that attention reads after `context` tokens."""
        return context if self.window is None else min(context, SINKS + self.window)


def levers_of(method: Mapping[str, object]) -> str:
    """What a method's settings let its drafts use besides skip sets, for names and labels.

    >>> levers_of({"precision": "int8", "kv_window": 512, "skip": "head:likely;attn:1"})
    'int8 window 512 head likely'
    """
    text = str(method.get("skip") or "")
    head = str(method.get("head", "full"))
    for other in HEADS[1:]:
        head = other if head == "full" and f"head:{other}" in text else head
    found = re.search(_WINDOW, text)
    window = method.get("kv_window") or (found and found[1])
    low = re.search(rf"({_LOW})(?=[:-])", f"{text} {method.get('precision')}:")
    parts = [low[0] if low else "", f"window {window}" if window else ""]
    return " ".join(filter(None, [*parts, f"head {head}" if head != "full" else ""]))


def _layers(sublayers: Iterable[int], kind: int) -> tuple[int, ...]:
    """Layers of the attention (kind 0) or MLP (1) blocks among sub-layers."""
    return tuple(sorted(s // 2 for s in sublayers if s % 2 == kind))


def _text(prefix: str, sublayers: Iterable[int]) -> str:
    kinds = {"attn": _layers(sublayers, 0), "mlp": _layers(sublayers, 1)}
    return ";".join(f"{prefix}{k}:{','.join(map(str, of))}" for k, of in kinds.items() if of)


def _numbers(items: str, text: str) -> Iterable[int]:
    """`1,3-5` -> 1, 3, 4, 5."""
    for item in items.split(","):
        first, _, last = item.partition("-")
        if last and int(last) < int(first):
            raise SkipbenchError(
                f"skip set {text!r}: cannot read {item!r}; a range goes from low to high"
            )
        yield from range(int(first), int(last or first) + 1)
