"""Mutation testing: draws faults of the package by a seed, and runs the tests of the line of each.

    python -m scripts.draw_faults FOLDER --seed 1 --count 200    # again: goes on
    python -m scripts.draw_faults FOLDER --faults LIST.json      # a list that was drawn before

The first use of FOLDER clones the last commit into it and runs the tests of every day there, to
record their lines. Lines are drawn evenly among those in functions; then one of the kinds of faults
that the line can have, then one fault. Of the tests that execute the line, those of its room run
first, then the quickest; where they are few, others of their files follow, as values are cached
between tests. A fault is caught if a test fails that passes without it, or takes too long. A list
names faults by file, function and text: on a later commit they are found again, or `gone`.
"""

import argparse
import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.mutants import PASSED, ROOT, in_place, load_libraries, say, status_of
from scripts.possible_faults import Fault, faults_of, named, planted

Run = Callable[[Sequence[str]], tuple[int, str]]


class Covered:
    """The tests of a folder that lines_of_tests.py wrote, and the lines that each executes."""

    def __init__(self, folder: Path) -> None:
        from coverage import CoverageData

        self.tree, self.data = folder / "skipbench", CoverageData(folder / "lines.sqlite")
        self.data.read()
        tests = json.loads((folder / "tests.json").read_text())
        self.seconds = {name: test["seconds"] for name, test in tests.items() if test["passed"]}
        self.users = {name: {name} for name in self.seconds}  # of a context: a test or a fixture
        for name in self.seconds:
            for fixture in tests[name]["fixtures"]:
                self.users.setdefault(fixture, set()).add(name)

    def text(self, file: str) -> str:
        path = self.tree / file
        return path.read_text() if path.is_file() else ""

    def draw(self, seed: int, count: int) -> list[Fault]:
        by_line: dict[tuple[str, int], list[Fault]] = {}
        for path in sorted(p for p in self.data.measured_files() if p.endswith(".py")):
            lines = self.data.contexts_by_lineno(path)
            file = str(Path(path).relative_to(self.tree))
            for fault in faults_of(file, self.text(file)):
                if self.users.keys() & lines.get(fault["number"], ()):
                    by_line.setdefault((file, fault["number"]), []).append(fault)
        rng, drawn = random.Random(seed), list[Fault]()
        for place in rng.sample(sorted(by_line), len(by_line)):
            kind = rng.choice(sorted({fault["kind"] for fault in by_line[place]}))
            fault = rng.choice([one for one in by_line[place] if one["kind"] == kind])
            text = self.text(fault["file"])
            if ast.dump(ast.parse(planted(text, fault))) != ast.dump(ast.parse(text)):
                drawn.append(fault)
            if len(drawn) == count:
                break
        return drawn

    def tests(self, fault: Fault, most: int, seconds: float) -> tuple[list[str], int]:
        """The tests to run for a fault, and how many execute its line."""
        lines = self.data.contexts_by_lineno(str(self.tree / fault["file"]))
        contexts = lines.get(fault["number"], [])
        covering = {test for name in contexts for test in self.users.get(name, ())}
        files = {name.partition("::")[0] for name in covering}
        beside = {name for name in self.seconds if name.partition("::")[0] in files} - covering
        parts = fault["file"].split("/")[1:]
        own = "/".join(["tests", *parts[: 2 if parts[0] == "contrib" else 1], ""])
        chosen: list[str] = []

        def order(name: str) -> tuple[bool, bool, float]:
            return name in beside, not name.startswith(own), self.seconds[name]

        for name in sorted(covering | beside, key=order):
            if len(chosen) < most and self.seconds[name] <= seconds:
                seconds -= self.seconds[name]
                chosen.append(name)
        return chosen, len(covering)


def collect(folder: Path) -> None:
    """Runs the tests of every day in a clone of the last commit, and records their lines."""
    tree, home = folder / "skipbench", folder / "home"  # what tests build there serves later runs
    home.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    paths = [str(tree), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
    own = {"HOME": str(home), "LINES_OF_TESTS": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    own["OC_CAUSE"] = "0"  # else OmegaConf, where lines are traced, chains errors in a circle
    words = ["-n", "0", "-q", "-p", "lines_of_tests", "-p", "no:cacheprovider"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tree, env=os.environ | own)


def outcome(path: Path, fault: Fault, tests: Sequence[str], run: Run) -> tuple[str, str]:
    """`caught` with the test that does, `survived`, or `unclear` where tests do not end at all."""
    while tests:
        with in_place(path, planted(path.read_text(), fault)):
            status, text = run(tests)
        if status == PASSED:
            break
        heads = {line.partition(" - ")[0] for line in text.splitlines()}
        failed = [t for t in tests if {f"FAILED {t}", f"ERROR {t}"} & heads]
        if run(failed or tests)[0] == PASSED:  # without the fault
            return "caught", failed[0] if failed else f"pytest ends with {status}"
        if not failed:
            return "unclear", f"pytest ends with {status}, and not well without the fault"
        tests = [test for test in tests if test not in failed]
    return "survived", ""


def work(jobs: Sequence[tuple[Fault, list[str], int]], out: Path, folder: Path, cpu: float) -> None:
    """Appends the outcome of every fault to a file of JSON lines."""
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch, out.open("a") as file:
        tree, home, tmp = (Path(scratch, name) for name in ("skipbench", "home", "tmp"))
        subprocess.run(["git", "clone", "--quiet", folder / "skipbench", tree], check=True)
        os.environ |= {"HOME": str(home), "TMPDIR": str(tmp)}

        def run(tests: Sequence[str]) -> tuple[int, str]:
            """Status and text of pytest, with nothing left of what ran before."""
            for each in (home, tmp):
                shutil.rmtree(each, ignore_errors=True)
            shutil.copytree(folder / "home", home)
            tmp.mkdir()
            return status_of(tree, tests, cpu)

        before = 0.0
        for fault, tests, covering in jobs:
            path = tree / fault["file"]
            said, test = outcome(path, fault, tests, run) if fault["number"] else ("gone", "")
            after = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # CPU seconds
            done = {"outcome": said, "test": test, "ran": len(tests), "covering": covering}
            file.write(json.dumps(fault | done | {"cpu_s": round(after - before, 1)}) + "\n")
            file.flush()
            say(f"{said} {fault['file']}:{fault['number']} {fault['kind']} {test}")
            before = after


def outcomes(out: Path) -> dict[tuple[Any, ...], Fault]:
    lines = out.read_text().splitlines() if out.exists() else []
    return {named(fault): fault for fault in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of a commit: its lines, lists and outcomes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--faults", type=Path, help="a list that was drawn before")
    parser.add_argument("--tests", type=int, default=60, help="at most so many per fault")
    parser.add_argument("--seconds", type=float, default=120, help="of tests per fault, at most")
    parser.add_argument("--workers", type=int, default=2, help="0: draws, and runs nothing")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if not (folder / "tests.json").is_file():
        collect(folder)
    covered = Covered(folder)
    drawn = given.faults or folder / f"seed{given.seed}.json"
    if not drawn.is_file():
        drawn.write_text(json.dumps(covered.draw(given.seed, given.count), indent=1))
    out = folder / f"{drawn.stem}.jsonl"
    ran, faults = outcomes(out), json.loads(drawn.read_text())
    now = (faults_of(file, covered.text(file)) for file in {fault["file"] for fault in faults})
    here = {named(fault): fault for each in now for fault in each}
    left = [fault for fault in faults if named(fault) not in ran]
    todo = [here.get(named(fault), fault | {"number": 0}) for fault in left]  # 0: gone
    jobs = [(fault, *covered.tests(fault, given.tests, given.seconds)) for fault in todo]
    load_libraries()
    for worker in range(given.workers):
        if os.fork() == 0:
            try:
                work(jobs[worker :: given.workers], out, folder, cpu=2 * given.seconds)
            finally:
                os._exit(0)
    for _ in range(given.workers):
        os.wait()
    rooms = [(f["file"].split("/")[1], f["outcome"]) for f in outcomes(out).values()]
    counts = Counter(rooms + [("all", said) for _, said in rooms])
    print(f"at most {given.tests} tests and {given.seconds:.0f} s of tests per fault")
    for name in [*sorted({room for room, _ in rooms}), "all"]:
        caught, survived, gone = (counts[name, said] for said in ("caught", "survived", "gone"))
        print(f"{name:12} caught {caught:3} of {caught + survived:3}, gone {gone}")


if __name__ == "__main__":
    main()
