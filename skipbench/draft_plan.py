"""`DraftPlan`: what a draft pass computes, and what it leaves out.

A model of `L` layers has `S = 2L` sub-layers: `2i` is attention of layer `i`, `2i + 1` its MLP. The
text form names layers, not sub-layers, and all of its parts are optional; empty is the whole model.

| part | meaning |
|---|---|
| `attn:1,3-5`, `mlp:2` | these blocks are left out: a skip set |
| `int8:all`, `int8-attn:0,2`, `int8-mlp:1` | the weights of these blocks are read in 8 bits |
| `window:512` | attention reads the first `SINKS` positions and the last 512 |
| `head:int8`, `head:likely` | the head in 8 bits; only its rows of likely tokens |

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
Head = Literal["full", "int8", "likely"]
HEADS: tuple[Head, ...] = get_args(Head)
_BLOCKS = re.compile(r"(int8-)?(attn|mlp):(\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)")
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
    >>> str(plan.cheaper(int8=True, window=512))
    'int8:all;window:512;attn:1,3;mlp:1'

    Raises SkipbenchError for an index outside `0..2 * layers - 1`.
    """

    layers: int
    skipped: frozenset[int] = frozenset()
    int8: frozenset[int] = frozenset()
    """Sub-layers whose weights are read in 8 bits; none of them is skipped."""
    window: int | None = None
    """Last positions that attention reads, besides the first `SINKS`; `None` for all."""
    head: Head = "full"

    def __post_init__(self) -> None:
        if outside := sorted(s for s in self.skipped | self.int8 if not 0 <= s < 2 * self.layers):
            raise SkipbenchError(
                f"skip set names sub-layers {outside}, but a model of {self.layers} layers has 0 "
                f"to {2 * self.layers - 1} (attention of layer i is 2i, its MLP 2i + 1)"
            )
        object.__setattr__(self, "int8", self.int8 - self.skipped)

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
        blocks: dict[str | None, set[int]] = {None: set(), "int8-": set()}
        window, heads = None, {f"head:{head}": head for head in HEADS}
        head = HEADS[0]
        for part in filter(None, text.replace(" ", "").split(";")):
            if match := _BLOCKS.fullmatch(part):
                kind = 0 if match[2] == "attn" else 1
                blocks[match[1]].update(2 * i + kind for i in _numbers(match[3], text))
            elif part == "int8:all":
                blocks["int8-"].update(range(2 * layers))
            elif match := _WINDOW.fullmatch(part):
                window = int(match[1])
            elif part in heads:
                head = heads[part]
            else:
                fault = f"skip set {text!r}: cannot read {part!r}"
                raise SkipbenchError(f"{fault}; write it like {EXAMPLE}")
        return cls(layers, frozenset(blocks[None]), frozenset(blocks["int8-"]), window, head)

    def __str__(self) -> str:
        every = self.int8 and len(self.int8) + len(self.skipped) == 2 * self.layers
        parts = ["int8:all" if every else _text("int8-", self.int8)]
        parts += [f"window:{self.window}" if self.window else ""]
        parts += [f"head:{self.head}" if self.head != "full" else "", _text("", self.skipped)]
        return ";".join(filter(None, parts))

    def cheaper(
        self, int8: bool = False, window: int | None = None, head: Head = "full"
    ) -> "DraftPlan":
        """The same skip set, all that is left of it in 8 bits, with a window, with another head."""
        low = frozenset(range(2 * self.layers)) if int8 else self.int8
        return replace(self, int8=low, window=window, head=head)

    @property
    def levers(self) -> frozenset[str]:
        """Of `int8` and `likely`, what it uses: prices of full sub-layers do not tell theirs."""
        return frozenset([self.head, "int8" if self.int8 else "full"]) - {"full"}

    @property
    def whole(self) -> bool:
        """True if every sub-layer runs as in the full model."""
        return not (self.skipped or self.int8 or self.window)

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
        """How many attention and MLP blocks are read in 8 bits."""
        mlp = sum(s % 2 for s in self.int8)
        return len(self.int8) - mlp, mlp

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
    int8 = method.get("precision") == "int8" or bool(re.search(r"int8(:|-)", text))
    parts = ["int8" if int8 else "", f"window {window}" if window else ""]
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
