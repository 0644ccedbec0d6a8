"""Programs in the sandbox of this user and of another."""

import contextlib
import functools
import json
import os
import pwd
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
    for python in (sys.executable, "/usr/bin/python3"):  # the first may lie in root's home
        with contextlib.suppress(PermissionError):
            if as_user(user, python, "import tomllib, skipbench.scoring.sandbox").returncode == 0:
                done = as_user(user, python, RUN, json.dumps(programs))
                assert done.returncode == 0, done.stderr
                found: list[bool] = json.loads(done.stdout)
                return found
    pytest.skip("no Python 3.11, or no checkout, that every user may read")


def as_user(
    user: str, python: str, code: str, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    command, group = [python, "-B", "-c", code], pwd.getpwnam(user).pw_gid
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    run = functools.partial(subprocess.run, user=user, group=group, extra_groups=[])
    return run(command, input=stdin, cwd="/", env=env, capture_output=True, text=True)
