"""`cuda_graphs.parts` stated in plain torch, for tests on machines without Triton: the same
arguments, parts and order, and no product whose shape depends on the rows of the pass.

    monkeypatch.setattr(parts, "place", stated.place)
"""

from types import SimpleNamespace

import pytest
import stated_products
import torch
from fake_cuda import on_cpu
from torch import Tensor

from skipbench.draft_plan import SINKS
from skipbench.lm.cuda_graphs import ops, parts, products
from skipbench.lm.cuda_graphs.parts import CHUNK, part_size
from skipbench.lm.llama import rotated, silu_times


def place(
    bounds: Tensor,
    depth: Tensor,
    tree_mask: Tensor,
    all_cos: Tensor,
    all_sin: Tensor,
    target: Tensor,
    cos: Tensor,
    sin: Tensor,
    paths: Tensor,
    part: int,
) -> None:
    """`parts.place`."""
    context_len, written = int(bounds[1]), int(bounds[2])
    target.copy_(written + torch.arange(len(depth)))
    own = (context_len + depth).clamp(max=len(all_cos) - 1)
    cos.copy_(all_cos[own])
    sin.copy_(all_sin[own])
    position = context_len // part * part + torch.arange(paths.shape[1])
    paths.copy_(torch.where(position < context_len, position, -1))
    for row, other in tree_mask[: len(depth), : len(depth)].nonzero().tolist():
        paths[row, position == context_len + depth[other]] = written + other


def attend_parts(
    query: Tensor,
    cache: Tensor,
    bounds: Tensor,
    depth: Tensor,
    paths: Tensor,
    size: int,
    window: int,
    scale: float,
) -> Tensor:
    """`parts.attend_parts`."""
    (_, context_len, _, hidden), kv = bounds.tolist(), cache.shape[1] // 2
    part = part_size(query.dtype, query.shape[2])
    base = context_len // part * part
    outs = []
    for row, behind in zip(query, depth.tolist(), strict=True):
        position = context_len + behind
        softmaxes = []
        for first in range(0, min(position + 1, size), part):
            at = first + torch.arange(part)
            line = at if first < base else paths[len(outs), first - base : first - base + part]
            sees = (line >= 0) & (at <= position) & (position - at < window)
            sees &= (at < SINKS) | (at >= SINKS + hidden)
            seen = cache[torch.where(sees, line, 0).long()]
            seen = seen.masked_fill(~sees[:, None, None], 0.0)  # where nothing may be written
            softmaxes.append(_softmax(row.view(kv, -1, row.shape[1]), seen, sees, scale))
        outs.append(_joined(softmaxes).to(query.dtype).flatten())
    return torch.stack(outs)


def _softmax(query: Tensor, seen: Tensor, sees: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """[KV, G, d] over the rows `seen` [PART, 2 KV, d]: a softmax, and the logarithm of its sum."""
    keys, values = (x.transpose(0, 1) for x in seen.chunk(2, 1))
    score = query.float() @ keys.float().transpose(1, 2) * scale
    score = score.masked_fill(~sees, float("-inf"))
    share = (score - score.amax(-1, keepdim=True).clamp(min=-3e38)).exp()
    total = share.sum(-1, keepdim=True)
    out = share.to(values.dtype).float() @ values.float() / total.clamp(min=1e-30)
    return out, score.logsumexp(-1, keepdim=True)


def _joined(softmaxes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """In order, in sums of `CHUNK` parts; 0 where a row sees nothing."""
    log_sums = torch.stack([log_sum for _, log_sum in softmaxes])
    shares = (log_sums - log_sums.amax(0).clamp(min=-3e38)).exp()
    joined, total = torch.zeros_like(softmaxes[0][0]), torch.zeros_like(shares[0])
    for first in range(0, len(softmaxes), CHUNK):
        chunk = range(first, min(first + CHUNK, len(softmaxes)))
        joined = joined + sum(softmaxes[i][0] * shares[i] for i in chunk)
        total = total + sum(shares[i] for i in chunk)
    return joined / total.clamp(min=1e-30)


def behind_cuda(patch: pytest.MonkeyPatch) -> None:
    """All of these as the kernels of the GPU that `fake_cuda.cpu_behind_cuda` stands for, which
    captures them as one operator each; inside it.
    """
    rooms = {place: parts, attend_parts: parts, rotate_and_write: ops, silu_times: ops}
    rooms |= {getattr(stated_products, name): products for name in stated_products.OPERATORS}
    for stated, room in rooms.items():
        operator = getattr(room, stated.__name__)._opoverload
        patch.setitem(on_cpu.ON_CPU, operator, stated)
    patch.setattr(ops, "at_hand", lambda device: True)


def put_in_place(patch: pytest.MonkeyPatch) -> None:
    """All of these in the place of the operators, wherever the engine calls them."""
    stated_products.put_in_place(patch)
    patch.setattr(parts, "place", place)
    patch.setattr(parts, "attend_parts", attend_parts)
    patch.setattr(ops, "silu_times", silu_times)
    patch.setattr(ops, "rotate_and_write", rotate_and_write)


def rotate_and_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, target: Tensor, cache: Tensor,
    q_norm: Tensor | None, k_norm: Tensor | None, q_eps: float, k_eps: float,
) -> Tensor:  # fmt: skip
    kv, norms = cache.shape[1] // 2, None
    if q_norm is not None:
        each = ((q_norm, q_eps), (k_norm, k_eps))
        norms = tuple(SimpleNamespace(weight=w, variance_epsilon=e) for w, e in each)
    turned = rotated(qkv, kv, norms, cos, sin)
    cache.index_copy_(0, target, torch.cat((turned[:, -kv:], qkv[:, -kv:]), 1))
    return turned[:, :-kv]
