"""One route with the same keys for cells, methods, tables, figures; input files are listed."""

import json
from pathlib import Path

import pytest
from builders import fake_tool
from conftest import Command
from huggingface_hub import constants

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError

SMALL = ("dataset.max_new_tokens=6", "engine.warmup=0")
MATHS = ("dataset=mini-math", "limit=1", *SMALL)
ROUTES = {
    "cell": ["method=uniform", *MATHS],
    "methods": ["method=uniform,prompt-lookup", *MATHS],
    "sweep": ["-m", "method=uniform,prompt-lookup", *MATHS],
    "table": ["table", "tiny", "method=uniform,prompt-lookup", *MATHS],
    "compare": ["compare", "method=uniform,prompt-lookup", *MATHS],
    "experiment": ["-m", "experiment=tiny", "method=uniform", *MATHS],
    "figure": ["figure", "clasp-figure3c", "scale=embedded", *MATHS],
    "search": ["search", "method=self-sd", *MATHS],
    "submit": ["submit", "tiny", "method=uniform", *MATHS, "hardware=local"],
}
COMPARE = ("methods", "sweep", "table", "compare")
WRONG = {
    "columns=speedup,sped": "columns=sped",
    "over=prompt-lokup": "over=prompt-lokup",
    "minutes=0": "minutes=0; wanted a number above 0",
}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.mark.parametrize("route", ROUTES)
def test_a_dry_run_writes_nothing_and_refuses_what_a_run_refuses(
    route: str, skipbench: Command, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    words = [*ROUTES[route], f"results={results}", "dry_run=true"]
    done = skipbench(*words)
    assert done.returncode == 0 and not results.exists(), done.stderr
    assert "missing" in done.stdout or (route == "submit" and "1 missing" in done.stderr)
    if route not in ("submit", "search"):  # which decode nothing that is scored
        refused = skipbench(*words, "dataset.scorer=best")
        assert refused.returncode in (1, 2) and "unknown scorer='best'" in refused.stderr


@pytest.mark.parametrize("route", ["cell", *COMPARE])
def test_a_wrong_key_is_refused_before_anything_is_decoded(
    route: str, skipbench: Command, tmp_path: Path
) -> None:
    for word, says in WRONG.items():
        done = skipbench(*ROUTES[route], f"results={tmp_path / 'results'}", word)
        assert done.returncode == 2 and says in done.stderr and done.stderr.startswith("error: ")
        assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("route", COMPARE)
def test_the_keys_of_a_comparison_are_those_of_every_route(
    route: str, skipbench: Command, measured: Path
) -> None:
    keys = ["over=uniform", "columns=M,speedup", "minutes=5"]
    done = skipbench(*ROUTES[route], f"results={measured}", *keys)
    assert done.returncode == 0, done.stderr
    (head, *_) = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    columns = [name.strip() for name in head.strip("|").split("|")]
    assert columns[-3:] == ["M", "speedup", "over uniform"]
    assert ("prompts: " in done.stderr) == (route in ("methods", "compare"))  # decoded once
    before = files(measured)
    again = skipbench(*ROUTES[route], f"results={measured}", "dry_run=true")
    assert again.returncode == 0 and files(measured) == before
    assert "done" in again.stdout and "No runs" not in again.stdout


WORDS = ["swift-table2", "dataset=mini-math", "models=llama2-13b", "methods=swift"]
LLAMA = "meta-llama/Llama-2-13b-hf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this machine, and no token."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def snapshot(cache: Path) -> Path:
    """The snapshot of the model in the cache, with one of its two weight files."""
    model = compose(["model=llama2-13b"]).model
    folder = cache / f"models--{LLAMA.replace('/', '--')}" / "snapshots" / str(model.revision)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").touch()
    return folder


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, list[str]], str]:
    """Cells of the table by name, and the lines below it."""
    capsys.readouterr()
    try:
        dispatch(["data", *words, "scale=paper"])
    except SystemExit as ended:
        assert ended.code == 1
    said = capsys.readouterr().out
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in said.splitlines() if "|" in line]
    return {name: cells for name, *cells in rows[2:]}, said


def test_an_experiments_inputs_are_listed(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = listed(capsys, "swift-table2", "models=llama2-13b", "dataset=gsm8k")
    assert rows == {
        "llama2-13b": ["model", "24.24 GiB", "needed, none here", "no"],
        "gsm8k": ["dataset", "—", "no", "no"],
    }
    assert f"accept its licence at https://huggingface.co/{LLAMA}, then" in said
    assert "0 of 2 are here" in said and "dataset=gsm8k scale=paper --fetch" in said
    folder = snapshot(cache)
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    rows, said = listed(capsys, *WORDS)
    assert rows["llama2-13b"][2:] == ["needed", "no"] and "1 of 2 are here" in said
    (folder / "model-2.safetensors").touch()
    rows, said = listed(capsys, *WORDS)
    assert rows["llama2-13b"][3] == rows["mini-math"][3] == "yes" and "2 of 2" in said


def test_jobs_that_would_fail_are_not_submitted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(tmp_path, "sbatch", "echo 7", monkeypatch)
    words = ["submit", *WORDS, "hardware=slurm-a100"]
    says = r"llama2-13b \(gated, and no token here\) is not on.*data swift-table2.*--anyway"
    with pytest.raises(SkipbenchError, match=says):
        dispatch([*words, f"results={tmp_path / 'refused'}"])
    assert not [*tmp_path.glob("refused/submit/*/*")]
    (snapshot(cache) / "model-2.safetensors").touch()
    dispatch([*words, f"results={tmp_path / 'here'}"])
    assert [*tmp_path.glob("here/submit/*/jobs.jsonl")]
