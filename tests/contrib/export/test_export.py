"""`export`: the folder that Hugging Face loads, the set as JSON, and llama.cpp's line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, random_model

from skipbench.contrib.export.command import prune_line
from skipbench.draft_plan import DraftPlan


def test_the_folder_decodes_in_hugging_face(
    tmp_path: Path, skipbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = random_model("llama")
    model.save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    path = f"model.path={tmp_path / 'model'}"
    done = skipbench("export", str(out), path, "method=fixed", "method.skip='attn:1,2;mlp:1,2'")
    assert done.returncode == 0, done.stderr
    assert "llama-quantize --prune-layers 1,2 " in done.stdout
    found = json.loads((out / "skipset.json").read_text())
    assert (found["attention"], found["mlp"], found["ratio"]) == ([1, 2], [1, 2], 0.5)
    assert found["model"]["layers"] == 4 and len(found["model"]["weights_sha256"]) == 64
    assert found["measured"] is None and found["stop"]["max_steps"] > 0
    assert "In float32 greedy output is\nthat of `generate`" in (out / "README.md").read_text()

    scope: dict[str, Any] = {}
    exec((out / "custom_generate/generate.py").read_text(), scope)
    prompt = torch.tensor([[5, 9, 2, 7]])
    wanted = model.generate(prompt, max_new_tokens=12, do_sample=False)
    given = {"inputs": prompt, "max_new_tokens": 12, "do_sample": False, "streamer": None}
    assert scope["generate"](model, **given).tolist() == wanted.tolist()
    assert scope["FAST"].method.skip == DraftPlan.parse("attn:1,2;mlp:1,2", 4)


def test_what_was_measured_is_in_it(tmp_path: Path, skipbench: Command) -> None:
    words = ["limit=1", "dataset.max_new_tokens=8", "engine.warmup=0", f"results={tmp_path}"]
    assert skipbench(*words).returncode == 0
    done = skipbench("export", str(tmp_path / "out"), *words)
    assert done.returncode == 0 and "not one of whole layers" in done.stdout
    measured = json.loads((tmp_path / "out" / "skipset.json").read_text())["measured"]
    assert measured["samples"] == 1 and measured["accepted_by_position"] and measured["seconds"]


def test_sets_of_part_layers_have_no_line() -> None:
    assert prune_line(DraftPlan.parse("attn:1;mlp:2", 4)) is None
    assert prune_line(DraftPlan.parse("", 4)) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [("", "export needs one folder"), ("out model.path=/nope", "neither a folder")],
)
def test_mistakes(words: str, says: str, skipbench: Command) -> None:
    done = skipbench("export", *words.split())
    assert done.returncode == 2 and says in done.stderr
