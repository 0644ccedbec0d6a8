"""`cuda_graphs.products` in plain torch, for tests on machines without Triton: the same arguments,
rounding where the kernels round, and no product whose shape depends on the rows of the pass.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.bit_exact import MOST
from skipbench.lm.cuda_graphs import products

OPERATORS = "linear", "linear_add", "gated", "qkv_rotated", "rms_norm"


def put_in_place(patch: pytest.MonkeyPatch) -> None:
    """These in the place of the operators, wherever they are called."""
    for name in OPERATORS:
        patch.setattr(products, name, globals()[name])


def _sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float
) -> Tensor:
    """[R, N] of float32, in tiles of MOST rows."""
    tiles = []
    for rows in x.split(MOST):
        tile = F.pad(rows, (0, 0, 0, MOST - len(rows)))
        scaled = tile if norm is None else (tile.float() * norm.float()).to(x.dtype)
        made = scaled.float() @ weight.float().t()
        if norm is not None:
            made = made * torch.rsqrt(tile.float().square().mean(1, keepdim=True) + eps)
        tiles.append(made[: len(rows)])
    whole = torch.cat(tiles)
    return whole if bias is None else whole + bias.float()


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float
) -> Tensor:
    return _sums(x, weight, bias, norm, eps).to(x.dtype)


def linear_add(hidden: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    hidden.copy_(_sums(x, weight, bias, None, 0.0) + hidden.float())


def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float
) -> Tensor:
    gate, up = linear(x, weight, bias, norm, eps).chunk(2, 1)
    return F.silu(gate) * up


def qkv_rotated(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float,
    cos: Tensor, sin: Tensor, target: Tensor, cache: Tensor, kv: int,
) -> Tensor:  # fmt: skip
    d = cache.shape[2]
    qkv = linear(x, weight, bias, norm, eps).view(len(x), -1, d)
    qk = qkv[:, :-kv]
    turned = (qk * cos).float() + torch.roll(qk, d // 2, -1).float() * sin.float()
    turned = turned.to(x.dtype)
    cache.index_copy_(0, target, torch.cat((turned[:, -kv:], qkv[:, -kv:]), 1))
    return turned[:, :-kv]


def rms_norm(x: Tensor, norm: Any, eps: float) -> Tensor:
    return F.rms_norm(x, norm.shape, norm, eps)
