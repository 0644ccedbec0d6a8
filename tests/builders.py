"""Samples, runs and checkpoints as tests need them, without a model that decodes."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from skipbench.config.paths import PACKAGE
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, config_hash
from skipbench.runs.record import Arm, Completion, Divergence, Round, Sample, Seconds
from skipbench.runs.store import RunStore

SMALL = ["limit=1", "dataset.max_new_tokens=8", "engine.warmup=0"]
"""Settings of a cell of a second."""
CONFIG: dict[str, Any] = {
    "model": {"name": "tiny", "dtype": "float32", "device": "cpu"},
    "method": {"name": "fixed"},
    "dataset": {"name": "mini-code", "scorer": "none"},
    "engine": {"name": "fused", "threads": 1},
    "seed": 0,
}
METRICS = {
    "samples": 2, "M": 2.0, "alpha": 0.25, "speedup": {"e2e": 1.0, "e2e_ci95": [0.9, 1.1]},
    "seconds": {"draft": 0.1},
    "lossless": {"identical": 2, "ties": 0, "diverged": 0, "sampled": 0, "failed": 0}, "score": {},
}  # fmt: skip
ORIGIN = {"commit": "0123abc", "device": "cpu", "versions": {"torch": "2"}}


def sample(index: int) -> Sample:
    """A sample whose divergence is a tie."""
    arm = Arm([1, 2, 3], [Round(4, 4, 1, 1, 2)], Seconds(0.1, 0.2, 0.3, 0.0, 0.01), "length")
    tie, carry = Divergence(1, 2, 3, 0.5), {"threshold": 0.6}
    order = ["vanilla", "method"]
    return Sample(index, f"s{index}", "h", 7, order, arm, arm, "tie", tie, carry=carry)


def traced(index: int, rounds: list[Round], trace: dict[str, Any]) -> Sample:
    """An identical sample of these rounds, behind a prompt of 3 tokens."""
    tokens, seconds = [*range(1 + sum(r.emitted for r in rounds))], Seconds(0.1, 0.2, 0.3, 0.0, 0.1)
    both = (Arm(tokens, of, seconds, "length") for of in ([], rounds))
    order = ["vanilla", "method"]
    return Sample(index, f"s{index}", "h", 3, order, *both, "identical", trace=trace)


def make_run(
    results: Path,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    samples: int = 2,
    scorer: str = "none",
) -> Path:
    """The folder of a done run in a results folder, made by what makes those of commands."""
    config = CONFIG | {"seed": seed, "dataset": CONFIG["dataset"] | {"scorer": scorer}}
    folder = results / "runs" / f"tiny_fixed_mini-code_{config_hash(config)}"
    store = RunStore(folder, config, msgspec.convert(provenance or ORIGIN, Provenance))
    for index in range(samples):
        completion = Completion(index, f"s{index}", "p", {}, "a", "b")
        store.append(replace(sample(index), skip="attn:1"), completion)
    store.write_metrics(msgspec.convert(METRICS | {"samples": samples}, Metrics))
    store.status("done")
    store.close()
    return folder


def interrupt(folder: Path, samples: int) -> None:
    """Leaves a done run as if it had been stopped behind so many samples."""
    for name in ("samples.jsonl", "completions.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:samples]))
    (folder / "metrics.json").unlink()
    (folder / "status.json").write_text('{"state": "interrupted"}')


def fake_tool(folder: Path, name: str, script: str, patch: pytest.MonkeyPatch) -> Path:
    """A program that goes first in PATH: what a machine without Slurm, or a GPU, lacks."""
    folder.mkdir(exist_ok=True)
    (path := folder / name).write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    patch.setenv("PATH", str(folder), prepend=os.pathsep)
    return path


def edit(path: Path, **values: Any) -> None:
    """Changes values of a JSON object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def tiny_copy(folder: Path) -> Path:
    """The embedded model's files in a folder, to be changed."""
    return Path(shutil.copytree(PACKAGE / "models" / "tiny", folder))
