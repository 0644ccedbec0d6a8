"""Parts of `cuda_graphs` by themselves, with torch's operators: which sets keep a graph, positions
that are uploaded, backends of attention, and what a kernel is compared by.
"""

from functools import partial
from typing import Any

import pytest
import torch
from conftest import here
from described import made
from test_graphs import PROMPT

from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import attention
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.cuda_graphs.sets import KEPT, USES, SetGraphs, SetKey
from skipbench.lm.cuda_graphs.trial import differs
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

CPU = torch.device("cpu")


def test_the_sets_used_last_keep_their_graphs() -> None:
    made, graphs = list[int](), SetGraphs()

    def use(number: int, times: int = 1) -> None:
        key = SetKey(1, 256, True, "", True, (number,))
        for _ in range(times):
            graphs.replay(key, lambda: [made.append(number), list][1])

    use(0, USES - 1)
    assert not made
    for number in range(KEPT):
        use(number, USES)
    use(0)
    graphs.enter(SetKey(1, 512, True, "", True, (0,)), lambda: [made.append(-1), list][1])
    assert made == [*range(KEPT)]  # there is no room for one ahead
    use(KEPT, USES)  # takes the place of the set that was used before all others
    for number in (0, KEPT, *range(2, KEPT)):
        use(number)
    assert made == [*range(KEPT + 1)]
    use(1, USES)
    assert made == [*range(KEPT + 1), 1]


def uploaded(buffers: GraphBuffers) -> list[object]:
    return [buffers.bounds.tolist(), buffers.depth.tolist(), buffers.tree_mask.tolist()]


def test_what_is_uploaded_is_of_the_pass_at_hand() -> None:
    """Each pass after each other one, beside buffers that have held nothing else."""
    passes = [
        (TokenRows.chain(20, 3), 0),
        (TokenRows.chain(24, 3), 5),  # in a window
        (TokenRows.chain(24, 3, context_len=20), 0),  # behind scratch
        (TokenRows.tree(20, (-1, 0, 0)), 0),
        (TokenRows.branches(24, 20, 3), 0),
    ]

    def fresh() -> GraphBuffers:
        return GraphBuffers(4, 8, 8, 1, torch.float32, CPU)

    for before in passes:
        for rows, hidden in passes:
            used, other = fresh(), fresh()
            used.load(*before)
            for buffers in (used, other):
                buffers.load(rows, hidden)
            assert uploaded(used) == uploaded(other), (before, rows, hidden)
            start, context = rows.start, rows.context_len
            assert used.bounds.tolist() == [start, context, start, hidden]
            sees = torch.from_numpy(rows.tree_mask())
            assert torch.equal(used.tree_mask[:3, :3], sees) and not used.tree_mask[:3, 3:].any()


@pytest.mark.parametrize("backend", ["masked", "split_kv"])
def test_attention_is_scaled_and_weighs_every_part(backend: str) -> None:
    """Over three parts of the cache, one of which is hidden and one seen in part."""
    torch.manual_seed(0)
    rows, heads, kv, d, size = 2, 4, 2, 8, 192
    buffers = GraphBuffers(rows, 8, d, heads // kv, torch.float32, CPU)
    query, cache = 3 * torch.randn(rows, heads, d), torch.randn(size, 2 * kv, d)
    low = torch.finfo(torch.float32).min / 2
    mask = torch.zeros(rows, size)
    mask[:, 64:128], mask[0, 130:], mask[1, 150:] = low, low, low
    found = attention.BACKENDS[backend](query, cache, buffers, torch.cat([mask, mask]), 0.9)
    keys, values = (part.repeat_interleave(heads // kv, 1) for part in cache.split(kv, 1))
    scores = torch.einsum("rhd,nhd->hrn", query, keys) * 0.9 + mask
    wanted = torch.einsum("hrn,nhd->rhd", scores.softmax(-1), values).flatten(1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_result_that_is_not_finite_differs() -> None:
    wanted = torch.ones(3)
    assert not differs(wanted * 1.001, wanted) and differs(wanted * 1.1, wanted)
    assert differs(torch.tensor([1.0, float("nan"), 1.0]), wanted)


@torch.inference_mode()
def test_rows_of_padding_do_not_grow_from_pass_to_pass() -> None:
    """In float16 they would overflow, and their keys and values reach all that is masked."""
    lm = LM(made("llama"), partial(CudaGraphsEngine, capture=EagerCapture, backend="masked"))
    lm.allocate(60)
    lm.prefill([3, 4] * 5)
    (part,) = lm.engine.parts.values()  # type: ignore[attr-defined]  # an engine of graphs
    ends = []
    for _ in range(2):
        lm.logits([5] * 17, TokenRows.chain(10, 17))
        ends.append(part._buffers[24].hidden[17:].clone())
    assert torch.equal(*ends)


@torch.inference_mode()
def test_wide_trees_and_drafts_of_8_bits_are_those_of_fused() -> None:
    """A tree with rows of padding behind it, and every sub-layer in 8 bits; with biases."""
    parent = (-1, *((row - 1) // 2 for row in range(1, 18)))
    graphs: Any = partial(CudaGraphsEngine, capture=EagerCapture, backend="masked")
    biased = {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2}
    lms = [LM(made("llama", **biased), engine) for engine in (graphs, "fused")]
    for rows, plan in here(
        ((TokenRows.tree(12, parent), ""), (TokenRows.chain(12, 1), "int8:all"))
    ):
        found = []
        for lm in lms:
            lm.allocate(64)
            lm.prefill(PROMPT)
            tokens = [7 * i % 61 for i in range(rows.rows)]
            found.append(lm.logits(tokens, rows, DraftPlan.parse(plan, lm.layers)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert [lm.engine.name for lm in lms] == ["cuda_graphs", "fused"]
