"""scripts/gpu_report.py: what is cut or fails is said, and a kill at any moment leaves whole files.
Its rehearsal is a line of .ci/run.
"""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from scripts import gpu_steps
from scripts.gpu_bars import BARS
from scripts.gpu_page import page
from scripts.gpu_report import Report, Result, earlier, main, run_all
from scripts.gpu_steps import STEPS, Step, held, stretch

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


CALL_S, CALLS_S = 9 * 60, 18 * 60
"""Budget of a call where ten minutes are the most, and what all steps may take together."""


def again(cut: Sequence[Step]) -> str:
    return f"again {[step.name for step in cut]}"


def report_of(steps: list[Step], budget_s: float = 1000.0) -> Report:
    return Report("", "abc", False, budget_s, [Result(step.name, step.shows) for step in steps])


def facts(**more: object) -> dict[str, Any]:
    return {"line": json.dumps(more).replace('"', '\\"')}


def test_each_step_ends_in_its_own_state_and_the_page_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_steps, "START_S", 0.0)
    missed = {"figure": "speedup", "value": 1.2, "bar": ">= 1.6", "met": False}
    steps = [
        Step("bars", "Bars.", 60, PRINTS),
        Step("dies", "A crash.", 60, '-S -c "raise SystemExit(3)"'),
        Step("hangs", "A kernel that never ends.", 0.05, '-S -c "import time; time.sleep(60)"'),
        Step("silent", "Nothing.", 60, '-S -c ""'),
        Step("long", "More than is left.", 1e6, "-S -c pass"),
        Step("twice", "Bars again.", 60, PRINTS),
    ]
    report = report_of(steps)
    run_all(steps, report, tmp_path, facts(**missed), again)
    states = {r.name: (r.state, r.why.split(" s ")[0]) for r in report.steps}
    assert states == {
        "bars": ("done", ""),
        "dies": ("failed", "exit status 3"),
        "hangs": ("failed", states["hangs"][1]),
        "silent": ("failed", "no figure was printed"),
        "long": ("cut", states["long"][1]),
        "twice": ("done", "the same command as bars"),
    }
    assert report.steps[0].found == [missed] and earlier(tmp_path) == report
    assert report.steps[2].why.startswith("killed after its")
    text = (tmp_path / "README.md").read_text()
    assert "- bars: speedup is 1.2, wanted >= 1.6" in text
    assert "- **dies**: failed, exit status 3" in text and "- **long**: cut" in text
    assert "it may take 1150000; go on with `again ['long']`" in text


def test_steps_of_a_rehearsal_are_forks_that_end_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        Step("hangs", "Never ends.", 0.02, f"{tmp_path}/hangs.py"),
    ]
    monkeypatch.setattr(gpu_steps, "START_S", 0.0)
    report = report_of(steps, 100.0)
    report.rehearsal = True
    run_all(steps, report, tmp_path, {}, again)
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
    run_all(steps, report, tmp_path, facts(a=1), again)
    assert (tmp_path / "order").read_text() == "cb"


@pytest.mark.parametrize("takes", [lambda step: step.measured_s, lambda step: step.limit_s])
def test_two_calls_of_nine_minutes_hold_all_steps(takes: Callable[[Step], float]) -> None:
    """As long as each was measured to take, and up to its limit; the order is that of `STEPS`."""
    waiting, spent = [*STEPS], 0.0
    for _ in range(2):
        left = CALL_S
        assert stretch(waiting, left) >= 1
        while todo := held(waiting, left):
            left -= takes(todo[0])
            spent += takes(todo[0])
            waiting.remove(todo[0])
    assert waiting == [] and spent <= CALLS_S
    first = ["environment and ceilings", "kernels", "bars", "passes", "strict rows", "cells"]
    assert [step.name for step in held(STEPS, CALL_S)][:6] == first
    names = [step.name for step in STEPS]
    last = [names.index(name) for name in ("cells", "tests", "long contexts", "float32", "streams")]
    assert last == sorted(last)


def test_a_larger_budget_allows_a_slower_gpu_more() -> None:
    assert 1 <= stretch(STEPS, CALL_S) < 1.2 and stretch(STEPS, 3600) > 3
    assert stretch(STEPS, 0) == 1


def test_a_step_that_does_not_fit_leaves_its_place_to_one_that_does() -> None:
    long, short = Step("long", "", 100, ""), Step("short", "", 10, "")
    assert held([long, short], 50) == [short] and held([long, short], 200) == [long, short]
    assert held([long, short], 5) == []


def test_what_was_cut_names_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the same for all of them, and another call with it has the same steps left."""
    monkeypatch.setenv("SKIPBENCH_COMMIT", "a b")
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED", "HF_HUB_OFFLINE"):  # which the report sets
        monkeypatch.setenv(name, os.environ.get(name, ""))
    out = tmp_path / "h100"
    with pytest.raises(SystemExit):
        main(["--budget", "0s", "--out", str(out), "--only", "prices,cells,strict"])
    names = "strict rows,cells,prices of cuda_graphs,prices of fused"
    command = f"python scripts/gpu_report.py --budget 3m --out {out} --only '{names}'"
    report = earlier(out)
    assert report is not None
    cut = [step for step in report.steps if step.state == "cut"]
    assert [step.name for step in cut] == names.split(",")
    printed = capsys.readouterr().out
    for step in cut:
        assert step.why.endswith(f"go on with `SKIPBENCH_COMMIT='a b' {command}`")
        assert f"{step.name}: cut, {step.why}" in printed
    with pytest.raises(SystemExit):
        main([*shlex.split(command)[2:], "--budget", "0s"])
    assert [s.name for s in whole(out).steps if s.state == "cut"] == names.split(",")


def test_a_name_that_no_step_has_is_refused_with_those_that_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path), "--only", "bars,probe"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "no step 'probe'; there are: environment and ceilings" in said
    assert all(step.name in said for step in STEPS) and not [*tmp_path.iterdir()]


def test_the_page_has_a_reason_beside_each_bar_and_an_engine_that_was_replaced() -> None:
    lines = [{"figure": name, "value": 1.0, "bar": "<= 2", "met": True} for name in BARS]
    other = {"table": "plans", "engine": "fused", "engine_asked": "cuda_graphs"}
    report = report_of([STEPS[0]])
    report.steps[0].found = [*lines, other]
    text = page(asdict(report))
    for name, bar in BARS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        assert row.endswith(f"| {bar.why} |")
    wrong = text.partition("## Missing or wrong")[2].partition("##")[0]
    assert "engine fused in place of cuda_graphs" in wrong


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
