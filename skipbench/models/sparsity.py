"""Sparsified weights by Wanda (Sun et al. 2023, arXiv 2306.11695, Section 3): no training, no
update of the weights kept.

A weight's score is |W_ij| ||X_j||, with the norm of input j over all calibration tokens; scores are
compared within an output row, or within each M consecutive inputs of it. The pruned matrices stay
dense tensors with zeros: a sparse kernel's savings are not measured.

Deviation: the calibration texts are the caller's, not 128 sequences of C4.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.families import modules_of
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

# output rows whose scores are sorted together: the order takes eight bytes per weight
AT_ONCE = 1024


class Pattern(NamedTuple):
    """The share of weights set to zero, of each output row or of every `group` inputs of it."""

    ratio: float
    group: int | None = None

    def dropped(self, inputs: int) -> tuple[int, int]:
        """Size of a group, and how many of its weights are zeroed, of a matrix [out, inputs].
        Raises SkipbenchError where the inputs are no multiple of the group.
        """
        size = self.group or inputs
        if inputs % size:
            wrong = f"groups of {size} do not fit a weight with {inputs} inputs"
            raise SkipbenchError(f"model.sparsity: {wrong}; use wanda-RATIO, such as wanda-0.5")
        return size, round(size * self.ratio) if self.group else int(size * self.ratio)


def parse_sparsity(text: str) -> Pattern | None:
    """Parses `none`, `wanda-0.5` (the share zeroed) or `wanda-2:4` (2 of every 4 stay). Raises
    SkipbenchError for anything else.
    """
    if text == "none":
        return None
    if (found := re.fullmatch(r"wanda-(\d*\.\d+)", text)) and 0 < float(found[1]) < 1:
        return Pattern(float(found[1]))
    if found := re.fullmatch(r"wanda-(\d+):(\d+)", text):
        kept, group = int(found[1]), int(found[2])
        if 0 < kept < group:
            return Pattern((group - kept) / group, group)
    raise SkipbenchError(
        f"model.sparsity={text}; wanted none, wanda-RATIO with the share that goes between 0 and 1 "
        "(wanda-0.5), or wanda-N:M with N of every M weights kept (wanda-2:4, wanda-4:8)"
    )


def kept(weight: Tensor, norms: Tensor, pattern: Pattern) -> Tensor:
    """Mask [out, in] of the weights [out, in] that stay, given the norms [in] of their inputs: all
    but the lowest scores of each group; of equal scores the first is dropped.
    """
    score = weight.abs().float() * norms
    size, dropped = pattern.dropped(score.shape[1])
    groups = score.view(score.shape[0], -1, size)
    lowest = groups.argsort(dim=-1, stable=True)[..., :dropped]
    return torch.ones_like(groups, dtype=torch.bool).scatter_(-1, lowest, False).view_as(score)


def prune(lm: LM, texts: Sequence[list[int]], pattern: Pattern) -> None:
    """Zeroes weights of every decoder layer, layer by layer, each calibrated by the token ids of
    `texts` after the earlier ones are pruned; the engine is `reference`, which has no weights of
    its own. What the cache held is lost. Raises SkipbenchError for no text, or a pattern that does
    not fit a weight.
    """
    if not any(texts):
        raise SkipbenchError("model.sparsity needs texts; raise model.calibration.rows")
    modules = modules_of(lm.model)
    if any(mlp.inactive_bytes for _, mlp in modules.layers):
        raise SkipbenchError(f"the experts of {lm.config.model_type} cannot be pruned")
    layers = [linears(a.module) + linears(mlp.module) for a, mlp in modules.layers]
    squares: dict[torch.nn.Linear, Tensor] = {}
    for linear in (linear for found in layers for linear in found):
        pattern.dropped(linear.in_features)  # refused before anything is changed
        squares[linear] = torch.zeros(linear.in_features, device=linear.weight.device)

    def add(linear: torch.nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        squares[linear] += inputs[0].float().square().flatten(0, -2).sum(0)

    def layer(state: Tensor, index: int) -> Tensor:
        return lm.run(state, TokenRows.chain(0, len(state)), first=2 * index, last=2 * index + 2)

    with torch.inference_mode():
        lm.allocate(max(map(len, texts)))
        states = [lm.embed(ids) for ids in texts if ids]
        for index, found in enumerate(layers):
            with ExitStack() as hooks:
                for linear in found:
                    hooks.enter_context(linear.register_forward_pre_hook(add))
                for state in states:
                    layer(state, index)
            for linear in found:
                for rows in torch.split(linear.weight, AT_ONCE):
                    rows.masked_fill_(~kept(rows, squares[linear].sqrt(), pattern), 0)
            for i, state in enumerate(states):  # one by one: all states twice would be gigabytes
                states[i] = layer(state, index)


def linears(module: Any) -> list[torch.nn.Linear]:
    """The matrices of an attention or MLP module."""
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
