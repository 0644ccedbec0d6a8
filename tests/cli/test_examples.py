"""The scripts of `docs/examples` run as they stand, in the order of a reader."""

import runpy
import warnings
from pathlib import Path

import pytest
from conftest import ROOT, rest_slow

EXAMPLES = {
    "answer": "drafted tokens accepted",
    "streaming": "tokens per pass",
    "which_method": "prompt-lookup",
    "own_method": "guesses were right",
}
ELSEWHERE = {"hugging_face", "ab_comment"}  # run by tests of contrib/export and contrib/servers


def run_example(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(ROOT / "docs/examples" / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", rest_slow(EXAMPLES, ("answer", "own_method").__contains__))
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_example(name)
    assert EXAMPLES[name] in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []  # nothing is left in the reader's folder


def test_every_example_is_run_and_linked() -> None:
    found = {path.stem for path in (ROOT / "docs/examples").glob("*.py")}
    text = (ROOT / "docs/use.md").read_text()
    assert found == {*EXAMPLES} | ELSEWHERE
    assert all(f"(examples/{name}.py)" in text for name in found)
