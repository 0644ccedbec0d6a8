"""Every fault of `scripts/mutants.toml` can be planted, and its test is there."""

import re

from conftest import GONE, ROOT

from scripts.mutants import Fault, faults, planted

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
