"""Triton kernels of `cuda_graphs.ops` against torch's operators, in Triton's interpreter or on a
GPU.
"""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import contract
import pytest
import torch
from conftest import here, make_method, random_model
from interpreted import DEVICE
from test_graphs import PROMPTS
from test_graphs import short_buckets as short_buckets  # a fixture
from torch import Tensor

from skipbench.contrib.lowbit import tiles
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import SINKS, DraftPlan
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.attention import masked
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.device import PREPARE_INPUTS
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.llama import rotated, silu_times
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest norm of a difference from float32 arithmetic, as a share: one rounding of an output."""
NO_NORMS = (None, None, 0.0, 0.0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.isfinite().all()
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


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
        norms = tuple(
            type("Norm", (), {"weight": w, "variance_epsilon": e})
            for w, e in zip(weights, (1e-5, 1e-3), strict=True)
        )
        own = (*weights, 1e-5, 1e-3)
    both = rotated(qkv, kv, norms, cos, sin)
    wanted[target] = torch.cat((both[:, heads:], qkv[:, heads + kv :]), 1)
    query = ops.rotate_and_write(qkv, cos, sin, target, cache, *own)
    assert max(error(query, both[:, :heads]), error(cache, wanted)) < TOLERANCES[dtype] / 2


ROWS = {
    "chain": TokenRows.chain(33, 1),
    "tree": TokenRows.tree(40, (-1, 0, 0, 1, 1, 4)),
    "branches": TokenRows.branches(36, 20, 3, 2),
    "short": TokenRows.chain(47, 5),  # its last row is behind the bucket, as padding may be
}


@pytest.mark.parametrize("rows", ROWS)
def test_prepare(rows: str) -> None:
    made = []
    for triton in (False, True):
        buffers = GraphBuffers(len(ROWS[rows].positions), 8, 6, 2, torch.float16, DEVICE)
        buffers.load(ROWS[rows])
        torch.manual_seed(0)
        tables = drawn(45, 1, 6, dtype=torch.float16), drawn(45, 1, 6, dtype=torch.float16)
        columns = torch.arange(60, device=DEVICE)
        buffers.input_preparation(48, (None, 12), columns, *tables, triton)()
        masks = [buffers.masks[48, window] for window in (None, 12)]
        made.append([buffers.target, buffers.used, buffers.cos, buffers.sin, *masks])
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


CASES = [  # rows, queries a key, keys, d, rows before, bucket, parts, norms
    (1, 4, 2, 16, 1, 64, 3, False),
    (1, 3, 2, 12, 130, 256, 4, True),
    (9, 3, 1, 40, 200, 256, 3, False),
    (32, 3, 1, 16, 70, 88, 2, False),  # its last rows are behind the bucket
    (5, 1, 2, 128, 63, 72, 1, True),
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(c, d) for c in CASES for d in TOLERANCES if c[0] < 32 or d == torch.bfloat16],
    ids=str,
)
def test_attend(case: Any, dtype: torch.dtype) -> None:
    """Rotation, writing, and attention of a random tree, over a cache with rows that are none."""
    count, group, kv, d, start, size, splits, normed = case
    heads, window = group * kv, start // 2 + 9
    parent = (-1, *(int(torch.randint(-1, i, ())) for i in range(1, count)))
    buffers = GraphBuffers(count, 8, d, group, dtype, DEVICE)
    buffers.load(TokenRows.tree(start, parent))
    tables = drawn(size + 40, 1, d, dtype=dtype), drawn(size + 40, 1, d, dtype=dtype)
    columns = torch.arange(size + 40, device=DEVICE)
    buffers.input_preparation(size, (window,), columns, *tables)()
    mask, cos, sin = buffers.masks[size, window], buffers.cos, buffers.sin
    qkv = drawn(count, heads + 2 * kv, d, dtype=dtype)
    cache = drawn(size + 40, 2 * kv, d, dtype=dtype)
    wanted_cache = cache.clone()
    cache[start:] = torch.nan  # nothing but the pass's own rows is there
    weights = [drawn(d, dtype=dtype) for _ in range(2)]
    norms = (*weights, 1e-5, 1e-3) if normed else NO_NORMS
    query = ops.rotate_and_write(qkv, cos, sin, buffers.target, wanted_cache, *norms)
    wide = [t.float() for t in (query, wanted_cache[:size], mask)]
    wanted = masked(wide[0], wide[1], buffers, wide[2], 0.3)
    out = ops.attend(
        qkv, cos, sin, buffers.target, buffers.bounds, mask, cache, *norms, 0.3, splits
    )
    real = min(count, size - start)
    assert error(out, out) == 0 and error(out[:real], wanted[:real]) < TOLERANCES[dtype]
    end = start + count
    assert torch.equal(cache[start:end], wanted_cache[start:end]) and cache[end:].isnan().all()


@pytest.mark.parametrize("window", [9, 60, 69])
def test_attend_in_a_window_reads_no_hidden_row(window: int) -> None:
    """The result is that over the rows that are seen alone, in one piece."""
    heads, kv, d, start, size = 6, 2, 16, 77, 96
    tables = drawn(size, 1, d), drawn(size, 1, d)
    columns = torch.arange(size, device=DEVICE)
    metadata = AttentionMetadata(
        TokenRows.chain(start, 1), RotaryCache({}, torch.float32, DEVICE, size), None, window
    )
    qkv, cache = drawn(1, heads + 2 * kv, d), drawn(size, 2 * kv, d)
    hidden = slice(SINKS, start + 1 - window)
    seen = torch.cat((cache[:SINKS], cache[start + 1 - window : start]))
    cache[hidden] = torch.nan
    outs = []
    for rows, of, hides in ((start, cache, metadata.hidden), (len(seen), seen, 0)):
        buffers = GraphBuffers(1, 8, d, heads // kv, torch.float32, DEVICE)
        buffers.load(TokenRows.chain(start, 1), hides)
        buffers.input_preparation(size, (None,), columns, *tables, triton=True)()
        mask = buffers.masks[size, None]
        assert bool((mask[:, hidden] < 0).all()) == (hides > 0)
        buffers.bounds[0] = rows
        buffers.target.fill_(rows)
        if not hides:
            mask = torch.zeros_like(mask)
            of = torch.cat((seen, drawn(size - rows, 2 * kv, d)))
        outs.append(
            ops.attend(
                qkv, buffers.cos, buffers.sin, buffers.target, buffers.bounds, mask, of, *NO_NORMS,
                0.3, 2,
            )
        )  # fmt: skip
    assert error(*outs) < TOLERANCES[torch.float32]


class Timed(EagerCapture):
    """Each is faster than the one before."""

    time_s = 1.0

    def seconds(self, replay: Any) -> float:
        self.time_s /= 2
        return self.time_s


@torch.inference_mode()
def test_the_kernels_are_compared_with_torchs_and_taken_where_they_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops, "at_hand", lambda device: True)
    lm = LM(random_model("llama").to(DEVICE), partial(CudaGraphsEngine, capture=Timed))
    lm.allocate(100)
    lm.prefill(PROMPTS["llama"])
    part = lm.engine.parts[DEVICE]  # type: ignore[attr-defined]  # an engine of graphs
    part._load(lm.metadata(TokenRows.chain(12, 2)))
    part._replays[PREPARE_INPUTS]()
    assert part._fastest_backend(part._buffers[2], 32, False) == "triton" and not part.discarded
    attend = ops.attend
    monkeypatch.setattr(ops, "attend", lambda *a: attend(*a[:-2], 2 * a[-2], 0))  # the scale
    assert part._fastest_backend(part._buffers[2], 32, False) != "triton"
    assert "near that of `masked`" in part.discarded["triton"]


@torch.inference_mode()
def test_a_plans_logits_are_those_of_fused() -> None:
    """A window, 8 bits and skipped sub-layers in graphs, of which no more are captured."""
    engine = partial(CudaGraphsEngine, capture=EagerCapture, backend="triton")
    lms = [LM(random_model("llama").to(DEVICE), e) for e in (engine, "fused")]
    plan, *low = (DraftPlan.parse(p, 4) for p in here(("window:6;attn:1;mlp:2", "int8:all")))
    for lm in lms:
        lm.allocate(64)
        lm.prefill(PROMPTS["llama"] * 2)
    part, graphs = lms[0].engine.parts[DEVICE], []  # type: ignore[attr-defined]  # as above
    for start, of in ((24, plan), (25, plan), (20, DraftPlan.of(4)), *((26, of) for of in low)):
        found, wanted = (lm.logits([5], TokenRows.chain(start, 1), of) for lm in lms)
        assert error(found, wanted) < 1e-4
        assert part.buffers is not None and part.buffers._hidden == (start - 9) * bool(of.window)
        graphs.append(part.graphs)
    assert len(set(graphs)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_tokens_are_those_of_the_plain_model(family: str) -> None:
    """float32, rows of a chain and of a tree, over two buckets, and in Mistral with a window."""
    engine = partial(CudaGraphsEngine, capture=EagerCapture, backend="triton")
    lm = LM(random_model(family).to(DEVICE), engine)
    lm.allocate(100)
    part = lm.engine.parts[DEVICE]  # type: ignore[attr-defined]  # an engine of graphs
    assert part.triton and not part.discarded
    prompt = PROMPTS[family] * 2
    wanted = contract.plain_greedy(lm.model, prompt, 10)
    tree = FixedSet("tree", DraftPlan.parse("attn:1;mlp:2", 4), Fixed(2, 0.0), (2, 2, 1, 1))
    for method in (make_method("vanilla"), tree):
        assert generate(lm, method, prompt, 10).tokens == wanted, method.name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(dtype: str) -> None:
    """The interpreter runs code that the compiler refuses."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "compile_kernels.py"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    words = [sys.executable, str(script), "90", dtype]
    told = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    assert "attend_parts" in told and not re.search(r"[1-9]\d* bytes spill", told), told
    found = {n: int(b) for n, b in re.findall(r"int8_linear (.*): (\d+) bytes shared", told)}
    if dtype == "bf16":
        assert found == {f"{t.outputs} x {t.inputs}": t.shared_bytes for t in tiles.HALF}
    assert max(found.values()) <= 99 << 10  # of an RTX A6000
