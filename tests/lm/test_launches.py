"""Kernels that engine `cuda_graphs` launches, counted on FakeTensors: each is a microsecond or two
of a pass that takes four milliseconds.
"""

from functools import partial

import pytest
import torch
from conftest import random_model, rest_slow
from fake_cuda import fake_cuda

from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
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
