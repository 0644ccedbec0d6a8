"""Turns, runs and checkpoints as tests need them, without a model that decodes."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from skipbench.cli.commands import Status
from skipbench.cli.experiments import cells_asked
from skipbench.cli.parser import parse
from skipbench.config.catalog import choices
from skipbench.config.paths import PACKAGE
from skipbench.errors import SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.plan import once
from skipbench.launch.status import with_states
from skipbench.runs.cell import Cell
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, config_hash
from skipbench.runs.record import VANILLA, Arm, Divergence, Round, Seconds, Texts, Turn
from skipbench.runs.store import RunStore, append_turn

LOAD = LastLoaded()
"""The embedded model for cells of many tests."""
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


def turn(index: int, arm: str = "method") -> Turn:
    """A turn of vanilla and an arm, whose divergence is a tie."""
    vanilla = Arm([1, 2, 3], [Round(4, 4, 1, 1, 2)], Seconds(0.1, 0.2, 0.3, 0.0, 0.01), "length")
    how = {"lossless": "tie", "divergence": Divergence(1, 2, 3, 0.5), "carry": {"threshold": 0.6}}
    arms = {VANILLA: vanilla, arm: replace(vanilla, skip="attn:1", **how)}
    return Turn(index, f"s{index}", "h", 7, [*arms], arms)


def with_arm(turn: Turn, name: str = "method", **values: Any) -> Turn:
    """The turn with other values of one of its arms."""
    return replace(turn, arms=turn.arms | {name: replace(turn.arms[name], **values)})


def traced(index: int, rounds: list[Round], trace: dict[str, Any]) -> Turn:
    """A turn of `method` with these rounds, identical, behind a prompt of 3 tokens."""
    tokens, seconds = [*range(1 + sum(r.emitted for r in rounds))], Seconds(0.1, 0.2, 0.3, 0.0, 0.1)
    vanilla, own = (Arm(tokens, of, seconds, "length") for of in ([], rounds))
    arms = {VANILLA: vanilla, "method": replace(own, lossless="identical", trace=trace)}
    return Turn(index, f"s{index}", "h", 3, [*arms], arms)


def folder_of(results: Path, config: dict[str, Any]) -> Path:
    """The folder of the run of plain settings."""
    row = {key: value for key, value in config.items() if key != "method"}
    names = (config[kind]["name"] for kind in ("model", "dataset"))
    arm = f"{config['method']['name']}_{config_hash({'method': config['method']})}"
    return results / "runs" / "_".join([*names, config_hash(row)]) / arm


def make_run(
    results: Path,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    turns: int = 2,
    scorer: str = "none",
) -> Path:
    """The folder of a done run in a results folder, made by what makes those of commands."""
    config = CONFIG | {"seed": seed, "dataset": CONFIG["dataset"] | {"scorer": scorer}}
    folder = folder_of(results, config)
    store = RunStore(folder, config, msgspec.convert(provenance or ORIGIN, Provenance), turns)
    for index in range(turns):
        texts = Texts(index, f"s{index}", "p", {}, {VANILLA: "a", folder.name: "b"})
        append_turn(folder.parent, turn(index, folder.name), texts)
    store.write_metrics(msgspec.convert(METRICS | {"samples": turns}, Metrics))
    store.status("done")
    store.close()
    return folder


def survey(name: str, words: list[str]) -> list[Cell]:
    """The cells of an experiment with their states."""
    (cells,) = cells_asked(parse(Status, [name, *words]), choices("experiment")).values()
    return with_states(once(cells))


def interrupt(folder: Path, turns: int) -> None:
    """Leaves a done run, alone in its row, as if it had been stopped behind so many turns."""
    for name in ("turns.jsonl", "texts.jsonl"):
        lines = (folder.parent / name).read_text().splitlines(keepends=True)
        (folder.parent / name).write_text("".join(lines[:turns]))
    (folder / "metrics.json").unlink()
    (folder / "status.json").write_text('{"state": "interrupted"}')


def fake_tool(folder: Path, name: str, script: str, patch: pytest.MonkeyPatch) -> Path:
    """A program that goes first in PATH: what a machine without Slurm, or a GPU, lacks."""
    folder.mkdir(exist_ok=True)
    (path := folder / name).write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    patch.setenv("PATH", str(folder), prepend=os.pathsep)
    return path


def message(call: Callable[[], object]) -> str:
    """What is said where it is refused."""
    with pytest.raises(SkipbenchError) as caught:
        call()
    return str(caught.value)


def edit(path: Path, **values: Any) -> None:
    """Changes values of a JSON object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def tiny_copy(folder: Path) -> Path:
    """The embedded model's files in a folder, to be changed."""
    return Path(shutil.copytree(PACKAGE / "models" / "tiny", folder))


INDEX = "model.safetensors.index.json"


def sharded(folder: Path) -> Path:
    """A copy of the embedded model with its weights in two files with an index, as large ones."""
    weights, place = load_file(tiny_copy(folder) / "model.safetensors"), dict[str, str]()
    for n in (0, 1):
        part = {name: weights[name] for name in sorted(weights)[n::2]}
        place |= dict.fromkeys(part, f"model-{n}.safetensors")
        save_file(part, folder / f"model-{n}.safetensors", {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": place}))
    (folder / "model.safetensors").unlink()
    return folder


class Letters:
    """A tokenizer of the smallest kind."""

    all_special_ids = (0,)

    def encode(self, text: str) -> list[int]:
        return [0, *(ord(c) % 61 for c in text)] if text else []

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


@contextmanager
def running(*command: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The address of a server, PORT in its command, and its process, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words, address = [word.replace("PORT", port) for word in command], f"http://127.0.0.1:{port}"
    with subprocess.Popen(words, cwd=PACKAGE.parent, stderr=subprocess.DEVNULL) as server:
        try:
            while True:
                with suppress(OSError), urlopen(f"{address}/health", timeout=10):
                    break
                assert server.poll() is None, f"{words} has ended"
                time.sleep(0.1)
            yield address, server
        finally:
            server.terminate()
