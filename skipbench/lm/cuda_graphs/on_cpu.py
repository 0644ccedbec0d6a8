"""The operators of `attention`, `ops` and `products` in plain torch, which importing this registers
for tensors on a CPU: the same arguments, the same order, rounding where the kernels round, and no
product whose shape depends on the rows of a pass. With `EagerCapture` the engine that a GPU runs
works on any machine.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.bit_exact import MOST
from skipbench.lm.cuda_graphs import attention, ops, products
from skipbench.lm.cuda_graphs.attention import CHUNK, split_size
from skipbench.lm.llama import rotated
from skipbench.lm.llama import silu_times as silu_times  # as it is


def place(
    bounds: Tensor, depth: Tensor, tree_mask: Tensor, all_cos: Tensor, all_sin: Tensor,
    target: Tensor, cos: Tensor, sin: Tensor, paths: Tensor, split: int,
) -> None:  # fmt: skip
    context_len, written = int(bounds[1]), int(bounds[2])
    target.copy_(written + torch.arange(len(depth)))
    own = (context_len + depth).clamp(max=len(all_cos) - 1)
    cos.copy_(all_cos[own])
    sin.copy_(all_sin[own])
    base = context_len // split * split
    position = base + torch.arange(paths.shape[1])
    paths.copy_(torch.where(position < context_len, position, -1))
    row, other = tree_mask[: len(depth), : len(depth)].nonzero(as_tuple=True)
    paths[row, context_len + depth[other] - base] = (written + other).int()


def attend_splits(
    query: Tensor, cache: Tensor, bounds: Tensor, depth: Tensor, paths: Tensor, size: int,
    window: int, scale: float,
) -> Tensor:  # fmt: skip
    (_, context_len, _), d = bounds.tolist(), query.shape[2]
    split, outs = split_size(query.dtype, d), []
    base = context_len // split * split
    for row, behind, path in zip(query, depth.tolist(), paths, strict=True):
        position = context_len + behind
        at = torch.arange(-(-min(position + 1, size) // split) * split)
        line = torch.cat((at[:base], path[: max(0, len(at) - base)]))
        sees = (line >= 0) & (at <= position) & (position - at < window)
        seen = cache[torch.where(sees, line, 0).long()]
        seen = seen.masked_fill(~sees[:, None, None], 0.0)  # where nothing may be written
        grouped = row.view(cache.shape[1] // 2, -1, d)
        parts = seen.view(-1, split, *seen.shape[1:]), sees.view(-1, split)
        softmaxes = _softmaxes(grouped, *parts, scale)
        outs.append(_joined(*softmaxes).to(query.dtype).flatten())
    return torch.stack(outs)


def _softmaxes(query: Tensor, seen: Tensor, sees: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """[KV, G, d] over the rows `seen` [P, SPLIT, 2 KV, d] of P splits: softmaxes, and logarithms of
    their sums.
    """
    keys, values = (x.transpose(1, 2) for x in seen.chunk(2, 2))
    score = query.float() @ keys.float().transpose(2, 3) * scale
    score = score.masked_fill(~sees[:, None, None], float("-inf"))
    share = (score - score.amax(-1, keepdim=True).clamp(min=-3e38)).exp()
    total = share.sum(-1, keepdim=True)
    out = share.to(values.dtype).float() @ values.float() / total.clamp(min=1e-30)
    return out, score.logsumexp(-1, keepdim=True)


def _joined(softmaxes: Tensor, log_sums: Tensor) -> Tensor:
    """In order, in sums of `CHUNK` splits; 0 where a row sees nothing."""
    shares = (log_sums - log_sums.amax(0).clamp(min=-3e38)).exp()
    joined, total = torch.zeros_like(softmaxes[0]), torch.zeros_like(shares[0])
    for first in range(0, len(shares), CHUNK):
        chunk = range(first, min(first + CHUNK, len(shares)))
        joined = joined + sum(softmaxes[i] * shares[i] for i in chunk)
        total = total + sum(shares[i] for i in chunk)
    return joined / total.clamp(min=1e-30)


def rotate_and_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, target: Tensor, cache: Tensor,
    q_norm: Tensor | None, k_norm: Tensor | None, q_eps: float, k_eps: float,
) -> Tensor:  # fmt: skip
    kv, norms = cache.shape[1] // 2, None
    if q_norm is not None and k_norm is not None:
        norms = partial(rms_norm, norm=q_norm, eps=q_eps), partial(rms_norm, norm=k_norm, eps=k_eps)
    turned = rotated(qkv, kv, norms, cos, sin)
    cache.index_copy_(0, target, torch.cat((turned[:, -kv:], qkv[:, -kv:]), 1))
    return turned[:, :-kv]


def _sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float
) -> Tensor:
    """[R, N] of float32, in tiles of MOST rows."""
    tiles = []
    for rows in torch.split(x, MOST):
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


def rms_norm(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, norm.shape, norm, eps)


OPERATORS = {
    ops: ("silu_times", "rotate_and_write"),
    attention: ("place", "attend_splits"),
    products: ("linear", "linear_add", "gated", "qkv_rotated", "rms_norm"),
}


def _called(name: str) -> Callable[..., Any]:
    return lambda *given: globals()[name](*given)


for _room, _names in OPERATORS.items():
    for _name in _names:
        getattr(_room, _name).register_kernel("cpu")(_called(_name))
