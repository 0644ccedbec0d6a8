"""Programs in the sandbox of this user and of another."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT

from skipbench.scoring.sandbox import bubblewrap, run_program

USERS = ["this", "nobody"]
RUN = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from skipbench.scoring.sandbox import bubblewrap, run_program
to = bubblewrap()
with ThreadPoolExecutor(2) as pool:
    outcomes = pool.map(lambda program: run_program(program, to, 20.0), json.load(sys.stdin))
    json.dump([outcome.ok for outcome in outcomes], sys.stdout)
"""


def passed(programs: list[str], user: str) -> list[bool]:
    """Which of the programs pass. Skips where this user cannot become the other."""
    if user == "this":
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            outcomes = pool.map(lambda p: run_program(p, bubblewrap(), 20.0), programs)
            return [outcome.ok for outcome in outcomes]
    if os.geteuid() != 0:
        pytest.skip("root alone can become another user")
    done = subprocess.run(
        [python_of_all(), "-B", "-c", RUN],
        input=json.dumps(programs),
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        user=user,
        group="nogroup",
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[bool] = json.loads(done.stdout)
    return found


def python_of_all() -> str:
    """An interpreter that every user may start: root's own may lie in root's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([python, "-c", "import tomllib"], user="nobody", cwd="/", check=True)
            return python
        except (OSError, subprocess.SubprocessError):
            continue
    pytest.skip("no Python 3.11 here that every user may start")
