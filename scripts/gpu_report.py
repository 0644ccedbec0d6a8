"""All figures of a GPU with one command: `python scripts/gpu_report.py --budget 25m --out
results/gpu/h100`, or two calls with `--budget 9m`.

Steps in the order of their worth, each a process of its own with its own limit (`gpu_steps.py`);
what the budget does not hold is cut, with the command that goes on. `report.json` and its page,
`README.md`, are written anew after each: whenever this process is killed, both are whole. The same
command goes on with the steps that are not done. Status 1 unless all are done.

    --only NAMES    these steps, done or not: names with commas, or parts of names
    --rehearse      all of it on a CPU with tiny sizes, in a minute and a half: the engine, the
                    tests and the page that a GPU has; no figure means a GPU
    --carry FOLDER  fetches the packages that a machine with torch and transformers still needs:
                    there, pip install --no-index --no-deps --target SITE FOLDER/*.whl, and
                    PYTHONPATH=SITE

This file needs Python alone: a package that is missing or broken is a finding of the steps.
"""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # nothing is installed

from scripts import gpu_steps as plan  # noqa: E402  # found by the line above
from scripts.gpu_page import page  # noqa: E402  # likewise
from scripts.gpu_predictions import card_of  # noqa: E402  # likewise
from scripts.gpu_steps import STEPS, Step  # noqa: E402  # likewise

BUSY = 3.0  # a CPU may have other work
CARRIED = ("hydra-core", "omegaconf", "msgspec", "bayesian-optimization")
CARRIED_SOURCE = ("antlr4-python3-runtime",)  # the index has no wheel of it
PYTHON = "3.12"  # of the machine that they are carried to
PLATFORMS = "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"
COMMIT = "SKIPBENCH_COMMIT"
TAIL = 3000  # characters of a step's log in the report
Found = dict[str, Any]  # a line of JSON that a step printed


@dataclass
class Result:
    """What became of a step: waiting, running, done, failed, or cut, and why."""

    name: str
    shows: str
    state: str = "waiting"
    why: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    command: str = ""
    found: list[Found] = field(default_factory=list)
    tail: str = ""


@dataclass
class Report:
    """`report.json`."""

    began: str
    commit: str
    rehearsal: bool
    budget_s: float
    steps: list[Result]
    seconds: float = 0.0
    """Of the last call; one that goes on has a budget of its own."""


def write(path: Path, text: str) -> None:
    """Replaces a file as a whole: a process that is killed leaves the old one or the new one."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def keep(report: Report, out: Path) -> None:
    """Writes the report and its page."""
    write(out / "report.json", json.dumps(asdict(report), indent=1) + "\n")
    try:
        text = page(asdict(report))
    except (KeyError, TypeError, ValueError) as error:  # the other steps go on
        text = f"No page can be made of a line in report.json: {error!r}\n"
    write(out / "README.md", text)


def earlier(out: Path, rehearsal: bool) -> Report | None:
    """The report of an earlier call of the same commit; a step that was running then was killed,
    and waits again.
    """
    path = out / "report.json"
    read = json.loads(path.read_text()) if path.is_file() else {}
    if (read.get("commit"), read.get("rehearsal")) != (commit(), rehearsal):
        return None
    steps = [Result(**one) for one in read.pop("steps")]
    for step in steps:
        step.state = "waiting" if step.state == "running" else step.state
    return Report(**read, steps=steps)


def run(step: Result, out: Path, words: Sequence[str], how: Callable[..., int | None]) -> None:
    """Runs one step under its limit; its lines of JSON, its exit status and the end of its log."""
    log = out / "logs" / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as file:
        status = how(words, file, step.limit_s)
    step.why = f"killed after its {step.limit_s:.0f} s" if status is None else ""
    step.seconds = round(time.monotonic() - began, 1)
    text = log.read_text(errors="replace")
    step.found, step.tail = [line | notes_of(line) for line in lines(text)], text[-TAIL:]
    for word in words:
        if word.startswith("--junitxml="):
            step.found += junit(Path(word.partition("=")[2]))
    if status:
        step.why = f"exit status {status}, {(text.strip().splitlines() or [''])[-1][:200]}"
    step.why = step.why or ("" if step.found else "no figure was printed")
    step.state = "failed" if step.why else "done"


def lines(text: str) -> Iterator[Found]:
    """The lines of a log that hold JSON objects; one that was cut off is none."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def notes_of(line: Found) -> Found:
    """What the record of a run says beside its line."""
    path = Path(line.get("folder", "")) / "provenance.json"
    return {"notes": "; ".join(json.loads(path.read_text())["notes"])} if path.is_file() else {}


def junit(path: Path) -> Iterator[Found]:
    """Every test with its outcome; nothing if pytest was killed before it wrote the file."""
    if not path.is_file():
        return
    for case in ElementTree.parse(path).iter("testcase"):
        line = {"kind": "tests", "test": case.get("name"), "outcome": "passed"}
        for bad in case:
            if bad.tag in ("failure", "error", "skipped"):
                line["outcome"] = "failed" if bad.tag == "failure" else bad.tag
                line["why"] = bad.get("message", "").partition("\n")[0][:200]
        yield line


def run_all(
    steps: Sequence[Step],
    report: Report,
    out: Path,
    facts: dict[str, Any],
    again: Callable[[Sequence[Step]], str],
) -> None:
    """Runs the steps that wait, as far as the budget goes; the report is kept around each.

    Args:
        again: the command that goes on with the steps that were cut.
    """
    began, results = time.monotonic(), {result.name: result for result in report.steps}
    waiting = [step for step in steps if results[step.name].state != "done"]
    # what ran before, and failed, comes last
    waiting.sort(key=lambda step: results[step.name].seconds > 0)
    while True:
        card = card_of(line for result in report.steps for line in result.found)
        left = report.budget_s - (time.monotonic() - began)
        slower = BUSY if report.rehearsal else card.slower
        if not (todo := plan.held(waiting, left, slower)):
            break
        step, result = todo[0], results[todo[0].name]
        words = step.words.format(**{"shape": card.shape} | facts)
        result.command, result.limit_s = f"python {words}", plan.limit_of_first(todo, left, slower)
        waiting.remove(step)
        result.state, result.why = "running", ""
        keep(report, out)
        how = plan.fork if report.rehearsal else partial(plan.start, more=step.environment)
        run(result, out, shlex.split(words), how)
        report.seconds = round(time.monotonic() - began, 1)
        print(f"{step.name}: {result.state}, {result.seconds} s {result.why}", flush=True)
        keep(report, out)
    for step in waiting:
        result, needed = results[step.name], step.limit_s(slower)
        result.state = "cut"
        result.why = f"{max(0, left):.0f} s are left, and it may take {needed:.0f}; "
        result.why += f"go on with `{again(waiting)}`"
        print(f"{step.name}: cut, {result.why}", flush=True)
    keep(report, out)


def go_on(args: argparse.Namespace, cut: Sequence[Step]) -> str:
    """The command that does the steps that were cut, with a budget that holds each of them."""
    minutes = math.ceil(max(args.budget, *(step.limit_s(1.0) for step in cut)) / 60)
    words = ["python", "scripts/gpu_report.py", "--budget", f"{minutes}m", "--out", str(args.out)]
    words += ["--only", ",".join(step.name for step in cut)] if args.only else []
    words += ["--rehearse"] if args.rehearse else []
    named = os.environ.get(COMMIT)
    return (f"{COMMIT}={shlex.quote(named)} " if named else "") + shlex.join(words)


def carry(folder: Path) -> None:
    """Fetches the wheels, of the versions in constraints.txt, that a machine without a network
    needs beside torch, transformers and pytest.
    """
    text = (ROOT / "constraints.txt").read_text()
    pins = {line.partition("==")[0]: line for line in text.splitlines()}
    pip = [sys.executable, "-m", "pip"]
    fetch = [*pip, "download", "--only-binary=:all:", "--python-version", PYTHON]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    for command, names in (
        ([*fetch, *platforms, "--implementation", "cp", "-d"], CARRIED),
        ([*pip, "wheel", "-w"], CARRIED_SOURCE),
    ):
        wanted = [pins[name] for name in names]
        subprocess.run([*command, str(folder), "--no-deps", *wanted], check=True)
    print(f"{sum(f.stat().st_size for f in folder.glob('*.whl')) / 1e6:.2f} MB in {folder}")


def commit() -> str:
    """The commit of the checkout; SKIPBENCH_COMMIT where there is no `.git`."""
    found = ""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return found or os.environ.get(COMMIT, "unknown")


def seconds(text: str) -> float:
    """`25m`, `90s` or `1h` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match:
        raise argparse.ArgumentTypeError("a number with s, m or h, as 25m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def step_names(text: str) -> list[str]:
    """Names of steps, of a text with commas: each part is a name, or stands in some names."""
    every, found = [step.name for step in STEPS], list[str]()
    for part in map(str.strip, text.split(",")):
        meant = [part] if part in every else [name for name in every if part and part in name]
        if not meant:
            raise argparse.ArgumentTypeError(f"no step {part!r}; there are: {', '.join(every)}")
        found += meant
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu" / "report")
    parser.add_argument("--budget", type=seconds, default=1500.0)
    parser.add_argument("--only", type=step_names, metavar="NAMES", default=[])
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--carry", type=Path, metavar="FOLDER")
    args = parser.parse_args(words)
    if args.carry:
        return carry(args.carry)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    report = earlier(out, args.rehearse)
    report = report or Report(began, commit(), args.rehearse, args.budget, [])
    report.budget_s, known = args.budget, {result.name: result for result in report.steps}
    report.steps = [known.get(step.name) or Result(step.name, step.shows) for step in STEPS]
    for result in report.steps:
        if result.name in args.only:
            result.state = "waiting"
    swift = "swift" if all(map(find_spec, ("bayes_opt", "sklearn", "colorama"))) else "uniform"
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    tests = [str(p.relative_to(ROOT)) for p in files if "mark.gpu" in p.read_text()]
    path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    os.environ |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    if args.rehearse:
        os.environ["SKIPBENCH_EAGER_GRAPHS"] = "1"  # `EAGER_GRAPHS` of `lm/engines.py`
        plan.import_ahead()
    facts = (plan.SMALL if args.rehearse else plan.FULL) | {
        "out": shlex.quote(str(out)), "tests": " ".join(tests),
        "methods": f"self-sd,{swift},clasp,knapspec,prompt-lookup",
    }  # fmt: skip
    wanted = [step for step in STEPS if not args.only or step.name in args.only]
    run_all(wanted, report, out, facts, partial(go_on, args))
    print(f"{report.seconds:.0f} s; written: {out / 'README.md'}, report.json")
    sys.exit(any(result.state != "done" for result in report.steps))


if __name__ == "__main__":
    main()
