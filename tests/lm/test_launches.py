"""Kernels that engine `cuda_graphs` launches, counted on FakeTensors: each is a microsecond or two
of a pass that takes four milliseconds.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import random_model, rest_slow
from fake_cuda import fake_cuda
from test_fake_cuda import fake_lm
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig

from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import int8, ops, tiles
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.cuda_graphs.launches import Launches
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
PASSES = (
    TokenRows.chain(70, 1),
    TokenRows.chain(70, 9),
    TokenRows.tree(70, (-1, 0, 0, 1, 1, 4)),
    TokenRows.branches(70, 60, 3, 2),
)


WANTED = {  # of a layer, and of positions, tables and masks
    "masked": [(15, 25), (16, 25), (16, 26), (16, 26)],
    "split_kv": [(17, 25), (19, 25), (19, 26), (19, 26)],
    "triton": [(9, 2), (9, 2), (9, 3), (9, 3)],
}


@pytest.mark.parametrize("backend", rest_slow(WANTED, ("split_kv", "triton").__contains__))
def test_launches_per_layer_and_pass(backend: str) -> None:
    engine = type("Blind", (CudaGraphsEngine,), {"self_test": lambda *_: None})
    with fake_cuda():
        with torch.device("cuda"):
            model = random_model("llama")
        lm = LM(model, partial(engine, capture=EagerCapture, backend=backend))
        lm.allocate(300)
        (part,) = lm.engine.parts.values()  # type: ignore[attr-defined]  # an engine of graphs
        found = [part.launches(lm.metadata(rows)) for rows in PASSES]
    assert found == WANTED[backend]


@pytest.mark.parametrize("rows", [1, 9, 32])
@pytest.mark.parametrize("size", [2048, 16384])
def test_attention_of_few_rows_fills_a_device(rows: int, size: int) -> None:
    """Llama-3-8B's 8 key heads with 4 query heads each, on an H100 and on an A100."""
    for wide, multiprocessors in ((False, 132), (False, 108), (True, 132)):
        block_m, block_n, tiles, splits = ops.attend_grid(
            4 * rows, 8, 128, size, wide, 0, multiprocessors
        )
        assert 0.85 * multiprocessors < 8 * tiles * splits <= multiprocessors
        assert block_m * tiles >= 4 * rows and block_n * splits <= size
        parts = ops.attend_grid(4 * rows, 8, 128, 256, wide, 0, multiprocessors)[3]
        assert block_n * (parts - 1) < 256  # of a short cache none is empty


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
    monkeypatch.setattr(int8, "int8_fault", lambda like: None)
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
