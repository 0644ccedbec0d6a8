"""`doctor --gpu`: every check runs on a CPU, where nothing is judged that only a GPU can show."""

import json

import pytest
import torch
from conftest import Command

from skipbench.bench import gpu_check
from skipbench.bench.gpu_check import ON_CPU as SMALL
from skipbench.bench.gpu_check import gpu_findings
from skipbench.config.catalog import known_hardware


def test_every_check_runs_and_none_fails(skipbench: Command) -> None:
    done = skipbench("doctor", "--gpu", "--rehearse", "--json")
    assert done.returncode == 0
    found = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [f"{line['kind']} {line['finding']}" for line in found]
    assert not [line for line in lines if line.startswith("fault")], lines
    wanted = [
        "attention, engine=fused bfloat16",
        "12 tokens of vanilla, chain, tree, clasp",
        "the float32 check of ties at 600",
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_so(skipbench: Command) -> None:
    done = skipbench("doctor", "--gpu")
    assert done.returncode == 1 and "no CUDA device is at hand" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is at hand")
def test_a_gpu_has_no_fault() -> None:
    lines = list(gpu_findings(torch.device("cuda", 0), known_hardware()))
    assert not [line for line in lines if line.startswith("fault")], lines
