"""What a run refuses before it loads a model, a dry run refuses in the same words; what it tells of
a cell is so.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

from skipbench.bench import memory
from skipbench.bench.memory import GIB
from skipbench.config.compose import compose
from skipbench.config.paths import PACKAGE
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.models.outline import sized
from skipbench.runs.run import read_run

TINY = PACKAGE / "models" / "tiny"
SMALL = ("method=uniform", "limit=2", "engine.warmup=0", "dataset.max_new_tokens=4")


def folder(tmp_path: Path, *left_out: str, **changed: Any) -> Path:
    """A checkpoint with files left out, and other values in its config.json."""
    made = tmp_path / "mine"
    shutil.copytree(TINY, made)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | changed))
    for pattern in left_out:
        for file in made.glob(pattern):
            file.unlink()
    return made


def told(*words: str) -> str:
    with pytest.raises(SkipbenchError) as error:
        run_cell(compose([*SMALL, *words]))
    return str(error.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["engine.threads=0"], "engine.threads=0; wanted 1 or more"),
        (["model.device=gpu"], "model.device=gpu; wanted cpu, cuda, cuda:N or auto"),
        (["model.device=cuda"], "but no CUDA device is at hand; use model.device=cpu"),
        (["model.quantization=int8"], "needs engine=reference"),
        (["model.sparsity=wanda"], "wanda-0.5"),
        (["engine=reference", "engine.strict=true"], "needs engine=fused"),
        (["results=/dev/null/none"], "/dev/null is no folder that can be written to"),
        (["dataset.max_new_tokens=100000"], "leaves no room for a prompt in a context of 1024"),
        (["dataset.max_new_tokens=0"], "dataset.max_new_tokens=0; wanted 1 or more"),
        (["dataset.context=200", "dataset.max_new_tokens=195"], "with max_new_tokens=195 at most"),
        (["dataset.chat=template"], "has no chat template"),
        (["dataset.scorer=gsm8k"], "answer"),
        (["method=fixed", 'method.skip="attn:99"'], "a model of 12 layers has 0 to 23"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("skipbench.bench.load.load", never)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = told(f"results={tmp_path}", *words)
    assert says in text and text == told(f"results={tmp_path}", *words, "dry_run=true")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("left_out", "changed", "says"),
    [
        (["token*"], {}, "has no tokenizer: copy tokenizer.json"),
        (["*.safetensors"], {}, "has no *.safetensors, so it has no weights"),
        (["config.json"], {}, "no config.json"),
        ([], {"max_position_embeddings": 6}, "leaves no room"),
    ],
)
def test_a_folder_is_refused_before_its_weights_are_read(
    left_out: list[str], changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    made = folder(tmp_path, *left_out, **changed)
    words = [f"model.path={made}", "model=path", "dataset.max_new_tokens=64"]
    text = told(*words, f"results={tmp_path}", "dry_run=true")
    assert says in text and "\n" not in text


def test_the_sizes_of_a_folder_are_those_of_its_weights() -> None:
    model = compose(["model=tiny"]).model
    shape = sized(model).architecture
    lm, _ = load(str(TINY))
    assert shape is not None and shape.layers == lm.layers
    count = sum(p.numel() for p in lm.model.parameters())
    assert abs(shape.parameters - count) < 0.01 * count


def test_a_folder_of_ones_own_is_held_against_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: GIB // 100)
    words = f"results={tmp_path}"
    assert "model 'tiny' needs 0.1 GiB on cpu" in told(words, "dry_run=true") == told(words)


def test_a_dry_run_tells_what_the_run_does(tmp_path: Path, skipbench: Command) -> None:
    words = (*SMALL, "engine=cuda_graphs", f"results={tmp_path}")  # which is for GPUs
    done = skipbench(*words, "dry_run=true", "--json")
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert not list(tmp_path.iterdir())
    cell = resolve_cell(compose(list(words)))
    assert plain["folder"] == str(cell.folder) and plain["state"] == "missing"
    assert (plain["device"], plain["dtype"], plain["engine"]) == ("cpu", "float32", "fused")
    assert plain["memory_bytes"] < plain["free_bytes"]
    text = skipbench(*words, "dry_run=true").stdout
    for line in ("model    tiny, 5e6 parameters, 12 layers", "prompts  2 of mini-stories"):
        assert line in text
    ran = json.loads(skipbench(*words, "--json").stdout)
    assert ran["engine"] == plain["engine"]
    assert ran["metrics"]["samples"] == plain["prompts"] == 2
    turns, origin = read_run(cell.folder).turns, read_run(cell.folder).provenance
    why = "engine=cuda_graphs: no CUDA device is at hand; engine=fused is used instead"
    assert origin.engine == "fused" and origin.notes[0].startswith(why)
    assert sum(turn.prompt_tokens for turn in turns) == plain["prompt_tokens"]
    assert json.loads(skipbench(*words, "dry_run=true", "--json").stdout)["state"] == "done"
    log = (cell.folder / "run.log").read_text()
    assert (
        "loading tiny" in log and why in log and "prompts: 2/2" in log and log.endswith(" done\n")
    )
