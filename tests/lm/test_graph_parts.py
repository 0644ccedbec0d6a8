"""Parts of `cuda_graphs` by themselves, with torch's operators: which sets keep a graph, positions
that are uploaded, and wide trees.
"""

from functools import partial
from typing import Any

import torch
from conftest import here
from described import made
from test_graphs import PROMPT

from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.device import SETS, USES
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

CPU = torch.device("cpu")


@torch.inference_mode()
def test_the_sets_used_last_keep_their_graphs() -> None:
    lm = LM(made("llama", num_hidden_layers=5), partial(CudaGraphsEngine, capture=EagerCapture))
    lm.allocate(600)
    lm.prefill([3, 4] * 5)
    (part,) = lm.engine.graphs.values()  # type: ignore[attr-defined]  # an engine of graphs
    plans, counts = [DraftPlan.of(5, [s]) for s in range(10)], list[int]()

    def use(number: int, times: int = USES) -> None:
        before = part.graphs
        for _ in range(times):
            lm.logits([5], TokenRows.chain(10, 1), plans[number])
        counts.append(part.graphs - before)

    use(0, USES - 1)
    assert not counts[0]
    for number in range(SETS - 1):  # beside the graph of all sub-layers
        use(number)
    use(0, 1)
    use(SETS - 1)  # takes the place of all sub-layers
    use(SETS)  # and of the set that was used before all others
    counts.clear()
    for number in (0, *range(2, SETS + 1)):
        use(number, 1)
    assert not any(counts)
    use(1)
    assert counts[-1] == 1
    lm.engine.capture_ahead(300, 310)  # over another bucket, too
    before = part.graphs
    for number in range(1, SETS + 1):
        lm.logits([5], TokenRows.chain(300, 1), plans[number])
    assert part.graphs == before


def uploaded(buffers: GraphBuffers) -> list[object]:
    return [buffers.bounds.tolist(), buffers.depth.tolist(), buffers.tree_mask.tolist()]


def test_what_is_uploaded_is_of_the_pass_at_hand() -> None:
    """Each pass after each other one, beside buffers that have held nothing else."""
    passes = [
        TokenRows.chain(20, 3),
        TokenRows.chain(24, 3),
        TokenRows.chain(24, 3, context_len=20),  # behind scratch
        TokenRows.tree(20, (-1, 0, 0)),
        TokenRows.branches(24, 20, 3),
    ]

    def fresh() -> GraphBuffers:
        return GraphBuffers(4, 8, 8, torch.float32, CPU)

    for before in passes:
        for rows in passes:
            used, other = fresh(), fresh()
            used.load(before)
            for buffers in (used, other):
                buffers.load(rows)
            assert uploaded(used) == uploaded(other), (before, rows)
            assert used.bounds.tolist() == [rows.start, rows.context_len, rows.start]
            sees = torch.from_numpy(rows.tree_mask())
            assert torch.equal(used.tree_mask[:3, :3], sees) and not used.tree_mask[:3, 3:].any()


@torch.inference_mode()
def test_rows_of_padding_do_not_grow_from_pass_to_pass() -> None:
    """In float16 they would overflow, and their keys and values reach all that is masked."""
    lm = LM(made("llama"), partial(CudaGraphsEngine, capture=EagerCapture))
    lm.allocate(60)
    lm.prefill([3, 4] * 5)
    (part,) = lm.engine.graphs.values()  # type: ignore[attr-defined]  # an engine of graphs
    ends = []
    for _ in range(2):
        lm.logits([5] * 17, TokenRows.chain(10, 17))
        ends.append(part.load(part._metadata, "").buffers.hidden[17:].clone())
    assert torch.equal(*ends)


@torch.inference_mode()
def test_wide_trees_and_drafts_of_8_bits_are_those_of_fused() -> None:
    """A tree with rows of padding behind it, and every sub-layer in 8 bits; with biases."""
    parent = (-1, *((row - 1) // 2 for row in range(1, 18)))
    graphs: Any = partial(CudaGraphsEngine, capture=EagerCapture)
    biased = {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2}
    lms = [LM(made("llama", **biased), engine) for engine in (graphs, "fused")]
    for rows, plan in here(((TokenRows.tree(12, parent), ""), (TokenRows.chain(12, 1), "int8"))):
        found = []
        for lm in lms:
            lm.allocate(64)
            lm.prefill(PROMPT)
            tokens = [7 * i % 61 for i in range(rows.rows)]
            found.append(lm.logits(tokens, rows, DraftPlan.parse(plan, lm.layers)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert [lm.engine.name for lm in lms] == ["cuda_graphs", "fused"]
