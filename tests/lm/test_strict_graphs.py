"""`engine.strict` of `cuda_graphs`, by its operators in plain torch: every verified row has
the bits that it has alone, and what could not keep that is refused.
"""

from functools import partial
from typing import Any

import pytest
import torch
from conftest import make_method, random_model, rest_slow
from test_graphs import PROMPTS
from test_strict import same_bits

from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.cuda_graphs import buffers as sizes
from skipbench.lm.cuda_graphs import on_cpu
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows

CONTEXTS = (5, 60, 125, 250)  # near the borders of parts, and of a bucket
BF16 = torch.bfloat16
FAMILIES = "llama", "mistral", "qwen2", "qwen3"


def graphs(
    family: str = "llama",
    dtype: torch.dtype = BF16,
    strict: bool = True,
    capture: type[EagerCapture] = EagerCapture,
) -> LM:
    engine = partial(CudaGraphsEngine, capture=capture)
    lm = LM(random_model(family).to(dtype), engine, strict)
    lm.allocate(300)
    return lm


@pytest.mark.parametrize(
    ("family", "dtype"),
    rest_slow(
        [(f, d) for f in FAMILIES for d in (torch.float32, BF16, torch.float16)],
        [("mistral", BF16)].__contains__,
    ),
    ids=str,
)
def test_no_row_depends_on_those_beside_it(family: str, dtype: torch.dtype) -> None:
    found = compare_rows(graphs(family, dtype), 60, contexts=CONTEXTS)
    assert found.compared >= 60 and (found.differing, found.first) == (0, "")


METHODS = [
    ("llama", "uniform", ("method.ratio=0.3", "method.stop.threshold=0")),
    ("mistral", "swift", ("method.tree=[4,3,2,1]", "method.window=4", "method.beta=3")),
    ("llama", "layerskip", ("method.exit_layer=2", "method.stop.threshold=0")),
    ("llama", "recycling", ("method.nodes=40",)),  # more rows than a product has in a tile
    ("qwen3", "clasp", ("method.interval=2", "method.stop.threshold=0")),
    ("qwen2", "prompt-lookup", ("method.ngram=1",)),
]


@pytest.mark.parametrize(
    ("family", "name", "overrides"),
    rest_slow(METHODS, lambda case: case[1] == "recycling"),
)
def test_methods_give_vanillas_tokens_and_bits(
    family: str, name: str, overrides: tuple[str, ...]
) -> None:
    lm = graphs(family)
    method = make_method(name, *overrides, layers=lm.layers)
    same_bits(lm, method, PROMPTS.get(family, PROMPTS["llama"]), 24)


def by_rows(linear: Any) -> Any:
    return lambda x, *rest: linear(x, *rest) * (1 + 2**-7 * (len(x) > 4))


def by_bucket(attend: Any) -> Any:
    return lambda *a: attend(*a) * (1 + 2**-6 * (a[5] > 64))  # cache rows


@pytest.mark.parametrize(
    ("name", "planted"),
    [("linear", by_rows), ("attend_splits", by_bucket)],
)
def test_a_kernel_that_depends_on_rows_is_refused(
    name: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "FIRST", 32)  # the longest of the proof's contexts is 57 here
    monkeypatch.setattr(on_cpu, name, planted(getattr(on_cpu, name)))
    with pytest.raises(NotStrictError, match=r"engine.strict=true cannot be kept on cpu"):
        graphs()


def test_what_no_graph_holds_is_refused() -> None:
    lm = graphs()
    lm.prefill([3] * 20)
    rows = TokenRows.chain(20, 129)
    assert lm.logits([5] * 129, rows).shape[0] == 129, "a draft may"
    with pytest.raises(SkipbenchError, match="verifies 129 rows, of 128 at most"):
        lm.logits([5] * 129, rows.verified())


def test_without_memory_for_graphs_it_ends() -> None:
    """Other kernels would give other bits."""

    class Full(EagerCapture):
        full = False

        def capture(self, work: Any) -> Any:
            if Full.full:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().capture(work)

    lm = graphs(capture=Full)
    lm.prefill([3] * 20)
    Full.full = True
    with pytest.raises(SkipbenchError, match=r"cannot be kept: cpu has no memory left for graphs"):
        lm.logits([5] * 13, TokenRows.chain(20, 13))


def test_prompts_of_two_passes_are_those_of_fused() -> None:
    lm = graphs(dtype=torch.float32, strict=False)
    other = LM(random_model("llama"), "fused")
    other.allocate(300)
    for length in (200, 257):
        tokens = [int(t) for t in torch.randint(50, (length,))]
        found, wanted = (m.prefill(tokens) for m in (lm, other))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert isinstance(lm.engine, CudaGraphsEngine)
    (part,) = lm.engine.graphs.values()
    rows = {key.rows for key in part.table}
    assert rows == {1, 96, 128}, "one of the self-test; 200 tokens: 128 and 72; 257 are of fused"
