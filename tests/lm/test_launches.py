"""Kernels that engine `cuda_graphs` launches, counted on FakeTensors: each is a microsecond or two
of a pass that takes four milliseconds.
"""

from functools import partial

import pytest
import torch
from conftest import random_model
from fake_cuda import fake_cuda

from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
PASSES = {
    "one row": TokenRows.chain(70, 1),
    "chain": TokenRows.chain(70, 9),
    "tree": TokenRows.tree(70, (-1, 0, 0, 1, 1, 4)),
    "branches": TokenRows.branches(70, 60, 3, 2),
}


@pytest.mark.parametrize(("backend", "most"), [("masked", 16), ("split_kv", 19), ("triton", 9)])
@pytest.mark.parametrize("rows", PASSES)
def test_launches_per_layer_and_pass(backend: str, most: int, rows: str) -> None:
    engine = type("Blind", (CudaGraphsEngine,), {"self_test": lambda *_: None})
    with fake_cuda():
        with torch.device("cuda"):
            model = random_model("llama")
        lm = LM(model, partial(engine, capture=EagerCapture, backend=backend))
        lm.allocate(300)
        (part,) = lm.engine.parts.values()  # type: ignore[attr-defined]  # an engine of graphs
        part.launches(lm.metadata(PASSES[rows]))
        part.launches(lm.metadata(TokenRows.chain(69, PASSES[rows].rows)))
        layer, inputs = part.launches(lm.metadata(PASSES[rows]))
        print("COUNT", backend, rows, layer, inputs)
    assert layer <= most
    assert inputs <= 3 if backend == "triton" else inputs > 20
