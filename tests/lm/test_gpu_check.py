"""`doctor --gpu`: every check runs on a CPU, where nothing is judged that only a GPU can show."""

import json
import warnings

import pytest
import torch
from conftest import Command

from skipbench.bench import gpu_check
from skipbench.bench.gpu_check import ON_CPU as SMALL
from skipbench.bench.gpu_check import Sizes, gpu_findings
from skipbench.config.catalog import known_hardware
from skipbench.lm.model import LM


@pytest.mark.slow  # `make gpu` is rehearsed by .ci/run
def test_every_check_runs_and_none_fails(skipbench: Command) -> None:
    done = skipbench("doctor", "--gpu", "--rehearse", "--json")
    assert done.returncode == 0
    found = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [f"{line['kind']} {line['finding']}" for line in found]
    assert not [line for line in lines if line.startswith("fault")], lines
    wanted = [
        "attention, engine=fused bfloat16",
        "12 tokens of vanilla, chain, tree, clasp",
        "strict, bfloat16: ",
        "strict, float32: ",
        "the float32 check of ties at 600",
        "attention masked: one row ",
        "the roofline",
        "host reads of a tree",
    ]
    for what in wanted:
        assert any(what in line for line in lines), (what, lines)
    assert any("no CUDA device" in line for line in lines)  # why graphs are not used


def test_a_failing_check_is_a_finding_and_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no kernel image is available\nfor execution on the device")

    monkeypatch.setattr(gpu_check, "_kernels", fails)
    monkeypatch.setattr(gpu_check, "_time", fails)
    lines = list(gpu_findings(torch.device("cpu"), known_hardware(), SMALL))
    faults = [line for line in lines if line.startswith("fault")]
    assert faults == [
        f"fault    {check}: RuntimeError: no kernel image is available"
        for check in ("attention kernels", "time per pass")
    ]
    assert any(line.startswith("ok       engine=fused") for line in lines)


def test_one_line_that_fails_leaves_the_others_of_its_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one engine of three, one dtype of nine, or one method of two would fail on a GPU."""
    made = gpu_check._lm

    def fails(
        device: torch.device, sizes: Sizes, dtype: torch.dtype, engine: str, *rest: int
    ) -> LM:
        if engine == "fused" and dtype == torch.float32:
            raise RuntimeError("view size is not compatible")
        return made(device, sizes, dtype, engine, *rest)

    monkeypatch.setattr(gpu_check, "_lm", fails)
    lines = [*gpu_check._kernels(torch.device("cpu"), SMALL)]
    lines += gpu_check._identity(torch.device("cpu"), SMALL)
    faults = [line for line in lines if line.startswith("fault")]
    assert [line.partition(": ")[0].split()[1:] for line in faults] == [
        ["attention,", "engine=fused", "float32"],
        ["engine=fused"],
    ]
    assert len(lines) == 9 + 3 and lines[-1].startswith("ok       engine=cuda_graphs")


def test_the_warning_that_comes_once_is_no_wait() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn(
            "Synchronization debug mode is a prototype feature and does not yet detect all "
            "synchronizing operations",
            stacklevel=1,
        )
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    assert gpu_check.host_waits(found) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_so(skipbench: Command) -> None:
    done = skipbench("doctor", "--gpu")
    assert done.returncode == 1 and "no CUDA device is at hand" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is at hand")
def test_a_gpu_has_no_fault() -> None:
    lines = list(gpu_findings(torch.device("cuda", 0), known_hardware()))
    assert not [line for line in lines if line.startswith("fault")], lines
