"""`DraftPlan`: what a draft pass computes, and what it leaves out.

A model of `L` layers has `S = 2L` sub-layers: `2i` is attention of layer `i`, `2i + 1` its MLP. The
text form names layers, not sub-layers, and all of its parts are optional; empty is the whole model.
Where two parts name a block, a skip set has it, else the last variant.

| part | meaning |
|---|---|
| `attn:1,3-5`, `mlp:2` | these blocks are left out: a skip set |
| `int8:all`, `int8-attn:0,2`, `int4-mlp:1` | these blocks read a variant of their weights |
| `window:512` | attention reads the first `SINKS` positions and the last 512 |
| `guided:512` | in the place of the last 512, those that verification read most (`lm.guide`) |
| `head:int8` | so does the head |
| `head:likely` | only the head's rows of likely tokens |

Verification is always the full model.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from skipbench.errors import SkipbenchError

SINKS = 4
"""First positions that a window keeps: much attention goes there (StreamingLLM, 2309.17453)."""
LIKELY = 8192
"""First ids of a vocabulary that a head of likely tokens has, besides the prompt's: a tokenizer
numbers what it merges most often first.
"""
VARIANTS = "int8", "int4"
"""Variants of the weights that an engine may make besides the model's own."""
HEADS = ("full", *VARIANTS, "likely")
_NAMES, _RANGE = "|".join(VARIANTS), r"\d{1,4}(?:-\d{1,4})?"
_BLOCKS = re.compile(rf"(?:({_NAMES})-)?(attn|mlp):({_RANGE}(?:,{_RANGE})*)")
_EVERY = re.compile(rf"({_NAMES}):all")
_WINDOW = re.compile(r"(window|guided):([1-9]\d{0,8})")
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
    >>> str(plan.cheaper("int8", window=512))
    'int8:all;window:512;attn:1,3;mlp:1'

    Raises SkipbenchError for an index outside `0..2 * layers - 1`.
    """

    layers: int
    skipped: frozenset[int] = frozenset()
    changed: frozenset[tuple[int, str]] = frozenset()
    """Sub-layers that read a variant of their weights, each with its own of `VARIANTS`; none of
    them is skipped.
    """
    window: int | None = None
    """Last positions that attention reads, besides the first `SINKS`; `None` for all."""
    head: str = "full"
    """Of `HEADS`."""
    guided: bool = False
    """As many positions as `window` says, but those that got most attention in a verification."""

    def __post_init__(self) -> None:
        named = self.skipped | dict(self.changed).keys()
        if outside := sorted(s for s in named if not 0 <= s < 2 * self.layers):
            raise SkipbenchError(
                f"skip set names sub-layers {outside}, but a model of {self.layers} layers has 0 "
                f"to {2 * self.layers - 1} (attention of layer i is 2i, its MLP 2i + 1)"
            )
        kept = frozenset((s, name) for s, name in self.changed if s not in self.skipped)
        object.__setattr__(self, "changed", kept)
        object.__setattr__(self, "guided", self.guided and self.window is not None)

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
        skipped, reads = set[int](), dict[int, str]()
        window, head, guided = None, "full", False
        for part in filter(None, text.replace(" ", "").split(";")):
            if match := _BLOCKS.fullmatch(part):
                kind = 0 if match[2] == "attn" else 1
                named = [2 * i + kind for i in _numbers(match[3], text)]
                if match[1]:
                    reads.update(dict.fromkeys(named, match[1]))
                else:
                    skipped.update(named)
            elif match := _EVERY.fullmatch(part):
                reads.update(dict.fromkeys(range(2 * layers), match[1]))
            elif match := _WINDOW.fullmatch(part):
                if window is not None:
                    fault = f"skip set {text!r}: {part!r} is a second window"
                    raise SkipbenchError(f"{fault}; a plan has one, window:N or guided:N")
                window, guided = int(match[2]), match[1] == "guided"
            elif (name := part.removeprefix("head:")) in HEADS and name != part:
                head = name
            else:
                fault = f"skip set {text!r}: cannot read {part!r}"
                raise SkipbenchError(f"{fault}; write it like {EXAMPLE}")
        return cls(layers, frozenset(skipped), frozenset(reads.items()), window, head, guided)

    def __str__(self) -> str:
        parts = list[str]()
        for variant in VARIANTS:
            of = [s for s, name in self.changed if name == variant]
            every = of and len(of) + len(self.skipped) == 2 * self.layers
            parts.append(f"{variant}:all" if every else _text(f"{variant}-", of))
        parts += [f"{'guided' if self.guided else 'window'}:{self.window}" if self.window else ""]
        parts += [f"head:{self.head}" if self.head != "full" else "", _text("", self.skipped)]
        return ";".join(filter(None, parts))

    def cheaper(
        self,
        variant: str = "",
        window: int | None = None,
        head: str = "full",
        guided: bool = False,
    ) -> "DraftPlan":
        """The same skip set with its remaining sub-layers in a variant of their weights (empty: as
        they are), with a window, with another head.
        """
        every = frozenset((s, variant) for s in range(2 * self.layers))
        changed = every if variant else self.changed
        return replace(self, changed=changed, window=window, head=head, guided=guided)

    @property
    def variants(self) -> frozenset[str]:
        """Of `VARIANTS` and `likely`, what it uses: prices of the model's own weights do not tell
        theirs.
        """
        return frozenset([self.head, *dict(self.changed).values()]) - {"full"}

    @property
    def whole(self) -> bool:
        """True if every sub-layer runs as in the full model."""
        return not (self.skipped or self.changed or self.window)

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

    def blocks(self, variant: str = "") -> tuple[int, int]:
        """How many attention and MLP blocks read a variant; without one, those that read their own
        weights.
        """
        if not variant:
            left = self.skipped | dict(self.changed).keys()
            return self.layers - len(_layers(left, 0)), self.layers - len(_layers(left, 1))
        of = [s for s, name in self.changed if name == variant]
        return len(_layers(of, 0)), len(_layers(of, 1))

    def positions_read(self, context: float) -> float:
        """Cached positions that attention reads after `context` tokens."""
        return context if self.window is None else min(context, SINKS + self.window)


def draft_options(method: Mapping[str, object]) -> str:
    """What a method's settings let its drafts use besides skip sets, for names and labels.

    >>> draft_options({"precision": "int8", "kv_window": 512, "skip": "head:likely;attn:1"})
    'int8 window 512 head likely'
    >>> draft_options({"kv_window": 512, "kv_guided": True})
    'guided 512'
    """
    text = str(method.get("skip") or "")
    head = str(method.get("head", "full"))
    for other in HEADS[1:]:
        head = other if head == "full" and f"head:{other}" in text else head
    found = re.search(_WINDOW, text)
    window = method.get("kv_window") or (found and found[2])
    guided = method.get("kv_guided") or (found and found[1] == "guided")
    named = re.findall(rf"({_NAMES})(?=[:-])", f"{text} {method.get('precision')}:")
    kind = "guided" if guided else "window"
    parts = [*dict.fromkeys(named), f"{kind} {window}" if window else ""]
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
