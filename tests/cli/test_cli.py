"""The command line as a user types it, in this process but where a pipe matters."""

import re
import runpy
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import pytest
from builders import SMALL
from conftest import METHODS, ROOT, Command, nothing_lost, rest_slow

from skipbench.cli.command import declared
from skipbench.cli.commands import COMMANDS
from skipbench.cli.help import describe
from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell


def test_help_lists_choices_and_commands(skipbench: Command) -> None:
    text = skipbench("--help").stdout
    for word in ("write their tables", "self-sd", "reference", "model.dtype", "--config-dir"):
        assert word in text
    assert "_hub" not in text and "_target_" not in text
    told = skipbench("nothing").stderr.partition("Commands: ")[2].partition(".")[0]
    known = told.strip().split(", ")
    assert {"table", "runrow"} < set(known)
    assert max(map(len, text.partition("commands\n")[2].partition("keys\n")[0].splitlines())) <= 80
    for name in set(known) - {"runrow"}:  # what submit's jobs call
        assert re.search(rf"^  {name} ", text, re.M), f"--help says nothing of {name}"
        keys, flags = declared(COMMANDS[name])
        own = describe(name)
        assert f"\n  python -m skipbench {name}" in own
        missing = [w for w in [*flags, *(f"{k}=" for k in keys)] if f"\n  {w}" not in own]
        assert not missing, f"--help {name} says nothing of {missing}"
    for name in ("swift", "lookahead"):  # whose key is told by each that has it
        assert re.search(
            rf"method.window \(method={name}\): [01] or more, .+", describe("method.window")
        )


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    script = ["bash", "-c", f"{sys.executable} -m skipbench --help | head -2"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("skipbench:") and not done.stderr


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["list", "methods"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == METHODS
    dispatch(["list"])
    kinds = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [kind for kind, _ in kinds] == ["models", "methods", "stop", "datasets", "experiments"]
    dispatch(["list", "stop"])
    assert "adaptive         Draft & Verify" in capsys.readouterr().out
    assert kinds[1][1].split(", ") == METHODS


def test_doctor_and_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["doctor", f"results={tmp_path}"])
    sizes = ["profile.contexts=[16,32,5000]", "profile.rows=[1,3]", "profile.repeats=1"]
    dispatch(["profile", *sizes, f"results={tmp_path}"])
    said = capsys.readouterr()
    assert "embedded model: 12 layers" in said.out
    assert "pass us" in said.out and "5000" in said.err


@pytest.mark.parametrize(
    ("engine", "decoding"),
    rest_slow(
        product(("fused", "reference"), ("sampling", "greedy")), ("fused", "sampling").__eq__
    ),
)
def test_low_precision_runs(engine: str, decoding: str, tmp_path: Path) -> None:
    words = [*SMALL, f"engine={engine}", f"decoding={decoding}", "model.dtype=bfloat16"]
    found = run_cell(compose([*words, f"results={tmp_path}", "method=uniform"]))
    assert nothing_lost(found) and found.lossless.sampled == (decoding == "sampling")


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
