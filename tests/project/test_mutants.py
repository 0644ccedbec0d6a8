"""The script that plants faults: every fault can be planted, and what it says of some."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GONE, ROOT

from scripts.mutants import Fault, faults, planted
from scripts.possible_faults import faults_of, named
from scripts.possible_faults import planted as drawn

FAULTS = faults()


def wrong(fault: Fault) -> str | None:
    text = (ROOT / fault.file).read_text()
    try:
        if planted(fault, text) == text:
            return "changes nothing"
    except ValueError as error:
        return str(error)
    named = re.fullmatch(r"(tests/[\w/]+/test_\w+\.py)::(\w+)(?:\[.+\])?", fault.test)
    if named is None or f"def {named[2]}(" not in (ROOT / named[1]).read_text():
        return f"no test {fault.test}"
    return None


def test_every_fault_can_be_planted_and_its_test_is_there() -> None:
    assert len(FAULTS) >= 32
    gone = [f"contrib/{part}/" for part in GONE]
    here = [f for f in FAULTS if not any(part in f.file + f.test for part in gone)]
    assert len(here) >= 20 and {fault.name: wrong(fault) for fault in here if wrong(fault)} == {}


def test_a_snippet_that_is_gone_or_stands_twice_is_told() -> None:
    fault = Fault("x", "", "file.py", (("a = 1", "a = 2"), ("b", "c")), "")
    assert planted(fault, "a = 1; b") == "a = 2; c"
    for text in ("a = 3; b", "a = 1; a = 1; b", "a = 1"):
        with pytest.raises(ValueError, match=r"stands [02] times in file\.py"):
            planted(fault, text)


def test_faults_that_are_drawn_change_one_place_and_are_found_again_below_other_lines() -> None:
    text = (ROOT / "skipbench/methods/swift.py").read_text()
    found = faults_of("swift.py", text)
    kinds = {"comparison", "arithmetic", "branch", "constant", "off by one", "argument", "return"}
    assert {fault["kind"] for fault in found} == {*kinds, "order"}
    moved = f"é = 'é'\n{text}"
    again = {named(fault): fault for fault in faults_of("swift.py", moved)}
    assert len(again) == len(found)
    for fault in found:
        compile(wrong := drawn(text, fault), "swift.py", "exec")
        assert drawn(moved, again[named(fault)]) == f"é = 'é'\n{wrong}"


@pytest.mark.slow
def test_faults_are_caught_and_survivors_are_told(tmp_path: Path) -> None:
    """One that its test sees, one that changes nothing, and one whose snippet is gone."""
    given = tmp_path / "faults.toml"
    seen = next(fault for fault in FAULTS if fault.name == "threshold-sign")
    harmless = ("self.rounds += 1\n", "self.rounds += 1  # harmless\n")
    edits = {"seen": seen.edits[0], "harmless": harmless, "gone": ("not there", "")}
    given.write_text(
        "\n".join(
            f"[{name}]\nwhat = 'x'\nfile = {seen.file!r}\ntest = {seen.test!r}\n"
            f"old = {json.dumps(old)}\nnew = {json.dumps(new)}"
            for name, (old, new) in edits.items()
        )
    )
    words = [sys.executable, "scripts/mutants.py", "--faults", str(given)]

    def run(*more: str) -> tuple[int, list[str]]:
        done = subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    status, table = run("--only", "seen")
    assert status == 0 and table[-1] == "caught 1 of 1"
    status, table = run()
    assert status == 1 and table[-1] == "caught 1 of 3"
    assert "SURVIVES" in table[1] and "NOT PLANTED: stands 0 times" in table[2]
