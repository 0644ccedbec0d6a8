"""scripts/gpu_report.py: what is cut or fails is said, and a kill at any moment leaves whole files.
Its rehearsal is a line of .ci/run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from scripts.gpu_report import Report, Result, earlier, run_all
from scripts.gpu_steps import STEPS, Step

PRINTS = "-S -c \"print('{line}')\""
DIES = """
import os, signal, sys
from pathlib import Path
from scripts.gpu_report import Report, Result, keep

def report(n):
    return Report("", "", True, 1.0, [Result("a", "b", found=[{"value": n}] * 50)])

def passes():
    seen.append(0)
    if len(seen) == int(sys.argv[2]):
        os.killpg(0, signal.SIGKILL)

def half(path, text):
    write(path, text[: len(text) // 2])
    passes()
    write(path, text)

def move(*paths):
    passes()
    replace(*paths)
    passes()

keep(report(1), Path(sys.argv[1]))
seen, write, replace = [], Path.write_text, os.replace
Path.write_text, os.replace = half, move
keep(report(2), Path(sys.argv[1]))
"""
"""Dies at the n-th moment of the second report: half written, before a file moves, and behind."""


def report_of(steps: list[Step], budget_s: float = 1000.0) -> Report:
    return Report("", "abc", False, budget_s, [Result(step.name, step.shows) for step in steps])


def facts(**more: object) -> dict[str, Any]:
    return {"line": json.dumps(more).replace('"', '\\"')}


def test_each_step_ends_in_its_own_state_and_the_page_says_it(tmp_path: Path) -> None:
    missed = {"figure": "speedup", "value": 1.2, "bar": ">= 1.6", "met": False}
    steps = [
        Step("bars", "Bars.", 60, PRINTS),
        Step("dies", "A crash.", 60, '-S -c "raise SystemExit(3)"'),
        Step("hangs", "A kernel that never ends.", 0.5, '-S -c "import time; time.sleep(60)"'),
        Step("silent", "Nothing.", 60, '-S -c ""'),
        Step("long", "More than is left.", 1e6, "-S -c pass"),
        Step("twice", "Bars again.", 60, PRINTS),
    ]
    report = report_of(steps)
    run_all(steps, report, tmp_path, facts(**missed))
    states = {r.name: (r.state, r.why.split(" s ")[0]) for r in report.steps}
    assert states == {
        "bars": ("done", ""),
        "dies": ("failed", "exit status 3"),
        "hangs": ("failed", "killed after its 0 s"),
        "silent": ("failed", "no figure was printed"),
        "long": ("cut", states["long"][1]),
        "twice": ("done", "the same command as bars"),
    }
    assert report.steps[0].found == [missed] and earlier(tmp_path) == report
    page = (tmp_path / "README.md").read_text()
    assert "- bars: speedup is 1.2, wanted >= 1.6" in page
    assert "- **dies**: failed, exit status 3" in page and "- **long**: cut" in page


def test_steps_of_a_rehearsal_are_forks_that_end_each_by_itself(tmp_path: Path) -> None:
    """With the arguments, the status and the log that a process of its own would have."""
    prints = tmp_path / "prints.py"
    prints.write_text(
        "import json, os, sys\n"
        "print(json.dumps({'given': sys.argv[1:], 'name': __name__, 'process': os.getpid()}))\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(60)\n")
    steps = [
        Step("good", "Ends.", 60, f"{prints} 0 a"),
        Step("bad", "Fails.", 60, f"{prints} 3"),
        Step("module", "A module.", 60, "-m json.tool --help"),
        Step("hangs", "Never ends.", 0.2, f"{tmp_path}/hangs.py"),
    ]
    report = report_of(steps)
    report.rehearsal = True
    run_all(steps, report, tmp_path, {})
    good, bad, module, hangs = report.steps
    processes = {os.getpid(), *(step.found[0].pop("process") for step in (good, bad))}
    assert len(processes) == 3 and good.found == [{"given": ["0", "a"], "name": "__main__"}]
    assert (good.state, bad.why) == ("done", "exit status 3")
    assert "usage" in module.tail
    assert hangs.why.startswith("killed after")


def test_what_is_done_is_not_done_again_and_what_failed_comes_last(tmp_path: Path) -> None:
    counts = f"-S -c \"open(r'{tmp_path}/order', 'a').write('NAME')\nprint('{{line}}')\""
    steps = [Step(n, n, 60, counts.replace("NAME", n)) for n in "abc"]
    report = report_of(steps)
    report.steps[0].state, report.steps[1].state = "done", "failed"
    report.steps[1].seconds = 1.0
    run_all(steps, report, tmp_path, facts(a=1))
    assert (tmp_path / "order").read_text() == "cb"


def started(*command: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def killed(child: "subprocess.Popen[bytes]") -> None:
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def whole(out: Path) -> Report:
    """The report in `out`, and a page that ends with its last step."""
    report = earlier(out)
    assert report is not None
    page = (out / "README.md").read_text()
    last = report.steps[-1].shows
    assert page.endswith("\n") and last in page
    return report


def test_a_kill_while_it_writes_leaves_whole_files(tmp_path: Path) -> None:
    values = []
    for moment in range(1, 7):
        assert started("-c", DIES, str(tmp_path), str(moment)).wait() == -signal.SIGKILL
        (step,) = whole(tmp_path).steps
        assert len(step.found) == 50
        values.append(step.found[0]["value"])
    assert values == [1, 1, 2, 2, 2, 2]


@pytest.mark.slow
def test_ten_kills_of_a_rehearsal_lose_nothing_that_was_done(tmp_path: Path) -> None:
    """At once, a moment after the report says that a step runs, and after one that it is done."""
    draw, done, file = random.Random(1), set[str](), tmp_path / "report.json"
    for number in range(1, 11):
        child = started("scripts/gpu_report.py", "--rehearse", "--out", str(tmp_path))
        for _ in range(number % 3):
            before = file.exists() and file.stat().st_mtime_ns
            while (file.exists() and file.stat().st_mtime_ns) == before:
                assert child.poll() is None
                time.sleep(0.01)
        time.sleep(draw.uniform(0.05, 1))
        killed(child)
        report = whole(tmp_path)
        assert [r.name for r in report.steps] == [step.name for step in STEPS]
        now = {r.name for r in report.steps if r.state == "done"}
        assert done <= now
        done = now
    assert len(done) >= 3
