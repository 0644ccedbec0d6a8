"""The script that plants faults: every fault can be planted, and what it says of some."""

import re

import pytest
from conftest import ROOT

from scripts.mutants import Fault, faults, main, planted

FAULTS = faults()


def wrong(fault: Fault) -> str | None:
    text = (ROOT / fault.file).read_text()
    try:
        if planted(fault, text) == text:
            return "changes nothing"
    except ValueError as error:
        return str(error)
    named = re.fullmatch(r"(tests/test_\w+\.py)::(\w+)(?:\[.+\])?", fault.test)
    if named is None or f"def {named[2]}(" not in (ROOT / named[1]).read_text():
        return f"no test {fault.test}"
    return None


def test_every_fault_can_be_planted_and_its_test_is_there() -> None:
    assert len(FAULTS) >= 32
    assert {fault.name: wrong(fault) for fault in FAULTS if wrong(fault)} == {}


def test_a_snippet_that_is_gone_or_stands_twice_is_told() -> None:
    fault = Fault("x", "", "file.py", (("a = 1", "a = 2"), ("b", "c")), "")
    assert planted(fault, "a = 1; b") == "a = 2; c"
    for text in ("a = 3; b", "a = 1; a = 1; b", "a = 1"):
        with pytest.raises(ValueError, match=r"stands [02] times in file\.py"):
            planted(fault, text)


@pytest.mark.slow
def test_faults_are_caught_and_survivors_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that its test sees, one that it does not see, and one whose snippet is gone."""
    seen = next(fault for fault in FAULTS if fault.name == "threshold-sign")
    rest = (seen.what, seen.file)
    harmless = (("self.rounds += 1\n", "self.rounds += 1  # harmless\n"),)
    planted = [
        seen,
        Fault("harmless", *rest, harmless, seen.test),
        Fault("gone", *rest, (("not there", ""),), seen.test),
    ]
    monkeypatch.setattr("scripts.mutants.faults", lambda: planted)
    assert main(["--only", "threshold-sign"]) == 0
    assert main([]) == 1
    table = capsys.readouterr().out.splitlines()
    assert table[1] == "caught 1 of 1" and table[-1] == "caught 1 of 3"
    assert "SURVIVES" in table[3] and "NOT PLANTED: stands 0 times" in table[4]
