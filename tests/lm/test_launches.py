"""Kernels that engine `cuda_graphs` launches, counted on FakeTensors: each is a microsecond or two
of a pass that takes four milliseconds.
"""

from functools import partial

import pytest
import torch
from conftest import random_model, rest_slow
from fake_cuda import fake_cuda

from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.cuda_graphs.launches import count
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
    "masked": [(15, 23), (16, 23), (16, 23), (16, 23)],
    "split_kv": [(17, 23), (19, 23), (19, 23), (19, 23)],
    "triton": [(6, 2), (6, 2), (6, 2), (6, 2)],
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
        found = [count(part, lm.metadata(rows)) for rows in PASSES]
    assert found == WANTED[backend]
