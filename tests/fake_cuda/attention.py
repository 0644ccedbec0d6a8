"""Attention as a GPU's kernels do it: which one is taken, what it refuses, what it returns.

Torch's own order of kernels and torch's own meta functions decide order, shapes, devices and
layouts. What each kernel asks of its inputs is written in C++ only, in
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, and repeated here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from fake_cuda.journal import Journal

aten = torch.ops.aten
Tensor = torch.Tensor
ALIGNED = 8
"""Elements of a mask's row stride, and bytes of its address, that the efficient kernel wants."""
HALF = (torch.float16, torch.bfloat16)
CUDNN = SDPBackend.CUDNN_ATTENTION
NAMES = {
    SDPBackend.FLASH_ATTENTION: "flash", SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.MATH: "math", CUDNN: "cudnn",
}  # fmt: skip


def order(capability: int) -> list[SDPBackend]:
    """The kernels as torch tries them on a GPU: 8 is an A100's, 9 Hopper's capability, which has
    cuDNN's first.
    """
    usual = [SDPBackend(value) for value in torch._C._get_sdp_priority_order()]
    usual = [backend for backend in usual if backend in NAMES]
    return sorted(usual, key=lambda backend: backend != CUDNN) if capability == 9 else usual


def sdpa_kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, gqa: bool, capability: int = 9
) -> str:
    """The kernel that is taken: `flash`, `efficient`, `cudnn` or `math`; `misaligned` where the
    efficient one would raise. Raises RuntimeError where torch does so before.
    """
    if query.shape[-3] != key.shape[-3] and not gqa:
        raise RuntimeError("scaled_dot_product_attention: heads differ without enable_gqa")
    if len({t.dtype for t in (query, key, value)}) > 1:
        raise RuntimeError("scaled_dot_product_attention: query, key and value differ in dtype")
    half, width = query.dtype in HALF, query.shape[-1]
    dense = all(t.stride(-1) == 1 for t in (query, key, value))
    takes = {
        SDPBackend.FLASH_ATTENTION: half and dense and mask is None and width <= 256,
        SDPBackend.EFFICIENT_ATTENTION: dense and not gqa
        and (mask is None or mask.stride(-1) == 1),
        SDPBackend.MATH: True,
        CUDNN: half and dense and width <= 256 and width % 8 == 0
        and torch.backends.cuda.cudnn_sdp_enabled(),
    }  # fmt: skip
    name = NAMES[next(backend for backend in order(capability) if takes[backend])]
    if mask is not None and name in ("efficient", "cudnn"):
        if mask.dtype not in (torch.bool, query.dtype):
            raise RuntimeError(
                f"invalid dtype for bias - should match query's dtype: {mask.dtype}, {query.dtype}"
            )
        strides = [s for s, n in zip(mask.stride()[:-1], mask.shape[:-1], strict=True) if n > 1]
        offset = mask.storage_offset() * mask.element_size()
        if name == "efficient" and all(s % ALIGNED == 0 for s in strides) and offset % ALIGNED:
            return "misaligned"
    return name


KERNELS: dict[str, Callable[..., Tensor]] = {
    "flash": lambda q, k, v, _: aten._scaled_dot_product_flash_attention(q, k, v)[0],
    "cudnn": lambda *qkvm: aten._scaled_dot_product_cudnn_attention(*qkvm, False)[0],
    "efficient": lambda *qkvm: aten._scaled_dot_product_efficient_attention(*qkvm, False)[0],
}
"""On FakeTensors, torch's meta functions: shape, device and layout of what each kernel returns."""


def attention_on(journal: Journal, capability: int) -> Any:
    """`scaled_dot_product_attention` as one kernel: what it allocates, and which it would be."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        kernel = sdpa_kernel(query, key, value, attn_mask, enable_gqa, capability)
        journal.kernels[kernel] += 1
        if kernel in ("math", "misaligned", "cudnn"):
            journal.add("kernel", f"attention takes {kernel}")
        if attn_mask is not None and any(s % ALIGNED for s in attn_mask.stride()[:-1]):
            journal.add("kernel", "the mask is copied, since its rows are not aligned")
            torch.nn.functional.pad(attn_mask, (0, ALIGNED - attn_mask.shape[-1] % ALIGNED))
        if kernel == "math":  # scores twice, and grouped heads repeated, all in float32
            shape = (*query.shape[:-1], key.shape[-2])
            scores = [query.new_empty(shape, dtype=torch.float32) for _ in range(2)]
            groups = query.shape[-3] // key.shape[-3]
            wide = [t.float().repeat_interleave(groups, -3) for t in (key, value)]
            del scores, wide
        if kernel in KERNELS:
            return KERNELS[kernel](query, key, value, attn_mask)
        # shapes and devices, at the price of one operator
        return (query + key[..., :1, :1].sum() + value[..., :1, :1].sum()).contiguous()

    return attention


def rms_norm(
    hidden: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """One kernel, as on a GPU."""
    assert tuple(hidden.shape[-len(shape) :]) == tuple(shape)
    return hidden.clone() if weight is None else hidden * weight
