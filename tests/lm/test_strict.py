"""Strict mode on its three engines: the bits of speculative output are vanilla's, and the probe
refuses where they are not.

`tiny` is the embedded model in bfloat16 on this CPU; `padded` runs passes of 16 rows, as on a GPU;
`graphs` is `cuda_graphs` by its operators in plain torch.
"""

import functools
from functools import partial
from typing import Any

import contract
import pytest
import torch
from conftest import here, make_method, random_model, rest_slow, shallow
from fake_cuda import cpu_behind_cuda, lm_on, one_device

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.config.extensions import registered
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.bit_exact import MOST
from skipbench.lm.cuda_graphs import buffers as sizes
from skipbench.lm.cuda_graphs import on_cpu
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.families import FAMILIES
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.fused.weights import Weight
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.methods.vanilla import Vanilla

PROMPT = [41, 22, 24, 53, 42, 16, 9, 35, 44, 0, 29, 47]
LENGTH = 24
BF16 = torch.bfloat16


@functools.cache
def tiny() -> tuple[LM, Any]:
    """Skips the test on a machine where bfloat16 products depend on the rows."""
    config = compose(["model.dtype=bfloat16", "engine.strict=true"])
    try:
        lm, tokenizer = load_model(config.model, config.engine)
    except SkipbenchError as error:
        if "cannot be kept" not in str(error):
            raise
        pytest.skip(str(error))
    lm.allocate(480)
    return lm, tokenizer


def padded(monkeypatch: pytest.MonkeyPatch, family: str = "llama") -> LM:
    """A strict model whose passes are padded on this CPU, too."""
    if "cpu" not in registered("engine"):
        pytest.skip("torch's attention of a CPU gives padded rows other bits, too")
    monkeypatch.setattr(FusedEngine, "pads", True)
    lm = LM(random_model(family), strict=True)
    lm.allocate(160)
    return lm


def graphs(family: str = "llama", dtype: torch.dtype = BF16, layers: int = 4) -> LM:
    engine = partial(CudaGraphsEngine, capture=EagerCapture)
    lm = LM(shallow(family, layers).to(dtype), engine, strict=True)
    lm.allocate(300)
    return lm


def same_bits(lm: LM, method: Method, prompt: list[int]) -> list[int]:
    """Tokens, and every committed key and value of every layer, are those of vanilla, whose tokens
    are returned.
    """
    wanted = generate(lm, Vanilla(), prompt, LENGTH).tokens
    committed = len(prompt) + LENGTH - 1
    assert lm.cache.length == committed
    cache = [rows[:committed].clone() for rows in lm.cache.rows]
    out = generate(lm, method, prompt, LENGTH)
    assert out.tokens == wanted
    assert max(r.nodes for r in out.rounds) > 1, "nothing was verified in several rows"
    for found, alone in zip(lm.cache.rows, cache, strict=True):
        assert torch.equal(found[:committed], alone)
    return wanted


METHODS: dict[str, tuple[str, ...]] = {
    "uniform": ("method.ratio=0.3", "method.stop.threshold=0"),
    "swift": ("method.tree=[4,3,2,1]", "method.window=4", "method.beta=3"),
    "layerskip": ("method.exit_layer=2", "method.stop.threshold=0"),
    "recycling": ("method.nodes=80",),  # more rows than a product takes at once
    "clasp": ("method.interval=2", "method.stop.threshold=0"),
    "prompt-lookup": ("method.ngram=1",),
    "lookahead": (),
    "auto": (),
}
CASES = [
    *(("tiny", "llama", name) for name in here(METHODS)),
    *(("padded", "llama", name) for name in ("uniform", "layerskip", "recycling", "clasp")),
    ("padded", "mistral", "swift"),
    *(("graphs", "llama", name) for name in ("uniform", "layerskip")),
    *(("graphs", "mistral", name) for name in ("swift", "recycling")),
    ("graphs", "qwen3", "clasp"),
    ("graphs", "qwen2", "prompt-lookup"),
]
DAILY = [
    ("tiny", "llama", "swift"),
    ("tiny", "llama", "recycling"),
    ("padded", "llama", "uniform"),
    ("padded", "llama", "recycling"),
    ("graphs", "mistral", "recycling"),
]


@pytest.mark.parametrize(("engine", "family", "name"), rest_slow(CASES, DAILY.__contains__))
def test_methods_give_vanillas_tokens_and_bits(
    engine: str, family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, words = PROMPT, METHODS[name]
    if engine == "tiny":
        lm, tokenizer = tiny()
        prompt = tokenizer("Once there was a dog and").input_ids * 2
        words = ("method.exit_layer=10",) if name == "layerskip" else words
    elif engine == "graphs":
        lm = graphs(family)
    else:
        try:
            lm = padded(monkeypatch, family)
        except NotStrictError as error:
            if family != "mistral":
                raise
            pytest.skip(f"a window takes torch's attention, and on this CPU: {error}")
    wanted = same_bits(lm, make_method(name, *words, layers=lm.layers), prompt)
    assert engine != "padded" or wanted == contract.plain_greedy(lm.model, prompt, LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_no_row_of_a_graph_depends_on_those_beside_it(family: str, dtype: torch.dtype) -> None:
    """Near the borders of parts, and of a bucket."""
    found = compare_rows(graphs(family, dtype), 60, contexts=(5, 60, 125, 250))
    assert found.compared >= 60 and (found.differing, found.first) == (0, "")


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_row_of_a_tree_sees_what_a_chain_would(family: str) -> None:
    """In float64, where the order of additions is far below the bound: strict rows against the
    tree's mask, windows included.
    """
    logits, cached = [], []
    for strict in (False, True):
        model = random_model(family).to(torch.float64)
        lm = LM(model)
        if strict:  # behind the probe's back, which float64 would not pass
            lm.engine = FusedEngine(model, FAMILIES[family], lm.cache, True)
        lm.allocate(64)
        tokens = list(range(3, 25))
        with torch.inference_mode():
            lm.prefill(tokens)
            tree = TokenRows.tree(len(tokens), (-1, 0, 0, 2, 1, 4, 2, 3)).verified()
            logits.append(lm.logits([5, 6, 7, 8, 9, 10, 11, 12], tree))
            cached.append(lm.cache.rows[1][: tree.end].clone())
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cached[1], cached[0], rtol=1e-9, atol=1e-9)


def test_a_full_cache_holds_the_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that stand for no token need no room in the cache."""
    lm = padded(monkeypatch)
    last = lm.cache.capacity - 1
    lm.prefill([3] * last)
    assert lm.logits([5], TokenRows.chain(last, 1).verified()).shape[0] == 1
    with pytest.raises(SkipbenchError, match="a pass needs 161"):
        lm.logits([5, 6], TokenRows.chain(last, 2).verified())


def test_on_a_gpu_strict_pads_by_itself_and_gives_vanillas_tokens() -> None:
    """On tensors that say `cuda`; without the proof, which takes long there."""

    def unproven(model: Any, family: Any, cache: Any, **_: Any) -> FusedEngine:
        return FusedEngine(model, family, cache, True)

    wanted = contract.plain_greedy(random_model("llama"), PROMPT, 6)
    method = make_method("uniform", "method.tree=[4,3,2,1]", "method.stop.threshold=0")
    with cpu_behind_cuda() as journal:
        lm = lm_on(one_device, unproven, random_model("llama"))
        journal.clear()
        assert lm.engine.padded_rows == MOST
        assert generate(lm, method, PROMPT, 6).tokens == wanted
        assert not journal.lines("kernel", "pageable", "order")


def by_rows(linear: Any) -> Any:
    return lambda x, *rest: linear(x, *rest) * (1 + 2**-7 * (len(x) > 4))


def by_bucket(attend: Any) -> Any:
    return lambda *a: attend(*a) * (1 + 2**-6 * (a[5] > 64))  # cache rows


def by_neighbours(call: Any) -> Any:
    return lambda self, x, *rest: call(self, x, *rest) + 1e-4 * x.abs().sum()


@pytest.mark.parametrize(
    ("of", "name", "planted"),
    [
        (on_cpu, "linear", by_rows),
        (on_cpu, "attend_splits", by_bucket),
        (Weight, "__call__", by_neighbours),  # which padding cannot mend
    ],
)
def test_a_kernel_that_depends_on_other_rows_is_refused(
    of: Any, name: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "FIRST", 32)  # the longest of the proof's contexts is 57 here
    monkeypatch.setattr(of, name, planted(getattr(of, name)))
    with pytest.raises(NotStrictError, match=r"engine.strict=true cannot be kept on cpu"):
        if of is on_cpu:
            graphs(layers=1)
        padded(monkeypatch)
