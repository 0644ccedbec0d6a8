"""The Triton kernel of weights in 8 bits, in Triton's interpreter or on a GPU."""

from typing import Any

import pytest
import torch
from conftest import rest_slow
from test_products import DEVICE, TOLERANCES, drawn, error
from torch import Tensor

from skipbench.contrib.lowbit import int8_gpu, tiles
from skipbench.contrib.lowbit.int8 import quantized_rows
from skipbench.lm.cuda_graphs import ops

SHAPES = [((20, 130, 17),), ((1, 64, 32),), ((7, 130, 71),), ((20, 1027, 17),)]


@pytest.mark.parametrize(
    ("dtype", "tile"),
    [(d, t) for d in TOLERANCES for t in (tiles.FLOAT32 if d == torch.float32 else tiles.HALF)],
    ids=str,
)
@pytest.mark.parametrize("shape", rest_slow(SHAPES, SHAPES[:1].__contains__), ids=str)
def test_int8_linear(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    tile: tiles.Tile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows, inputs and outputs, also odd ones; a row has the same bits alone as among others."""
    monkeypatch.setattr(int8_gpu, "int8_tile", lambda *of: tile)  # small weights have one
    rows, inputs, outputs = shape
    x, weight = drawn(rows, inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype)
    bias, hidden = drawn(outputs, dtype=dtype), drawn(rows, outputs, dtype=dtype)
    scale, rounded = quantized_rows(weight)
    weight_error = (rounded * scale[:, None] - weight.float()).abs().amax(1)
    assert (weight_error <= scale * 0.51).all()
    wanted = x.float() @ (rounded.float() * scale[:, None]).T
    for added, of_bias in ((None, None), (hidden, bias)):
        out = torch.empty_like(hidden)
        int8_gpu.int8_linear(x, rounded, scale, of_bias, added, out)
        if added is not None and of_bias is not None:
            wanted = wanted + of_bias.float() + added.float()
        assert error(out, wanted) < TOLERANCES[dtype] / 2
        for row in range(0, rows, tiles.INT8_ROWS):  # NumPy's products depend on a row's place
            own = slice(row, row + 1)
            alone, before = torch.empty_like(out[own]), None if added is None else added[own]
            int8_gpu.int8_linear(x[own], rounded, scale, of_bias, before, alone)
            assert torch.equal(alone, out[own])
    int8_gpu.int8_linear(x, rounded, scale, bias, hidden, hidden)  # in its place
    assert torch.equal(hidden, out)


def test_a_tile_that_is_wrong_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the tiles it is: torch multiplies then."""
    monkeypatch.setattr(ops, "at_hand", lambda device: True)
    monkeypatch.setattr(tiles, "side_by_side", lambda *of: 1 << 10)  # more than the interpreter's
    for bound, small in (("SOME_OUTPUTS", 48), ("MANY_OUTPUTS", 80), ("LONG_INPUTS", 512)):
        monkeypatch.setattr(tiles, bound, small)
    like, multiply = torch.empty(0, dtype=torch.float16, device=DEVICE), int8_gpu.int8_linear
    assert int8_gpu.int8_fault(like) is None
    for wrong in tiles.HALF:

        def linear(x: Tensor, weight: Tensor, *rest: Any, wrong: tiles.Tile = wrong) -> None:
            multiply(x, weight, *rest)
            rest[-1].mul_(1 + (tiles.int8_tile(*weight.shape, x.dtype, x.device) == wrong))

        with monkeypatch.context() as patched:
            patched.setattr(int8_gpu, "int8_linear", linear)
            assert "does not give what torch gives" in str(int8_gpu.int8_fault(like))
