"""The script that plants faults: every fault can be planted, and what it says of some."""

import re

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
