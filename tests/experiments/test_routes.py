"""A cell, methods, a sweep, a table, a figure, a comparison: one route, with the same keys."""

from pathlib import Path

import pytest
from conftest import Command

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
    if route in COMPARE:
        skipbench(*ROUTES[route], f"results={results}")
        before = files(results)
        again = skipbench(*words)
        assert again.returncode == 0 and files(results) == before
        assert "done" in again.stdout and "No runs" not in again.stdout
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
