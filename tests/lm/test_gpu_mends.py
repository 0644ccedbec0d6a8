"""What a GPU would break, as far as a machine without one can show it: calls in the form that every
torch takes, and errors of a driver.
"""

import contextlib
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import contract
import pytest
import torch
from conftest import make_method, random_model
from fake_cuda import fake_cuda

from scripts import bench_gpu
from skipbench.config.catalog import shape_of
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.draft_plan import DraftPlan
from skipbench.experiments.row import run_cell
from skipbench.lm.cuda_graphs import buffers as sizes
from skipbench.lm.cuda_graphs import capture, engine
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.metrics.formulas import expected_speedup
from skipbench.profile.roofline import QUEUED, memory_rates, read_bandwidth
from skipbench.skipset import planted_set

PROMPT = [41, 22, 24, 53, 42, 16, 9, 35, 44, 0, 29, 47]


def graphs(capture: type[EagerCapture], **settings: Any) -> LM:
    lm = LM(random_model("llama"), partial(CudaGraphsEngine, capture=capture, **settings))
    lm.allocate(300)
    return lm


@pytest.mark.parametrize(
    "text", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"]
)
def test_a_driver_without_memory_for_a_graph_leaves_the_fused_engine(text: str) -> None:
    class Full(EagerCapture):
        left = 60

        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            self.left -= 1
            if self.left < 0:
                raise torch.AcceleratorError(text)
            return super().capture(work)

    lm = graphs(Full)
    tokens = generate(lm, make_method("uniform"), PROMPT, 20).tokens
    assert tokens == contract.plain_greedy(lm.model, PROMPT, 20)
    assert "no memory left" in " ".join(lm.notes())


def test_graphs_of_the_rows_that_were_met_are_captured_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "FIRST", 32)
    lm, method = graphs(EagerCapture), make_method("uniform", "method.stop.threshold=0")
    lm.engine.capture_ahead(0, 300)  # nothing was met
    assert generate(lm, method, PROMPT, 20).rounds
    before = lm.engine.captured()
    lm.engine.capture_ahead(0, 300)
    ahead = lm.engine.captured()
    assert ahead.graphs > before.graphs and ahead.seconds > before.seconds
    tokens = generate(lm, method, PROMPT, 60).tokens  # passes five more buckets
    assert lm.engine.captured() == ahead
    assert tokens == contract.plain_greedy(lm.model, PROMPT, 60)


def test_a_run_captures_ahead_of_its_timed_rounds_and_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = partial(CudaGraphsEngine, capture=EagerCapture)
    monkeypatch.setattr(engine, "unsupported_reason", lambda _: None)
    monkeypatch.setattr(engine, "CudaGraphsEngine", eager)
    monkeypatch.setattr(sizes, "FIRST", 32)
    words = ["engine=cuda_graphs", "method=uniform", "limit=1", "dataset.max_new_tokens=16"]
    run_cell(compose([*words, f"results={tmp_path}"]))
    (log,) = tmp_path.glob("runs/*/*/run.log")
    assert re.search(r"[1-9]\d* CUDA graphs captured in [\d.]+ s before", log.read_text())


def test_another_error_of_a_capture_is_not_taken_for_one_of_memory() -> None:
    assert not capture.out_of_memory(torch.AcceleratorError("CUDA error: invalid argument"))


def test_bars_of_the_gpu_benchmark_do_not_contradict_each_other() -> None:
    """An engine that reads each byte once at the whole bandwidth meets them, with the acceptance
    that the bar on it asks for; a decode is short by default, and no bar is above what bytes allow.
    """
    shape = shape_of("llama3-8b")
    share = bench_gpu.byte_share(shape, 2048, planted_set(shape.layers, 0.5, 0))
    args = bench_gpu.parser().parse_args([])
    assert args.minutes <= 2 and 0.53 < share < bench_gpu.draft_bar(args) < share + 0.011
    assert bench_gpu.byte_share(shape, 0, DraftPlan.of(32)) == 1.0
    sign, alpha, _ = bench_gpu.BARS["alpha of the planted set, K=8"]
    assert sign == ">=" and alpha is not None
    reached = expected_speedup(1 + 8 * alpha, alpha, share, 1.0)
    bar = bench_gpu.NEAR * expected_speedup(1 + 8 * alpha, alpha, share + 0.01, bench_gpu.VERIFY)
    assert reached >= bar and bench_gpu.BARS["speedup of the planted set, K=8"][1] is None


def test_two_texts_warm_the_allocator_up() -> None:
    """As on a GPU: the first text captures, which empties the allocator, and the second text's
    prompt allocates again.
    """
    made = iter([9, 3, *[0] * 1000])
    stats = {"num_device_alloc": 0, "reserved_bytes.all.current": 5}

    def decode() -> int:
        stats["num_device_alloc"] += next(made)
        return 7

    assert bench_gpu.allocations(decode, 0.0, stats.copy) == (7, 0, 0)


def test_memory_of_a_gpu_is_timed_by_events_over_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is 1 ms behind the one before it here; the host's clock plays no part."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    with fake_cuda():
        rates = memory_rates(torch.device("cuda", 0))
        assert read_bandwidth(torch.device("cuda", 0), 1 << 20) == rates.read
    queued = 1e3 * QUEUED
    assert rates.read == queued * (4 << 30) and rates.copy == 2 * rates.read


ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout of git")
def test_what_a_gpu_measures_is_not_ignored() -> None:
    asked = ["git", "-C", str(ROOT), "check-ignore", "results/gpu/a/report.json", "results/runs/a"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["results/runs/a"]


def test_streams_are_checked_by_a_tool_that_sees_streams() -> None:
    """`racecheck` sees the shared memory of one kernel alone."""
    text = (ROOT / "docs" / "gpu.md").read_text()
    assert "TORCH_CUDA_SANITIZER=1" in text and "racecheck" not in text
