"""`engine=cuda_graphs` over recorders that re-execute on the CPU: what graphs would compute, token
by token across bucket borders.

What a GPU adds, capturing, is in test_graphs_gpu.py. A frozen length corrupts K/V without failing
anywhere, so it is planted here.
"""

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import contract
import pytest
import torch
from conftest import here, make_method, random_lm, random_model, rest_slow
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from skipbench.config.architecture import Shape
from skipbench.config.catalog import shape_of
from skipbench.config.compose import compose
from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.experiments.row import run_cell
from skipbench.lm.cuda_graphs import buffers as sizes
from skipbench.lm.cuda_graphs.buffers import NUMBERS, GraphBuffers
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.device import COUNTED, Graph, Key
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.engines import EAGER_GRAPHS
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.models.random_weights import planted_model
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore
from skipbench.skipset import fixed_set, planted_set

# behind which the random models do not fall into repeating one token, which would hide a wrong
# length
PROMPTS = {
    "llama": [41, 22, 24, 53, 42, 16, 9, 35, 44, 0, 29, 47],
    "mistral": [45, 7, 35, 21, 52, 59, 34, 13, 51, 38, 35, 37],
}
PROMPT = PROMPTS["llama"]
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


def graphs(family: str = "llama", capacity: int = 300) -> LM:
    lm = LM(random_model(family), partial(CudaGraphsEngine, capture=EagerCapture))
    lm.allocate(capacity)
    return lm


def text(lm: LM, method: Method, length: int = 100) -> list[int]:
    return generate(lm, method, PROMPTS[lm.config.model_type], length).tokens


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.slow
def test_tokens_are_those_of_fused_at_every_length(family: str) -> None:
    lm, fused = graphs(family), random_lm(family, "fused")
    wanted = text(fused, make_method("vanilla"))
    assert len(set(wanted[60:])) > 10
    for name, overrides in METHODS.items():
        assert text(lm, make_method(name, *overrides)) == wanted, name
    assert {key.size for key in captured(lm)} >= {32, 40, 48, 56, 64, 80, 96, 112}


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
    for skip in (
        None,
        *(DraftPlan.parse(p, 4) for p in here(("attn:1,2;mlp:0", "int8;mlp:0"))),
    ):
        for token_rows in spans:
            lm.prefill(text)
            fused.prefill(text)
            tokens = [7 * i % 61 for i in range(token_rows.rows)]
            hidden_states: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
            found, wanted = (
                m.logits(tokens, token_rows, skip, t)
                for m, t in zip((lm, fused), hidden_states, strict=True)
            )
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            for got, reference in zip(*hidden_states, strict=True):
                torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_recording_changes_nothing_in_the_cache_and_a_new_set_records_nothing() -> None:
    lm = graphs()
    lm.prefill(PROMPT * 3)
    before = [rows[:36].clone() for rows in lm.cache.rows]
    for rows in (1, 9, 20):
        lm.logits([5] * rows, TokenRows.chain(36, rows))
    for rows_before, rows_now in zip(before, lm.cache.rows, strict=True):
        assert torch.equal(rows_before, rows_now[:36])
    known = set(captured(lm))
    for seed in range(5):
        lm.logits([5], TokenRows.chain(36, 1), fixed_set("random", 4, 0.5, seed))
    assert set(captured(lm)) == known


@torch.inference_mode()
def test_a_pass_that_skips_nothing_is_one_replay() -> None:
    lm = graphs()
    lm.prefill(PROMPT)
    rows = TokenRows.chain(len(PROMPT), 3)
    wanted = lm.logits([5, 6, 7], rows)
    held = captured(lm)[Key(3, 32, True, "")]

    def refused() -> None:
        raise AssertionError("replayed besides the whole pass")

    held.sublayers.update(dict.fromkeys(held.sublayers, Graph(refused, refused)))
    for skip in (None, DraftPlan.of(4)):
        assert torch.equal(lm.logits([5, 6, 7], rows, skip), wanted)
    for arguments in ({"plan": DraftPlan.parse("mlp:1", 4)}, {"hidden_states": []}):
        with pytest.raises(AssertionError, match="besides"):
            lm.logits([5, 6, 7], rows, **arguments)


@torch.inference_mode()
def test_a_set_that_is_used_often_is_one_replay() -> None:
    """Also where a draft step is launched in two parts; few sets are kept, captures are booked."""
    replays = list[int]()

    class Counting(EagerCapture):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            replay = super().capture(work)
            return lambda: [replays.append(1), replay()][1]

    lm = LM(random_model("llama"), partial(CudaGraphsEngine, capture=Counting))
    lm.allocate(300)
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
        torch.testing.assert_close(
            found, wanted.logits([7], TokenRows.chain(at, 1), plan), rtol=1e-4, atol=1e-4
        )
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


@pytest.mark.slow
def test_a_larger_cache_is_recorded_anew() -> None:
    lm, method = graphs(capacity=150), make_method("uniform")
    wanted = text(lm, method)
    lm.allocate(400)
    assert text(lm, method) == wanted


def frozen_length(load: Callable[..., None], buffers: GraphBuffers, token_rows: TokenRows) -> None:
    """A graph replays the length that it was captured with."""
    if token_rows.start == 0 or getattr(buffers, "loads", 0) < 3:
        load(buffers, token_rows)
    buffers.loads = getattr(buffers, "loads", 0) + 1  # type: ignore[attr-defined]  # the fault's own count


def old_mask(load: Callable[..., None], buffers: GraphBuffers, token_rows: TokenRows) -> None:
    """Rows are written where they belong, and see no more than the pass before saw."""
    load(buffers, token_rows)
    buffers.bounds[1] -= int(token_rows.context_len > 20)


def old_shape(load: Callable[..., None], buffers: GraphBuffers, token_rows: TokenRows) -> None:
    """A tree runs with what the buffers held before it, a chain."""
    load(buffers, token_rows)
    buffers._packed[8 * NUMBERS :].copy_(buffers._chain[8 * NUMBERS :])


@pytest.mark.parametrize(
    "fault", rest_slow([frozen_length, old_mask, old_shape], lambda fault: fault is frozen_length)
)
def test_a_planted_fault_is_caught(
    fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, wanted = graphs(), contract.plain_greedy(random_model("llama"), PROMPT, 100)
    methods = [make_method(name, *METHODS[name]) for name in ("vanilla", "swift")]
    assert [text(lm, method) for method in methods] == [wanted, wanted]
    monkeypatch.setattr(GraphBuffers, "load", partial_method(fault, GraphBuffers.load))
    assert any(text(lm, method) != wanted for method in methods)


def partial_method(fault: Callable[..., None], load: Callable[..., None]) -> Callable[..., None]:
    return lambda self, token_rows: fault(load, self, token_rows)


def test_a_bucket_too_short_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from skipbench.lm.cuda_graphs import device as module

    lm, wanted = graphs(), contract.plain_greedy(random_model("llama"), PROMPT, 100)
    monkeypatch.setattr(module, "bucket", lambda end, total: 64)
    assert text(lm, make_method("vanilla")) != wanted


def test_sizes() -> None:
    # the fixture puts 32 there for the other tests, and takes back what is set here
    sizes.FIRST = 256
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


def test_a_graph_that_computes_something_else_is_refused() -> None:
    class Wrong(EagerCapture):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            work()
            return lambda: None

    lm = LM(random_model("llama"), partial(CudaGraphsEngine, capture=Wrong))
    lm.allocate(200)
    assert lm.engine.name == "fused" and "does not give what the fused engine gives" in " ".join(
        lm.notes()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_model_loses_its_graphs_to_rounding(dtype: torch.dtype) -> None:
    """The self-test compares where the state does not hide what a sub-layer with small weights
    adds: near 1 it refuses a quarter of these models in bfloat16.
    """
    seeds = range(2 if dtype == torch.bfloat16 else 1)  # the coarsest of the three
    for family, seed in itertools.product(("llama", "mistral", "qwen2", "qwen3"), seeds):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(random_model(family).config).eval().to(dtype)
        lm = LM(model, partial(CudaGraphsEngine, capture=EagerCapture))
        lm.allocate(300)
        assert isinstance(lm.engine, CudaGraphsEngine), (family, seed, lm.notes())
        assert {lm.engine.self_test(lm._tables) for _ in range(20)} == {None}


def test_no_sharp_attention_loses_its_graphs_to_rounding() -> None:
    """Weights of queries and keys up to 4: one state in 10 alone is off by more than 2 %."""
    torch.manual_seed(0)
    shape = Shape(1, 128, 4, 2, 128, 96, 2048)
    model = planted_model(shape, DraftPlan.of(1), 0, torch.bfloat16, "cpu", 64)
    lm = LM(model, partial(CudaGraphsEngine, capture=EagerCapture))
    lm.allocate(512)
    assert isinstance(lm.engine, CudaGraphsEngine)
    assert {lm.engine.self_test(lm._tables) for _ in range(40)} == {None}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_run_records_the_engine_that_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "engine=cuda_graphs",
        "method=uniform",
        "limit=1",
        "engine.warmup=0",
        "dataset.max_new_tokens=6",
    ]
    run_cell(compose([*words, f"results={tmp_path}"]))
    (folder,) = run_folders(tmp_path)
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["engine"] == "fused" and "no CUDA device" in origin["notes"][-1]
    printed, said = capsys.readouterr(), "engine fused in place of cuda_graphs"
    assert origin["notes"][-1] in printed.err
    lines = printed.out, (folder / "table.md").read_text(), markdown(row_table([read_run(folder)]))
    for text in lines:  # the first line of each
        assert said in text.partition("\n")[0]
    assert lines[-1].count(said) == 2  # and beside the method


def test_what_shows_late_joins_the_provenance(tmp_path: Path) -> None:
    store = RunStore(tmp_path, {"a": 1}, Provenance(engine="cuda_graphs"))
    store.amend(notes=["no memory"])
    store.close()
    assert read_run(tmp_path).provenance == Provenance(engine="cuda_graphs", notes=["no memory"])


@pytest.mark.slow  # `make gpu OPTIONS=--rehearse` runs it, too
def test_the_gpu_benchmark_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure is printed, and none is judged where there is no GPU."""
    from scripts import bench_gpu

    words = (
        "--device cpu --shape 6x64 --dtype float32 --context 40 --tokens 6 --long 12 "
        "--minutes 0 --runs 1 --words 200"
    )
    bench_gpu.main(words.split())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["figure"] for line in lines} == set(bench_gpu.BARS)
    assert all(line["met"] is None and line["engine"] == "cuda_graphs" for line in lines)
    values = {line["figure"]: line["value"] for line in lines}
    assert values.pop("device allocations in a long decode") is None
    bars = {line["figure"]: line["bar"] for line in lines}
    shape = shape_of("6x64")
    share = bench_gpu.byte_share(shape, 40, planted_set(shape.layers, 0.5, 0))
    assert bars["draft half skipped / full step"] == f"<= {share + 0.01:.4g}"
    assert values["graphs tokens equal fused's"] == 1.0 and None not in values.values()


def test_the_gpu_benchmark_takes_texts_that_part_at_a_tie_for_equal() -> None:
    """In bfloat16: the second choice where it is nearest to the first, and the last one there."""
    from scripts import bench_gpu

    lm, prompt = LM(random_model("llama").to(torch.bfloat16), "fused"), [5, 17, 3, 44, 9]
    lm.allocate(64)
    own = generate(lm, Vanilla(), prompt, 48).tokens
    wide = lm.float32_logits(prompt + own[:-1], len(own))
    assert wide is not None
    rest = wide.scatter(-1, torch.tensor(own)[:, None], -math.inf)
    gaps = wide.gather(-1, torch.tensor(own)[:, None])[:, 0] - rest.amax(-1)
    at = int(gaps.abs().argmin())
    tie, wrong = (
        bench_gpu.identity(lm, prompt, own, [*own[:at], token, *own[at + 1 :]])
        for token in (int(rest[at].argmax()), int(wide[at].argmin()))
    )
    assert tie.value == 1.0 and tie.note.startswith(f"{at} of 48") and "tie, logits" in tie.note
    assert wrong.value == at / 48 and "wrong, logits" in wrong.note
    assert bench_gpu.identity(lm, prompt, own, own).value == 1.0


class Reads(TorchDispatchMode):
    """Counts how often the host looks at one number of a tensor before the last step begins."""

    count = before = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        if func is torch.ops.aten.embedding.default:
            self.before = self.count
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("threshold", "temperature", "reads"), [(0.0, 0.0, 0), (0.0, 0.8, 0), (1e-9, 0.0, 5)]
)
@torch.no_grad()
def test_a_chain_reads_only_what_its_stop_rule_needs(
    threshold: float, temperature: float, reads: int
) -> None:
    """Six steps: a confidence before each but the first, and the tokens at the end."""
    # In float32 on a CPU fused's norm, which the head uses, takes a number through Python.
    lm = LM(
        random_model("llama").to(torch.bfloat16), partial(CudaGraphsEngine, capture=EagerCapture)
    )
    lm.allocate(100)
    method = FixedSet("chain", DraftPlan.parse("attn:1;mlp:2", 4), Fixed(6, threshold))
    state = State(lm, PROMPT, Sampler(temperature), 64, frozenset())
    method.begin(state)
    lm.prefill(PROMPT[:-1])
    method.propose(state, 6)
    state.sampler.uniform = lambda: 0.5  # type: ignore[method-assign]  # the host's own generator is read too
    with Reads() as seen:
        method.propose(state, 6)
    assert seen.before == reads
