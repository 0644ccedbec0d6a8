"""Two ranks on this machine's CPU, through gloo, against one process: the same in float32."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, composed_method
from described import made

from skipbench import api
from skipbench.bench.memory import GIB, gpus_needed
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.config.paths import PACKAGE
from skipbench.contrib.ranks import ranks
from skipbench.contrib.ranks.tensor_parallel import shard
from skipbench.decode.loop import generate
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import cost_of, gpu_of
from skipbench.experiments.row import run_cell
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.models.load import load

TINY = PACKAGE / "models" / "tiny"
TWO = Model(path=str(TINY), tensor_parallel_size=2)
SKIPPING = {
    "uniform": [],
    "self-sd": ["method.skip='attn:3,6;mlp:2,6,8'"],
    "swift": ["method.window=8", "method.beta=3", "method.tree=[1,2,2,1]"],
    "clasp": ["method.interval=4"],
    "knapspec": ["method.interval=8", "method.latency=[1e-4,1e-7,1e-4]"],
}


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    ranks.close()


@pytest.fixture(scope="module")
def one() -> LM:
    lm, _ = load(str(TINY))
    lm.allocate(512)
    return lm


def same_output(one: LM, two: LM, name: str, prompt: list[int], tokens: int) -> bool:
    """Whether a method decodes alike, to the draft steps and accepted tokens of every round."""
    found = []
    for lm in (one, two):
        method = composed_method(name, *SKIPPING[name]).factory()(layers=lm.layers)
        out = generate(lm, method, prompt, tokens, eos_ids(lm))
        found.append((out.tokens, out.rounds))
    return found[0] == found[1]


@pytest.mark.slow
def test_two_ranks_compute_as_one(one: LM) -> None:
    two, tokenizer = load(TWO)
    two.allocate(512)
    assert 0.49 < two.weight_bytes / one.weight_bytes < 0.51  # norms are whole
    prompt = tokenizer.encode("Once upon a time there was a dog")
    assert same_output(one, two, "uniform", prompt, 8)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    close(two.float32_logits(prompt), one.float32_logits(prompt))
    at, tree = len(prompt), TokenRows.tree(len(prompt), (-1, 0, 0)).verified()
    found = list[list[torch.Tensor]]()
    for lm in (one, two):
        lm.prefill(prompt)
        alone = lm.score_alone([5, 6, 7], tree)
        lm.cache.keep([at, at + 2])
        found.append([alone, lm.logits([8], TokenRows.chain(at + 2, 1))])
    close(*found)
    with lm.cache.turn(one), pytest.raises(SkipbenchError, match="one request at a time"):
        lm.allocate(1024)
    with pytest.raises(SkipbenchError, match="cache of 512 rows is full"):
        two.logits([5], TokenRows.chain(600, 1))
    assert two.prefill(prompt).isfinite().all()  # the other rank is still there
    assert ranks._ranks is not None
    (other,) = ranks._ranks.started
    other.kill()
    other.wait()
    with pytest.raises(RuntimeError, match="a rank of model"):
        two.prefill(prompt)


def test_the_bias_of_a_product_that_ranks_add_up_is_added_once() -> None:
    whole = made("llama", vocab_size=62, attention_bias=True, mlp_bias=True)
    cpu = torch.device("cpu")
    models = [whole, *(shard(copy.deepcopy(whole), rank, 2, cpu, None) for rank in range(2))]
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        own, *parts = (model.model.layers[0].get_submodule(name) for model in models)
        x = torch.randn(3, own.in_features)
        pairs = zip(x.chunk(2, 1), parts, strict=True)
        products = [F.linear(inputs, part.weight, part.bias) for inputs, part in pairs]
        torch.testing.assert_close(sum(products), own(x))


@pytest.mark.slow
def test_two_ranks_replay_graphs_as_one(one: LM) -> None:
    two, tokenizer = load(TWO)
    prompt, tree = tokenizer.encode("Once upon a time"), TokenRows.tree(4, (-1, 0, 0)).verified()
    graphs = partial(CudaGraphsEngine, capture=EagerCapture)
    three, _ = ranks.load_on_ranks(TWO, graphs, 0)
    three.allocate(100)
    assert three.engine.name == "cuda_graphs", three.notes()
    wanted = []
    for lm in (one, three):
        lm.prefill(prompt[:4])
        wanted.append(lm.logits([5, 6, 7], tree))
    torch.testing.assert_close(*wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(SkipbenchError, match="another model"):
        two.prefill(prompt)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.tensor_parallel_size=4"], r"=4 does not divide heads=6, kv_heads=2 of tiny"),
        (["model.tensor_parallel_size=0"], "tensor_parallel_size=0; wanted"),
        (["model.tensor_parallel_size=2", "engine.strict=true"], r"with engine\.strict=true"),
        (["model.tensor_parallel_size=2", "model.sparsity=wanda-0.5"], "sparsity=wanda"),
    ],
)
def test_what_ranks_cannot_share_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match=said):
        run_cell(compose([*words, "method=uniform", f"results={tmp_path}"]))


def test_torchrun_must_start_as_many_processes() -> None:
    with pytest.raises(SkipbenchError, match=r"torchrun --nproc-per-node 2 -m skipbench"):
        ranks.Ranks({"WORLD_SIZE": "3"}, 2)


def test_a_large_model_is_planned_by_its_ranks() -> None:
    words = ["model=llama3-70b", "dataset=specbench", "method=swift"]
    spread, shared = (
        compose([*words, f"model.tensor_parallel_size={n}", "hardware=slurm-a100"]) for n in (1, 4)
    )
    needed = [gpus_needed(config.model, config.dataset, 79 * GIB) for config in (spread, shared)]
    assert needed == [2, 4]
    costs = [cost_of([config], gpu_of(config.hardware)) for config in (spread, shared)]
    assert costs[0] and costs[1] and costs[1].gpus == 4
    assert costs[1].prompt_h == pytest.approx(costs[0].prompt_h / 4)
    assert "tensor_parallel_size" not in spread.record()["model"]  # type: ignore[operator]
    with pytest.raises(SkipbenchError, match=r"needs 36\.5 GiB; a GPU of 24\.0 GiB"):
        gpus_needed(shared.model, shared.dataset, 24 * GIB)


@pytest.mark.slow
@pytest.mark.parametrize("name", SKIPPING)
def test_methods_that_skip_decode_alike_on_two_ranks(one: LM, name: str) -> None:
    two, tokenizer = load(TWO)
    two.allocate(512)
    rows = compose(["dataset=mini-stories"]).dataset.rows(8)
    for row in rows:
        assert same_output(one, two, name, tokenizer.encode(row.prompt), 32), row.id


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
def test_two_gpus_decode_as_one(engine: str) -> None:
    one, tokenizer = load(replace(TWO, device="cuda", tensor_parallel_size=1), engine)
    two, _ = load(replace(TWO, device="cuda"), engine)
    for lm in (one, two):
        lm.allocate(512)
    assert two.engine.name == engine, two.notes()
    prompt = tokenizer.encode("Once upon a time there was a dog")
    for name in SKIPPING:
        assert same_output(one, two, name, prompt, 64), name


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "itself"])
def test_a_cell_of_two_ranks_is_recorded_once(launcher: str, tmp_path: Path) -> None:
    words = ["method=uniform", "limit=2", "dataset.max_new_tokens=16", "engine.warmup=0"]
    start = [sys.executable, "-m"]
    if launcher == "torchrun":
        start += ["torch.distributed.run", "--nproc-per-node", "2", "-m"]
    command = [*start, "skipbench", *words, "model.tensor_parallel_size=2", f"results={tmp_path}"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("E(Spd)") == 1, done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["tensor_parallel_size"] == 2 and origin["engine"] == "fused, tensor parallel 2"
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [s["lossless"] for s in samples] == ["identical"] * 2
    model = api.load("tiny")
    rows = compose(["dataset=mini-stories"]).dataset.rows(2)
    wanted = [model.generate(row.prompt, 16).tokens for row in rows]
    assert [s["vanilla"]["tokens"] for s in samples] == wanted
