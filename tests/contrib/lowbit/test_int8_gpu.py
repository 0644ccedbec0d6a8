"""Weights in 8 bits on a GPU: the Triton kernel in its interpreter, tiles, launches and bytes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import fake_cuda
from test_fake_cuda import fake_lm
from test_triton import DEVICE, TOLERANCES, drawn, error
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig

from skipbench.contrib.lowbit import copy, int8_gpu, tiles
from skipbench.contrib.lowbit.int8 import quantized_rows
from skipbench.contrib.lowbit.int8_gpu import GpuInt8Weight
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.launches import Launches
from skipbench.lm.rows import TokenRows

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")


def test_a_product_of_8_bits_by_torch_is_that_of_the_rounded_weight() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 40), torch.randn(24)
    x, residual = torch.randn(3, 40), torch.randn(3, 24)
    made = GpuInt8Weight(weight, bias, "no kernel")
    wanted = torch.nn.functional.linear(x, made.dequantized(), bias)
    torch.testing.assert_close(made(x), wanted)
    torch.testing.assert_close(made.added(residual, x), wanted + residual)
    made.add_to(residual, x)
    torch.testing.assert_close(residual, made.added(residual - wanted, x))


@pytest.mark.parametrize(
    ("dtype", "tile"),
    [(d, t) for d in TOLERANCES for t in (tiles.FLOAT32 if d == torch.float32 else tiles.HALF)],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 64, 32), (7, 130, 71), (20, 1027, 17)], ids=str)
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


@pytest.mark.parametrize(
    ("count", "kib", "down"),
    [(132, 228, tiles.LONG), (108, 164, tiles.SOME), (84, 100, tiles.SOME)],
    ids=["H100", "A100", "A6000"],
)
def test_tiles_of_8_bits_fit_a_device(
    count: int, kib: int, down: tiles.Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama-3-8B's qkv, o, gate with up, down and head: all programs of `down` run side by side."""
    facts = {"multi_processor_count": count, "shared_memory_per_multiprocessor": kib << 10}
    device, given = torch.device("cuda"), SimpleNamespace(**facts)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: given)
    shapes = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)
    found = [tiles.int8_tile(*shape, torch.bfloat16, device) for shape in shapes]
    assert found == [tiles.SOME, tiles.SOME, tiles.MANY, down, tiles.MANY]
    assert tiles.int8_tile(960, 576, torch.bfloat16, device) == tiles.FEW
    assert max(tile.shared_bytes for tile in found) < (kib - 1) << 10
    assert 4096 / down.outputs <= tiles.side_by_side(down.shared_bytes, device)


@pytest.mark.parametrize("name", ["fused", "cuda_graphs", "reference"])
def test_8_bits_are_fast_on_a_gpu_where_their_kernel_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that `auto` measures what a draft in 8 bits costs there, as on a CPU."""
    with fake_cuda():
        lm = fake_lm(name, torch.bfloat16, "triton", capture=EagerCapture)
        for there in (False, True):
            monkeypatch.setattr(ops, "at_hand", lambda device, there=there: there)
            assert lm.engine.fast("int8") is (there and name != "reference")


class Read(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it so
    """Bytes of the weights that products read."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func._schema.name for name in ("mm", "linear")):
            given = [t for t in args if isinstance(t, torch.Tensor)]
            self.bytes += max(t.nbytes for t in given)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["fused", "cuda_graphs"])
def test_a_step_in_8_bits_reads_half_and_launches_no_more(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "int8_fault", lambda like: None)
    sizes: Any = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96}
    config = LlamaConfig(num_hidden_layers=3, num_attention_heads=4, head_dim=16, **sizes)
    found = []
    with fake_cuda() as journal:
        lm = fake_lm(name, torch.bfloat16, "triton", config, capture=EagerCapture)
        some = DraftPlan.parse("mlp:1", 3)
        plans = [some, some.cheaper("int8", head="int8"), some.cheaper(window=20)]
        for plan in plans:
            for _ in range(2):  # the first one quantises and captures
                journal.clear()
                with Launches(torch.device("cuda")) as launches, Read() as read:
                    lm.logits([5], TokenRows.chain(70, 1), plan)
            found.append((launches.count, read.bytes))
            assert not journal.lines("read", "wait", "pageable", "device", "capture", "kernel")
        assert "a copy of weights in 8 bits" in " ".join(lm.notes())
    (full, weights), (low, low_weights), (near, _) = found
    assert low <= full and 0.5 <= low_weights / weights < 0.51
    if name == "cuda_graphs":
        assert near == full  # the same graphs: a window is four numbers
