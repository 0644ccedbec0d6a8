"""Weights in 8 bits on a GPU: tiles, launches and bytes, and torch in the place of the kernel."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import fake_cuda
from test_fake_cuda import fake_lm
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig

from skipbench.contrib.lowbit import copy, tiles
from skipbench.contrib.lowbit.int8_gpu import GpuInt8Weight
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.capture import EagerCapture
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
        lm = fake_lm(name, torch.bfloat16, capture=EagerCapture)
        for there in (False, True):
            monkeypatch.setattr(ops, "at_hand", lambda device, there=there: there)
            assert lm.engine.fast("int8") is (there and name != "reference")


class Read(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it so
    """Bytes of the weights that products read."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func._schema.name for name in ("mm", "linear", "qkv_rotated", "gated")):
            given = [t for t in args if isinstance(t, torch.Tensor) and t.ndim != 3]  # no cache
            self.bytes += max(t.nbytes for t in given)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("bits", "share"), [(8, 0.5), (4, 0.25)])
@pytest.mark.parametrize("name", ["fused", "cuda_graphs"])
def test_a_step_in_fewer_bits_reads_less(
    name: str, bits: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, f"int{bits}_fault", lambda like: None)
    sizes: Any = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96}
    config = LlamaConfig(num_hidden_layers=3, num_attention_heads=4, head_dim=16, **sizes)
    found = []
    with fake_cuda() as journal:
        lm = fake_lm(name, torch.bfloat16, config, capture=EagerCapture)
        some = DraftPlan.parse("mlp:1", 3)
        for plan in (some, replace(some, variant=f"int{bits}")):
            for _ in range(2):  # the first one quantises and captures
                journal.clear()
                with Read() as read:
                    lm.logits([5], TokenRows.chain(70, 1), plan)
            found.append(read.bytes)
            assert not journal.lines("read", "wait", "pageable", "device", "capture", "kernel")
        assert f"a copy of weights in {bits} bits" in " ".join(lm.notes())
    assert share <= found[1] / found[0] < share + 0.01
