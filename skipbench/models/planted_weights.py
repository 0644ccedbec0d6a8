"""The weights by which a planted model says its text; all its others are random.

A state has five parts: `word`, the word as which the token is read, and what random weights add;
`following`, which the head reads; `choice`, 0 or what decides between two tokens; `one`, the same
for every token; and `needs`, numbers by which a sub-layer knows that it has to decide.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skipbench.lm.layer import AttentionModules, MlpModules, Modules
from skipbench.models.planted_text import LENGTH, REACH, PlantedText

# Logits in nats. What decides between two tokens adds `CHOICE` to one and takes it from the other.
MARGIN = 16.0  # lead of what follows over what cannot
CHOICE = 8.0
DECOY, STEP = 0.5, 0.25  # lead of a decoy where nothing decides, and what each has over the next

# Sizes of parts of a state, where `word` has 1. The smallest are still seen in a coarser copy.
OWN, SIDE = 0.25, 1 / 32  # of a token's row: what it follows, and its side of a choice
CHOSEN = 0.5  # what decides: small, as the rest looks smaller to a norm where it is large

GATE = 4.0  # input of silu, where it is nearly linear
SHARPNESS = 12.0  # nats by which the neighbours of the place that a head looks at lie behind it


class StateParts(NamedTuple):
    """The parts of a state as slices of it."""

    word: slice
    following: slice
    choice: slice
    one: slice
    needs: slice

    @classmethod
    def of(cls, hidden: int) -> "StateParts":
        """Three eighths each for `word` and `following`, one for `choice`."""
        ends = [hidden * part // 8 for part in (0, 3, 6, 7)]
        ends += [ends[-1] + max(1, hidden // 64), hidden]
        return cls(*map(slice, ends[:-1], ends[1:]))

    def signs(self) -> Tensor:
        """The direction within `choice` in which a decision points."""
        return 1.0 - 2.0 * (torch.arange(width(self.choice)) % 2)

    def groups(self, text: PlantedText) -> dict[int, slice]:
        """By sub-layer that decides, its numbers within `needs`."""
        deciding = [0, *dict.fromkeys(text.owners.values())]
        each, start = width(self.needs) // len(deciding), self.needs.start
        places = (start + n * each for n in range(len(deciding)))
        return {s: slice(at, at + each) for s, at in zip(deciding, places, strict=True)}

    def rms(self, hidden: int, first: bool) -> float:
        """Root mean square of a state within the `first` layer, or behind it."""
        filled = width(self.following) * (OWN**2 if first else 1)
        return math.sqrt((width(self.word) + filled + width(self.one)) / hidden)


def width(part: slice) -> int:
    return int(part.stop - part.start)


def write_text(model: Modules, hidden: int, text: PlantedText, generator: torch.Generator) -> None:
    """Makes a model whose layers add little to a state say `text`."""
    parts, rows, rotary = StateParts.of(hidden), token_table(text, hidden, generator), model.rotary
    assert rotary is not None
    frequencies = rotary.inv_freq.tolist()
    for weight in (model.embedding.weight, model.head.weight):
        weight.zero_()
        weight[: len(rows)] = rows.to(weight)
    # the head sees two parts, and logits get their size
    model.norm.weight.zero_()
    sizes = (parts.following, MARGIN / OWN), (parts.choice, CHOICE / (SIDE * CHOSEN))
    for part, nats in sizes:
        model.norm.weight[part] = nats * parts.rms(hidden, False) / width(part)
    _show_words(model.layers[0][1], parts, parts.rms(hidden, True))
    for sublayer, group in parts.groups(text).items():
        attention, mlp = model.layers[sublayer // 2]
        rms = parts.rms(hidden, sublayer == 0)
        if sublayer % 2:
            _decide_here(mlp, parts, group, rms)
        else:
            back = 1 if sublayer else REACH * LENGTH
            _decide_by_the_past(attention, parts, group, rms, frequencies, back)


def token_table(text: PlantedText, hidden: int, generator: torch.Generator) -> Tensor:
    """Embedding and head, [tokens, hidden]: as which word a token is read, and what it follows.

    The codes of words are at right angles, so that no other word has a part of the margin.
    """
    parts, count, read_as = StateParts.of(hidden), len(text.ids), torch.tensor(text.read_as)
    size = width(parts.word)
    codes = torch.linalg.qr(torch.randn(size, count, generator=generator))[0].T * size**0.5
    table, needs = torch.zeros(len(read_as), hidden), torch.zeros(count, hidden)
    table[:, parts.word], table[:, parts.one] = codes[read_as], 1.0

    def follows(token: int, word: int, side: float, lead: float = 0.0) -> None:
        table[token, parts.following] += OWN * (1 + lead / MARGIN) * codes[word]
        table[token, parts.choice] = SIDE * side * parts.signs()

    groups = parts.groups(text)
    for word in range(count):
        phrase, place = divmod(word, LENGTH)
        if place < LENGTH - 1:
            follows(text.ids[word + 1], word, 1.0)
        else:
            follows(text.ids[LENGTH * text.on[phrase]], word, 1.0)
            follows(text.ids[LENGTH * text.off[phrase]], word, -1.0, CHOICE)
            needs[word, groups[0]] = phrase in text.chosen
    lead = DECOY + 2 * CHOICE * SIDE / CHOSEN  # the word before is on the other side itself
    for word, tokens in text.decoys.items():
        for n, token in enumerate(tokens):
            follows(token, word, -1.0, lead + n * STEP)
    for word, owner in text.owners.items():  # attention reads it from the word before
        needs[word - (owner % 2 == 0), groups[owner]] = 1.0
    return table + needs[read_as]


def _show_words(mlp: MlpModules, parts: StateParts, rms: float) -> None:
    """Puts the word where the head reads, in the place of what the token follows."""
    gate, up = (projection.weight for projection in mlp.gate_up)
    size = width(parts.word)
    _open(gate[:size], parts, rms)
    up[:size], mlp.down.weight[:, :size] = 0, 0
    up[:size, parts.word].fill_diagonal_(1.0)
    up[:size, parts.following].fill_diagonal_(-1.0)
    mlp.down.weight[parts.following, :size].fill_diagonal_(rms / _silu(GATE))


def _decide_here(mlp: MlpModules, parts: StateParts, group: slice, rms: float) -> None:
    """One neuron decides where the token has this group."""
    gate, up = (projection.weight for projection in mlp.gate_up)
    _open(gate[:1], parts, rms)
    up[0], mlp.down.weight[:, 0] = 0, 0
    up[0, group] = rms / width(group)
    mlp.down.weight[parts.choice, 0] = (CHOSEN / _silu(GATE) * parts.signs()).to(up)


def _decide_by_the_past(
    attention: AttentionModules,
    parts: StateParts,
    group: slice,
    rms: float,
    frequencies: Sequence[float],
    back: int,
) -> None:
    """One head looks `back` tokens back, and decides where the token there has this group.

    Args:
        frequencies: by which pairs of numbers of a head turn, in radians per token, fastest first.
    """
    query, key, value = (projection.weight for projection in attention.qkv)
    turning = torch.tensor(frequencies)
    half, fast, slow = len(turning), round(len(turning) * 3 / 8), len(turning) // 4
    # Turned by their places, a query of angle -back * f and a key of angle 0 have the product
    # cos(f * (distance - back)). The slowest, which hardly turn, take off what all places share.
    shares = torch.zeros(half)
    shares[:fast], shares[-slow:] = 1.0, -0.75 * fast / slow
    shares *= SHARPNESS / attention.scale / float(shares @ (1 - turning.cos()))
    for weight, angle, signs in ((query, -back * turning, shares.sign()), (key, 0 * turning, 1)):
        pairs = torch.stack((angle.cos(), angle.sin())) * shares.abs() ** 0.5 * signs
        weight[: 2 * half] = 0
        weight[: 2 * half, parts.one] = (pairs.view(-1, 1) * rms / width(parts.one)).to(weight)
    for norm in attention.qk_norms or ():  # they alone set sizes
        norm.weight[shares.repeat(2) != 0] = float(shares.abs().mean() / 2) ** 0.5
    value[0], attention.output.weight[:, 0] = 0, 0
    value[0, group] = rms / width(group)
    attention.output.weight[parts.choice, 0] = (CHOSEN * parts.signs()).to(value)


def _open(gates: Tensor, parts: StateParts, rms: float) -> None:
    gates.zero_()
    gates[:, parts.one] = GATE * rms / width(parts.one)


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))
