"""`engine=cuda_graphs` over recorders that re-execute on the CPU, with torch's operators: what
graphs would compute, which sets keep a graph, what is uploaded.

What a GPU adds, capturing, is in test_graphs_gpu.py; a walk of many calls in test_graphs_walk.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import contract
import pytest
import torch
from conftest import here, make_method, random_lm, random_model, rest_slow, shallow
from described import made
from transformers import AutoModelForCausalLM

from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import buffers as sizes
from skipbench.lm.cuda_graphs import products
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.captured import Key
from skipbench.lm.cuda_graphs.device import COUNTED, SETS, USES
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.engines import EAGER_GRAPHS
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.models.load import make_lm
from skipbench.skipset import fixed_set

# behind which the random models do not fall into repeating one token, which would hide a wrong
# length
PROMPTS = {
    "llama": [41, 22, 24, 53, 42, 16, 9, 35, 44, 0, 29, 47],
    "mistral": [45, 7, 35, 21, 52, 59, 34, 13, 51, 38, 35, 37],
}
PROMPT = PROMPTS["llama"]
EAGER: Any = partial(CudaGraphsEngine, capture=EagerCapture)
METHODS = {  # chains, trees, branches, early exit, windows of guesses
    "vanilla": (),
    "uniform": ("method.ratio=0.3", "method.stop.threshold=0"),
    "self-sd": (),
    "swift": ("method.tree=[10,5,3,1]",),
    "clasp": ("method.stop.threshold=0",),
    "knapspec": (),
    "layerskip": (),
    "lookahead": (),
}


@pytest.fixture(autouse=True)
def short_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """32, 40, 48 ... rows: a text of the tests passes eight borders."""
    monkeypatch.setattr(sizes, "FIRST", 32)


def graphs(
    family: str = "llama", capacity: int = 300, capture: Any = EagerCapture, layers: int = 4
) -> LM:
    lm = LM(shallow(family, layers), partial(CudaGraphsEngine, capture=capture))
    lm.allocate(capacity)
    return lm


def text(lm: LM, method: Method, length: int = 100) -> list[int]:
    return generate(lm, method, PROMPTS[lm.config.model_type], length).tokens


def captured(lm: LM) -> dict[Any, Any]:
    assert isinstance(lm.engine, CudaGraphsEngine)
    (part,) = lm.engine.graphs.values()
    return part.table


@torch.inference_mode()
def test_logits_are_those_of_fused_for_every_shape_of_rows() -> None:
    lm, fused, text = graphs("mistral"), random_lm("mistral", "fused"), [*PROMPT] * 3
    spans = [
        TokenRows.chain(36, 1), TokenRows.chain(36, 17), TokenRows.chain(40, 3, context_len=20),
        TokenRows.branches(36, 30, 5, 3),
        TokenRows.tree(36, (-1, 0, 0, 1, 1, 4)), TokenRows.branches(36, 0, 2),
    ]  # fmt: skip
    for skip in (None, *(DraftPlan.parse(p, 4) for p in here(("attn:1,2;mlp:0", "int8;mlp:0")))):
        for token_rows in spans:
            lm.prefill(text)
            fused.prefill(text)
            tokens = [7 * i % 61 for i in range(token_rows.rows)]
            found, wanted = list[torch.Tensor](), list[torch.Tensor]()  # states, then logits
            for m, states in ((lm, found), (fused, wanted)):
                states.append(m.logits(tokens, token_rows, skip, states))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_pass_that_skips_nothing_is_one_replay() -> None:
    lm = graphs()
    lm.prefill(PROMPT)
    rows = TokenRows.chain(len(PROMPT), 3)
    wanted = lm.logits([5, 6, 7], rows)
    held = captured(lm)[Key(3, 32, True, "")]

    for skip in (None, DraftPlan.of(4)):
        assert torch.equal(lm.logits([5, 6, 7], rows, skip), wanted)
    assert not held.sublayers
    for arguments in ({"plan": DraftPlan.parse("mlp:1", 4)}, {"hidden_states": []}):
        lm.logits([5, 6, 7], rows, **arguments)
        assert held.sublayers.keys() == set(range(8))
        held.sublayers.clear()


@torch.inference_mode()
def test_a_set_that_is_used_often_is_one_replay() -> None:
    """Also where a draft step is launched in two parts; few sets are kept, captures are booked."""
    replays = list[int]()

    class Counting(EagerCapture):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            replay = super().capture(work)
            return lambda: [replays.append(1), replay()][1]

    lm = graphs(capture=Counting)
    lm.prefill(PROMPT)
    assert isinstance(lm.engine, CudaGraphsEngine)
    plan = DraftPlan.parse("attn:1,3;mlp:2", 4)
    booked, wanted = [], random_lm("llama", "fused")
    wanted.prefill(PROMPT)

    def step(at: int) -> torch.Tensor:
        replays.clear()
        rows = lm.metadata(TokenRows.chain(at, 1))
        hidden = lm.run(lm.embed([7]), rows, plan, last=2)
        return lm.head(lm.run(hidden, rows, plan, 2))

    for at in range(len(PROMPT), len(PROMPT) + 12):
        found = step(at)
        booked.append((len(replays), *lm.engine.captured()[:2]))
        logits = wanted.logits([7], TokenRows.chain(at, 1), plan)
        torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    counts = [count for count, *_ in booked]
    assert counts[1] == 6 and counts[-1] == 2
    assert booked[-1][1] == booked[2][1] + 2 and booked[-1][2] > booked[2][2]
    for seed in range(100):  # sets that are tried once do not take the place of a graph
        lm.logits([5], TokenRows.chain(30, 1), fixed_set("random", 4, 0.5, seed))
    lm.engine.capture_ahead(60, 70)  # other buckets
    ahead = lm.engine.captured()
    for at in (25, 60, 70):
        step(at)
        assert len(replays) == 2
    assert lm.engine.captured() == ahead
    assert max(len(held.uses) for held in captured(lm).values()) in range(9, COUNTED)


def test_sizes() -> None:
    sizes.FIRST = 256  # which the fixture takes back
    found = [sizes.bucket(end, 10_000) for end in range(1, 8193)]
    assert found[:256] == [256] * 256 and found == sorted(found) and len(set(found)) == 21
    assert all(
        end <= size <= max(256, end * 1.25 + 1) and size % 8 == 0
        for end, size in enumerate(found, 1)
    )
    assert sizes.bucket(9_990, 9_998) == 9_992
    assert [sizes.row_step(rows) for rows in (1, 16, 17, 65, 128)] == [1, 16, 24, 96, 128]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_the_fused_engine_is_used_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = LM(random_model("llama"), "cuda_graphs")
    (note,) = lm.notes()
    assert lm.engine.name == "fused" and "no CUDA device" in note and "fused is used" in note
    monkeypatch.setenv(EAGER_GRAPHS, "1")  # as the rehearsal of a GPU report does
    lm = LM(random_model("llama"), "cuda_graphs")
    (note,) = lm.notes()
    assert lm.engine.name == "cuda_graphs" and "no graph is captured" in note
    lm.allocate(64)
    contract.check_greedy(lm, make_method("uniform"), length=12)
    for dtype in (torch.bfloat16, torch.float32):
        lm = make_lm(shallow("llama").to(dtype), "cuda_graphs", None)
        kept = lm.engine.name, lm.strict, lm.engine.lenient, lm.cache.capacity > 0
        assert kept == ("cuda_graphs", *[dtype == torch.bfloat16] * 2, True)


def test_a_head_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CudaGraphsEngine, "head", lambda self, hidden: self.fused.head(hidden) * 1.1
    )
    lm = graphs()
    assert lm.engine.name == "fused" and "the head does not give" in " ".join(lm.notes())


def test_parts_of_long_texts_count_as_memory_that_graphs_need() -> None:
    class Small(EagerCapture):
        def free_bytes(self) -> int:
            return 514 << 20

    assert graphs(capture=Small).engine.name == "cuda_graphs"
    lm = graphs(capture=Small, capacity=9000)
    assert lm.engine.name == "fused" and "514 MiB are free on cpu" in " ".join(lm.notes())


@torch.inference_mode()
def test_the_head_of_wide_drafts_is_the_librarys_under_strict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm, rows, own = graphs(), list[int](), products.linear
    vars(lm.engine)["strict"] = True
    monkeypatch.setattr(
        products, "linear", lambda x, *more: [rows.append(len(x)), own(x, *more)][1]
    )
    for verified in (False, True):
        lm.head(torch.ones(20, 32), verified=verified)
    lm.head(torch.ones(16, 32))
    assert rows == [20, 16]


def test_a_graph_that_computes_something_else_is_refused() -> None:
    class Wrong(EagerCapture):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            work()
            return lambda: None

    lm = graphs(capture=Wrong)
    (note,) = lm.notes()
    assert lm.engine.name == "fused" and "does not give what the fused engine gives" in note


@pytest.mark.parametrize(
    "dtype",
    rest_slow([torch.float32, torch.bfloat16, torch.float16], lambda d: d == torch.bfloat16),
    ids=str,
)
def test_no_model_loses_its_graphs_to_rounding(dtype: torch.dtype) -> None:
    """The self-test compares where the state does not hide what a sub-layer with small weights
    adds: near 1 it refuses a quarter of these models in bfloat16.
    """
    for seed, family in enumerate(("llama", "mistral", "qwen2", "qwen3")):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(random_model(family).config).eval().to(dtype)
        lm = LM(model, EAGER)
        lm.allocate(300)
        assert isinstance(lm.engine, CudaGraphsEngine), (family, seed, lm.notes())
        assert {lm.engine.self_test(lm._tables) for _ in range(4)} == {None}


@torch.inference_mode()
def test_the_sets_used_last_keep_their_graphs() -> None:
    sizes.FIRST = 256  # which the fixture takes back
    lm = LM(made("llama", num_hidden_layers=5), EAGER)
    lm.allocate(600)
    lm.prefill([3, 4] * 5)
    (part,) = lm.engine.graphs.values()
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
        return GraphBuffers(4, 8, 8, torch.float32, torch.device("cpu"))

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
    lm = LM(made("llama"), EAGER)
    lm.allocate(60)
    lm.prefill([3, 4] * 5)
    (part,) = lm.engine.graphs.values()
    ends = []
    for _ in range(2):
        lm.logits([5] * 17, TokenRows.chain(10, 17))
        ends.append(part.load(part._metadata, "").buffers.hidden[17:].clone())
    assert torch.equal(*ends)


@torch.inference_mode()
def test_wide_trees_and_drafts_of_8_bits_are_those_of_fused() -> None:
    """A tree with rows of padding behind it, and every sub-layer in 8 bits; with biases."""
    parent = (-1, *((row - 1) // 2 for row in range(1, 18)))
    biased = {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2}
    lms = [LM(made("llama", **biased), engine) for engine in (EAGER, "fused")]
    for rows, plan in here(((TokenRows.tree(12, parent), ""), (TokenRows.chain(12, 1), "int8"))):
        found = []
        for lm in lms:
            lm.allocate(64)
            lm.prefill(PROMPT)
            tokens = [7 * i % 61 for i in range(rows.rows)]
            found.append(lm.logits(tokens, rows, DraftPlan.parse(plan, lm.layers)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert [lm.engine.name for lm in lms] == ["cuda_graphs", "fused"]
