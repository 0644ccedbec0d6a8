"""The kernels of `cuda_graphs.products` and `ops` against sums in the stated order and torch's
operators, in Triton's interpreter or on a GPU.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import here, random_model, rest_slow
from interpreted import DEVICE
from interpreted import kernels as kernels  # a fixture
from test_graphs import EAGER, PROMPT
from torch import Tensor

from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import on_cpu, ops, products
from skipbench.lm.cuda_graphs.products import KIB, Tile, tile_of
from skipbench.lm.llama import rotated, silu_times
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

pytestmark = pytest.mark.usefixtures("kernels")
EPS = 1e-5
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest norm of a difference from float32 arithmetic, as a share: two roundings of an output."""
NO_NORMS = (None, None, 0.0, 0.0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.isfinite().all() and found.shape == wanted.shape
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def padded(x: Tensor, *multiples: int) -> Any:
    """With zeros behind, as NumPy's array; bfloat16 as float32, as the interpreter multiplies."""
    sizes = [-size % of for size, of in zip(x.shape, multiples, strict=True)]
    whole = F.pad(x, (0, sizes[1], 0, sizes[0])).cpu()
    return (whole.float() if x.dtype == torch.bfloat16 else whole).numpy()


def summed(x: Tensor, weight: Tensor, norm: Tensor | None, tile: Tile) -> Tensor:
    """`linear` without a bias in float32 [R, N]: blocks of inputs in order, tile by tile."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    ahead, w = padded(x, products.ROWS, tile.inputs), padded(weight, tile.outputs, tile.inputs)
    v = ahead
    if norm is not None:
        v = padded((x.float() * norm.float()).to(x.dtype), products.ROWS, tile.inputs)
    product = partial(np.matmul, dtype=np.float64)  # as `interpreted` has it
    total = np.zeros((len(v), len(w)), np.float32)
    squares = np.zeros((len(v), tile.inputs), np.float32)
    for k in range(0, v.shape[1], tile.inputs):
        step = slice(k, k + tile.inputs)
        squares += ahead[:, step] * ahead[:, step]
        for r in range(0, len(v), products.ROWS):
            few = slice(r, r + products.ROWS)
            for n in range(0, len(w), tile.outputs):
                of = slice(n, n + tile.outputs)
                total[few, of] += product(v[few, step], w[of, step].T).astype(np.float32)
    if norm is not None:
        means = squares.sum(1, keepdims=True) / np.float32(inputs)
        total *= np.float32(1) / np.sqrt(means + np.float32(EPS))
    return torch.from_numpy(total[:rows, :outputs])


def normed(x: Tensor, norm: Tensor | None) -> Tensor:
    """In float32."""
    return x.float() if norm is None else F.rms_norm(x.float(), norm.shape, norm.float(), EPS)


NOT_ON_A_GPU = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="a GPU adds within a block in its own order"
)


@NOT_ON_A_GPU
@pytest.mark.parametrize("seed", rest_slow(range(8), (0).__eq__))
def test_sums_of_drawn_shapes_are_added_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`linear` and `linear_add` bit for bit, and near torch's."""
    choose, in_one_sum = random.Random(seed), []
    for _ in range(25):
        rows, outputs = choose.randint(1, 40), choose.randint(4, 200)
        inputs, dtype = choose.randint(8, 300), choose.choice(list(TOLERANCES))
        blocks = (16, 32, 64) if outputs < 64 else (64,)
        tile = Tile(choose.choice(blocks), choose.choice((64, 128)), 4, 4)
        monkeypatch.setattr(products, "tile_of", lambda *_, tile=tile: tile)
        x, weight = drawn(rows, inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype)
        bias = drawn(outputs, dtype=dtype) if choose.random() < 0.5 else None
        norm = drawn(inputs, dtype=dtype) if choose.random() < 0.5 else None
        norm = None if dtype == torch.float16 else norm
        behind: Any = 0.0 if bias is None else bias.float()
        wanted = summed(x, weight, norm, tile) + behind
        if norm is None and choose.random() < 0.5:
            hidden = drawn(rows, outputs, dtype=dtype)
            wanted += hidden.float()
            products.linear_add(hidden, x, weight, bias)
            assert torch.equal(hidden, wanted.to(dtype))
            continue
        found = products.linear(x, weight, bias, norm, EPS)
        assert torch.equal(found, wanted.to(dtype)), (rows, outputs, inputs, tile)
        torchs = F.linear(normed(x, norm), weight.float()) + behind
        assert error(found, torchs) < TOLERANCES[dtype]
        if dtype == torch.float32 and inputs > tile.inputs:
            whole = summed(x, weight, norm, tile._replace(inputs=512)) + behind
            in_one_sum.append(torch.equal(found, whole))
    assert sum(in_one_sum) < len(in_one_sum) / 4  # the order shows


HEADS, KV, D = 4, 2, 12
INPUTS, OUTPUTS = 300, (HEADS + 2 * KV) * D


class Operators:
    """Each operator as a function of rows, with weights of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        draw = partial(drawn, dtype=dtype)
        self.x, self.hidden = draw(18, INPUTS), draw(18, OUTPUTS)
        self.weight, self.bias = draw(OUTPUTS, INPUTS) / 16, draw(OUTPUTS)
        self.norm = None if dtype == torch.float16 else draw(INPUTS)
        self.cos, self.sin = draw(18, 1, D), draw(18, 1, D)
        self.cache = draw(40, 2 * KV, D)
        self.target = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:18].to(DEVICE)
        self.weights = self.weight, self.bias, self.norm, EPS

    def linear(self, rows: slice) -> Tensor:
        return products.linear(self.x[rows].clone(), *self.weights)

    def linear_add(self, rows: slice) -> Tensor:
        hidden = self.hidden[rows].clone()
        products.linear_add(hidden, self.x[rows].clone(), self.weight, self.bias)
        return hidden

    def gated(self, rows: slice) -> Tensor:
        return products.gated(self.x[rows].clone(), *self.weights)

    def qkv_rotated(self, rows: slice) -> Tensor:
        """Queries, keys and values [R, H + 2 KV, d]."""
        cache, target = self.cache.clone(), self.target[rows].clone()
        tables = self.cos[rows].clone(), self.sin[rows].clone(), target
        query = products.qkv_rotated(self.x[rows].clone(), *self.weights, *tables, cache, KV)
        return torch.cat((query, cache[target]), 1)

    def rms_norm(self, rows: slice) -> Tensor:
        norm = self.bias.new_ones(INPUTS) / 3 if self.norm is None else self.norm
        return products.rms_norm(self.x[rows].clone(), norm, EPS)


OPERATORS = ("linear", "linear_add", "gated", "qkv_rotated", "rms_norm")


def rows_that_differ(run: Callable[[slice], Tensor], counts: Sequence[int]) -> int:
    """Rows near the ends of tiles in passes of `counts` rows with other bits than alone."""
    alone = {i: run(slice(i, i + 1))[0] for i in (0, 1, 8, 15, 16, 17)}
    passes = [run(slice(n)) for n in counts]
    return sum(not torch.equal(x[i], own) for x in passes for i, own in alone.items() if i < len(x))


@pytest.mark.parametrize("dtype", rest_slow(TOLERANCES, {torch.bfloat16}.__contains__))
@pytest.mark.parametrize("name", OPERATORS)
def test_a_row_has_the_same_bits_in_every_pass(name: str, dtype: torch.dtype) -> None:
    assert rows_that_differ(getattr(Operators(dtype), name), (2, 9, 18)) == 0


@pytest.mark.parametrize("name", rest_slow(OPERATORS[:-1], "linear".__eq__))
def test_a_row_has_the_same_bits_where_the_weight_is_the_left_factor(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "tile_of", lambda *_: Tile(64, 128, 4, 4))
    assert rows_that_differ(getattr(Operators(torch.bfloat16), name), (2, 9, 18)) == 0


@pytest.mark.parametrize("dtype", rest_slow(TOLERANCES, {torch.bfloat16}.__contains__))
def test_the_gate_has_the_bits_of_the_kernels_one_by_one(dtype: torch.dtype) -> None:
    own, every = Operators(dtype), slice(18)
    found, gate_up = own.gated(every), own.linear(every)
    assert torch.equal(found, ops.silu_times(gate_up))
    assert error(found, silu_times(gate_up)) < TOLERANCES[dtype] / 2


SIZES = [((4, 2, 12),), ((3, 1, 64),), ((2, 2, 2),), ((5, 1, 40),)]  # H, KV, d


@pytest.mark.parametrize("size", rest_slow(SIZES, SIZES[:1].__contains__), ids=str)
@pytest.mark.parametrize("dtype", rest_slow(TOLERANCES, {torch.bfloat16}.__contains__))
def test_the_rotation_has_the_bits_of_the_kernels_one_by_one(
    dtype: torch.dtype, size: tuple[int, int, int]
) -> None:
    """The rows of the cache that are no target stay as they are."""
    (heads, kv, d), draw = size, partial(drawn, dtype=dtype)
    x, weight, bias = draw(18, 70), draw((heads + 2 * kv) * d, 70), draw((heads + 2 * kv) * d)
    norm = None if dtype == torch.float16 else draw(70)
    tables, cache = (draw(18, 1, d), draw(18, 1, d)), draw(40, 2 * kv, d)
    target = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:18].to(DEVICE)
    caches = cache.clone(), cache.clone()
    query = products.qkv_rotated(x, weight, bias, norm, EPS, *tables, target, caches[0], kv)
    qkv = products.linear(x, weight, bias, norm, EPS).view(18, -1, d)
    wanted = ops.rotate_and_write(qkv, *tables, target, caches[1], *NO_NORMS)
    assert torch.equal(query, wanted) and torch.equal(*caches)
    both = rotated(qkv, kv, None, *tables)
    cache[target] = torch.cat((both[:, heads:], qkv[:, heads + kv :]), 1)
    assert max(error(query, both[:, :heads]), error(caches[0], cache)) < TOLERANCES[dtype] / 2


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, norm = drawn(5, 576, dtype=dtype) * 3, drawn(576, dtype=dtype)
    found, wanted = products.rms_norm(x, norm, EPS), F.rms_norm(x, norm.shape, norm, EPS)
    assert error(found, wanted) < 1e-6 or (found != wanted).float().mean() < 0.01


def test_tiles_fit_a_device() -> None:
    found = {}
    for limit in (227, 163, 99):
        for shape in ((28672, 4096), (4096, 14336), (4096, 4096), (960, 576)):
            for itemsize in (2, 4):
                found[limit, shape, itemsize] = tile = tile_of(*shape, itemsize, limit * KIB)
                assert tile.shared_bytes(itemsize) <= limit * KIB
    assert found[227, (28672, 4096), 2] == Tile(64, 256, 4, 4)
    assert found[99, (28672, 4096), 2] == Tile(32, 256, 4, 4)
    assert found[227, (4096, 14336), 2] == Tile(32, 512, 8, 4)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_silu_times(dtype: torch.dtype) -> None:
    gate_up = drawn(3, 2 * 1030, dtype=dtype)
    assert error(ops.silu_times(gate_up), silu_times(gate_up)) < TOLERANCES[dtype] / 2


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rotate_and_write(dtype: torch.dtype, normed: bool) -> None:
    heads, kv, d = 6, 2, 12
    qkv, cos, sin = (drawn(3, n, d, dtype=dtype) for n in (heads + 2 * kv, 1, 1))
    cache, target = drawn(20, 2 * kv, d, dtype=dtype), torch.tensor([4, 9, 5], device=DEVICE)
    wanted, norms, own = cache.clone(), None, NO_NORMS
    if normed:
        weights = [drawn(d, dtype=dtype) for _ in range(2)]
        pairs = zip(weights, (1e-5, 1e-3), strict=True)
        norms = [partial(on_cpu.rms_norm, norm=w, eps=e) for w, e in pairs]
        own = (*weights, 1e-5, 1e-3)
    both = rotated(qkv, kv, norms, cos, sin)
    wanted[target] = torch.cat((both[:, heads:], qkv[:, heads + kv :]), 1)
    query = ops.rotate_and_write(qkv, cos, sin, target, cache, *own)
    assert max(error(query, both[:, :heads]), error(cache, wanted)) < TOLERANCES[dtype] / 2


@pytest.mark.slow
@torch.inference_mode()
def test_a_plans_logits_are_those_of_fused() -> None:
    """Skipped sub-layers and 8 bits in graphs, of which no more are captured."""
    lms = [LM(random_model("llama").to(DEVICE), engine) for engine in (EAGER, "fused")]
    plan, *low = (DraftPlan.parse(p, 4) for p in here(("attn:1;mlp:2", "int8")))
    for lm in lms:
        lm.allocate(64)
        lm.prefill(PROMPT * 2)
    part, graphs = lms[0].engine.graphs[DEVICE], []
    for start, of in ((24, plan), (25, plan), (20, DraftPlan.of(4)), *((26, of) for of in low)):
        found, wanted = (lm.logits([5], TokenRows.chain(start, 1), of) for lm in lms)
        assert error(found, wanted) < 1e-4
        graphs.append(part.graphs)
    assert len(set(graphs[:3])) == 1  # those of a variant are captured at its first use
