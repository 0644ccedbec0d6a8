"""A record is of the weights, the method code, the prompts and the machine that made it: others are
refused, and `fresh=true` starts anew.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import LOAD, SMALL, edit, interrupt, tiny_copy
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.config.run_config import MethodConfig, RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell, run_rows
from skipbench.runs import fingerprint
from skipbench.runs.cell import Cell
from skipbench.runs.run import Run, read_run
from skipbench.runs.source import method_sha256

SEARCH = ["search.prompts=1", "search.max_new_tokens=4", "search.strategy=random"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "runs-of-mine").mkdir()
    return tiny_copy(tmp_path / "runs-of-mine" / "checkpoint-500")


def retrain(checkpoint: Path) -> None:
    """Changes one tensor; names and sizes of the files stay."""
    path, name = checkpoint / "model.safetensors", "model.norm.weight"
    weights = load_file(path)
    scales = torch.linspace(0.5, 2, len(weights[name]))
    save_file(weights | {name: weights[name] * scales}, path)


def words(checkpoint: Path, results: Path, method: str = "uniform") -> list[str]:
    own = ["model=path", f"model.path={checkpoint}", f"method={method}", f"results={results}"]
    return [*SMALL, *own]


def record(config: RunConfig) -> tuple[Path, Run]:
    folder = resolve_cell(config).folder
    return folder, read_run(folder)


def refused(config: RunConfig) -> str:
    with pytest.raises(SkipbenchError) as error:
        run_cell(config)
    text = str(error.value)
    assert "fresh=true" in text and "results=FOLDER" in text and "\n" not in text
    return text


def test_other_weights_at_the_same_path_are_refused_until_told_to_start_anew(
    checkpoint: Path, tmp_path: Path
) -> None:
    config = compose(words(checkpoint, tmp_path))
    run_cell(config)
    folder, first = record(config)
    shutil.copytree(checkpoint, tmp_path / "copy")
    shutil.rmtree(checkpoint)
    # the same weights at another time
    shutil.copytree(tmp_path / "copy", checkpoint, copy_function=shutil.copy)
    run_cell(config)
    retrain(checkpoint)
    text = refused(config)
    assert "other weights" in text and str(checkpoint) in text and "code" not in text
    (folder / "status.json").write_text('{"state": "interrupted"}')  # nor does it go on with them
    (folder / "metrics.json").unlink()
    assert "other weights" in refused(config)
    assert record(config)[1].provenance == first.provenance
    run_cell(compose([*words(checkpoint, tmp_path), "fresh=true", "dry_run=true"]))
    assert record(config)[1].provenance == first.provenance
    run_cell(compose([*words(checkpoint, tmp_path), "fresh=true"]))
    again = record(config)[1]
    assert again.provenance.weights_sha256 != first.provenance.weights_sha256
    assert again.measured.samples == 1
    assert read_run(next(tmp_path.glob(f"replaced/*/{folder.name}"))).provenance == first.provenance
    run_cell(config)


def test_a_method_is_known_by_its_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "ours/__init__.py": "from .drafts.one import make\n",
        "ours/drafts/__init__.py": "",
        "ours/drafts/one.py": "from ..shared import x\nfrom . import two\nmake = x\n",
        "ours/drafts/two.py": "",
        "ours/shared.py": "def x(): 'unparsed \\x00'",
        "ours/other.py": "",
        "rules.py": "class Rule: ...",
    }
    (tmp_path / "ours/drafts").mkdir(parents=True)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    method = MethodConfig.of({"_target_": "ours.make", "stop": {"_target_": "rules.Rule"}})
    first = method_sha256(method)
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\nedited = 1\n")
        assert method_sha256(method) != first, name
        (tmp_path / name).write_text(text)
    shutil.move(tmp_path / "ours", tmp_path / "elsewhere" / "ours")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert method_sha256(method) == first
    assert method_sha256(MethodConfig.of({"_target_": "no_such_module.make"})) is None
    ours = [method_sha256(compose([f"method={m}"]).method) for m in ("vanilla", "swift", "clasp")]
    assert None not in ours and len(set(ours)) == 3


def test_weights_are_known_by_their_content_and_few_bytes_are_read(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(path: Any, revision: str | None = None) -> str | None:
        return fingerprint.weights_sha256(Model(name="mine", path=str(path), revision=revision))

    whole = of(checkpoint)
    snapshot = tmp_path / "hub" / "models--me--mine" / "snapshots" / ("a" * 40)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(checkpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert of("me/mine", "a" * 40) == whole is not None
    assert of("me/other") is of(tmp_path / "hub") is of("no id at all/") is None
    (checkpoint / "config.json").write_text((checkpoint / "config.json").read_text() + " ")
    assert of(checkpoint) != whole
    (many := tmp_path / "many").mkdir()  # shards of 16 GiB, holes but for what is written here
    shards = [many / f"model-{i}.safetensors" for i in range(4)]
    index = many / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {shard.name: shard.name for shard in shards}}))
    for shard in shards:
        shard.write_bytes((2).to_bytes(8, "little") + b"{}")
        os.truncate(shard, 4 * 2**30)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *a: (read.append(a[1]), pread(*a))[1])
    first = of(many)
    assert first is not None and 4 * 2**20 < sum(read) < 16 * 2**20
    read.clear()
    assert of(many) == first and not read
    for at, was in ((8, b"{"), (2**30, b"\0"), (4 * 2**30 - 1, b"\0")):
        for byte in (b"x", was):
            with open(shards[2], "r+b") as file:
                file.seek(at)
                file.write(byte)
            assert (of(many) == first) == (byte == was)
    index.write_text("{")
    assert of(many) is None


def test_a_stored_set_belongs_to_the_weights_it_was_searched_for(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Another checkpoint of the same name finds no set; a copy elsewhere finds it."""
    second = tmp_path / "others" / "checkpoint-500"
    shutil.copytree(checkpoint, second)
    retrain(second)

    def own(folder: Path) -> list[str]:
        return words(folder, tmp_path, "self-sd")

    def stored(*more: str) -> str | None:
        return resolve_cell(compose([*more])).config.method.skip

    dispatch(["search", *own(checkpoint), *SEARCH, "search.iterations=1"])
    (path,) = (tmp_path / "skip_sets").iterdir()
    first = json.loads(path.read_text())
    assert stored(*own(checkpoint)) == first["skip"]
    with pytest.raises(NotHereError, match="no skip set of self-sd is stored"):
        stored(*own(second))
    dispatch(["search", *own(second), *SEARCH, "search.iterations=1", "search.seed=5"])
    (other,) = set((tmp_path / "skip_sets").iterdir()) - {path}
    assert json.loads(path.read_text()) == first and stored(*own(checkpoint)) == first["skip"]
    assert stored(*own(second)) == json.loads(other.read_text())["skip"] != first["skip"]
    other.unlink()
    shutil.copytree(checkpoint, tmp_path / "final")
    assert stored(*own(tmp_path / "final")) == first["skip"]
    with pytest.raises(NotHereError):  # other weights of the same checkpoint
        stored(*own(checkpoint), "model.sparsity=wanda-0.5")


def run(config: RunConfig) -> None:
    """`run_cell` on a model that is loaded once."""
    run_rows([cell := Cell(config)], LOAD)
    if cell.error is not None:
        raise cell.error


def test_a_kept_turn_of_another_prompt_is_refused(tmp_path: Path) -> None:
    config = compose([*SMALL, "limit=2", f"results={tmp_path}", "method=uniform"])
    run(config)
    folder, _ = record(config)
    interrupt(folder, 1)
    turns = folder.parent / "turns.jsonl"
    edit(turns, prompt_hash="0" * 16)
    turns.write_text(turns.read_text() + "\n")
    with pytest.raises(SkipbenchError, match=r"turn 0 .* is of another prompt"):
        run(config)


ELSEWHERE = {"device": "NVIDIA H100", "threads": 96, "host": "node7", "versions": {"torch": "2.1"}}


def test_a_run_goes_on_under_the_same_conditions_alone(tmp_path: Path) -> None:
    """And processes that go on are written down."""
    config = compose([*SMALL, "limit=3", "method=uniform", f"results={tmp_path}"])
    run(config)
    folder, found = record(config)
    path, here = folder / "provenance.json", found.provenance.versions
    interrupt(folder, 2)
    original = path.read_text()
    edit(path, **ELSEWHERE)
    before = {p.name: p.read_bytes() for p in folder.glob("*.json*")}
    with pytest.raises(SkipbenchError, match="fresh=true") as told:
        run(config)
    changed = "device NVIDIA H100 -> cpu", "threads 96 -> 1", f"torch 2.1 -> {here['torch']}"
    assert all(one in str(told.value) for one in changed)
    assert {p.name: p.read_bytes() for p in folder.glob("*.json*")} == before
    path.write_text(original)
    edit(path, host="node7", cores=3)
    run(config)
    (one,) = record(config)[1].provenance.resumed
    assert one["after_turns"] == 2 and one["host"] != "node7" and "device" not in one
    interrupt(folder, 0)  # nothing is left of the first processes
    edit(path, **ELSEWHERE)
    run(config)
    assert record(config)[1].provenance.device == "cpu"
    assert not record(config)[1].provenance.resumed
