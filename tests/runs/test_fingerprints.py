"""A record is of the weights and the method code that made it: others are refused, and `fresh=true`
starts anew.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import SMALL, edit, tiny_copy
from huggingface_hub import constants
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.config.run_config import MethodConfig, RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.report.compared import mixed
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs import fingerprint
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Origin, Run, read_run
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


def test_latencies_of_another_version_of_the_package_are_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And whoever asks for a finished run of one is told."""
    config = compose([*SMALL, "method=uniform", f"results={tmp_path}"])
    run_cell(config, print_table=False)
    (latency,) = tmp_path.glob("latency/*.json")
    kept = json.loads(latency.read_text())
    edit(latency, package_sha256="f" * 64, model=kept["model"] | {"mlp_s": 99.0})
    run_cell(compose([*SMALL, "method=middle", f"results={tmp_path}"]), print_table=False)
    assert json.loads(latency.read_text())["model"]["mlp_s"] < 1
    folder, _ = record(config)
    edit(folder / "provenance.json", package_sha256="2:" + "f" * 64)
    capsys.readouterr()
    run_cell(config)
    assert "another version of skipbench" in capsys.readouterr().err


def test_a_table_says_where_a_method_a_model_or_the_code_is_not_one() -> None:
    def run(method: str, source: str, weights: str, measured: bool = True) -> Run:
        origin = Origin(method_sha256=source, weights_sha256=weights)
        metrics = Metrics(samples=1) if measured else None
        return Run(model="mine", method=method, metrics=metrics, origin=origin)

    alike = [run("swift", "1", "w"), run("clasp", "2", "w"), run("swift", "3", "w", False)]
    assert mixed(alike) == []
    assert mixed([*alike, run("swift", "3", "w")]) == [
        "method swift: its runs are of 2 different sources: do not compare them."
    ]
    assert mixed([*alike, run("clasp", "2", "v")]) == [
        "model mine: its runs are of 2 different weights: do not compare them."
    ]
    codes = [Origin(commit="0123abc", package_sha256=f"2:{digit * 64}") for digit in "ef"]
    text = markdown(row_table([replace(alike[0], origin=origin) for origin in codes]))
    assert "The runs are from 2 origins" in text


def test_a_method_is_known_by_its_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ours"
    texts = {
        "ours/__init__.py": "from .drafts.one import make\n",
        "ours/drafts/__init__.py": "",
        "ours/drafts/one.py": "from ..shared import x\nfrom . import two\nmake = x\n",
        "ours/drafts/two.py": "",
        "ours/shared.py": "def x(): 'unparsed \\x00'",
        "ours/other.py": "",
        "rules.py": "class Rule: ...",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    method = MethodConfig.of({"_target_": "ours.make", "stop": {"_target_": "rules.Rule"}})
    first = method_sha256(method)
    for path in (tmp_path / "rules.py", *package.rglob("*.py")):
        before = path.read_text()
        path.write_text(before + "\nedited = 1\n")
        assert method_sha256(method) != first, path
        path.write_text(before)
    assert method_sha256(method) == first
    shutil.copytree(package, tmp_path / "elsewhere" / "ours")
    shutil.rmtree(package)
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
    assert of("me/other") is None and of(tmp_path / "hub") is None and of("no id at all/") is None
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


def test_a_search_of_other_weights_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    own = [*words(checkpoint, tmp_path, "self-sd"), "dataset=mini-math"]
    own += [*SEARCH, "search.iterations=2"]
    dispatch(["search", *own])
    (trace,) = tmp_path.glob("search/*/trace.jsonl")
    before = trace.read_text()
    config = compose([*own, "search.own=true"])
    searched = resolve_cell(config).config.method.skip
    retrain(checkpoint)
    with pytest.raises(SkipbenchError, match=r"other weights.*fresh=true"):
        dispatch(["search", *own])
    refused(config)
    with pytest.raises(SkipbenchError, match="other weights"):
        resolve_cell(config)
    assert trace.read_text() == before
    run_cell(replace(config, fresh=True), print_table=False)
    assert len(list(tmp_path.glob("search/*/trace.jsonl"))) == 1 and trace.read_text() != before
    (old,) = tmp_path.glob("replaced/*/trace.jsonl")
    assert old.read_text() == before and searched
    lines = trace.read_text().splitlines()
    first = json.loads(lines[0])
    del first["settings"]["weights_sha256"]
    trace.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    with pytest.raises(SkipbenchError, match="weights_sha256"):  # of nobody knows which weights
        dispatch(["search", *own])
