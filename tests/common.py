"""Tiny random models of every family, and the methods of `conf/method`, for all tests."""

import functools
import gc
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar

# before numpy: workers share the cores
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pytest
import torch

from skipbench.cli.main import main
from skipbench.config.catalog import choices, file_of, target_of
from skipbench.config.compose import compose
from skipbench.config.extensions import load, registered
from skipbench.config.run_config import MethodConfig
from skipbench.config.signature import schema_of
from skipbench.decode.method import Method
from skipbench.errors import SkipbenchError
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.engines import EAGER_GRAPHS
from skipbench.lm.model import LM
from skipbench.models.random_weights import random_model as random_model
from skipbench.profile import latency, roofline, rows
from skipbench.report.published import paper_of
from skipbench.runs.measures import Metrics
from skipbench.scoring.sandbox import bubblewrap

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
LAYERS = 4
METHODS = choices("method")
PAPERS = [name for name in choices("experiment") if paper_of(name)]
"""Experiments of the papers."""
ALONE = [m for m in METHODS if m != "draft-model"]
"""Those that need no second checkpoint (tests/methods/test_presets.py makes one)."""
ANYWHERE = [m for m in ALONE if m != "int8"]
"""Those that run on engines without products of 8 bits, too."""
ONE_SET = {"first", "fixed", "last", "middle", "random", "self-sd-c"}
"""Those that are `uniform` or `self-sd` with another skip set: the same class does all else."""
ENGINES = ("reference", "fused")
EVERY_ENGINE = (*ENGINES, "cuda_graphs")
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
Result = TypeVar("Result")
Command = Callable[..., "CompletedProcess[str]"]  # the fixture `skipbench`
# What a timing says does not matter here: runs of tests take few calls for theirs.
latency.CONTEXTS, latency.REPEATS, latency.UNTIMED, rows.REPEATS = 1, 1, 0, 1
latency.MEASURED = 1, 4, 32
for name in registered("profile"):
    vars(sys.modules[load("profile", name).__module__])["ROUNDS"] = 1
roofline.PRODUCT, roofline.MAX_BYTES, roofline.TRIES = 64, 1 << 20, 2


CONTRIB_PARTS = re.findall(r"^\| `contrib/(\w+)/`", (ROOT / "docs/structure.md").read_text(), re.M)
GONE = [part for part in CONTRIB_PARTS if not (ROOT / "skipbench/contrib" / part).is_dir()]
WHOLE_TREE = pytest.mark.skipif(bool(GONE), reason=f"not here of skipbench/contrib: {GONE}")
"""For tests of texts that speak of contrib, too: the documentation, and faults to plant."""

REHEARSED = bool(os.environ.get(EAGER_GRAPHS))
"""Tests marked `gpu` run on the CPU; graphs are called, what a GPU alone shows is not judged."""
ON_GPU = torch.cuda.is_available() and not REHEARSED
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
NEEDS_GPU = pytest.mark.skipif(
    not (ON_GPU or REHEARSED), reason=f"no CUDA device is at hand, nor {EAGER_GRAPHS}=1"
)


def host_waits(work: Callable[[], Result]) -> tuple[Result, int]:
    """What `work` returns, and how often the host waited for a GPU in it, by the warnings of
    torch's sync debug mode; another one, that the mode is a prototype, comes once.
    """
    if not ON_GPU:
        return work(), 0
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return result, sum("called a synchronizing" in str(one.message) for one in found)


@functools.cache
@torch.inference_mode(False)  # kept for tests outside of inference mode, whichever comes first
def random_lm(family: str, engine: str, vocab: int = 61) -> LM:
    """The random model under an engine, with room for every test; `cuda_graphs` re-executes what it
    records.
    """
    lm = LM(
        random_model(family, vocab),
        partial(CudaGraphsEngine, capture=EagerCapture) if engine == "cuda_graphs" else engine,
    )
    lm.allocate(480)  # committed tokens, and the widest tree of any method
    return lm


def shallow(family: str, layers: int = 2) -> Any:
    """The random model's first layers."""
    model = random_model(family)
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:layers], layers
    return model


NEEDED = {  # what a run provides, or what lets a method act within a few tokens
    "fixed": ['method.skip="attn:1,2;mlp:2"'],
    "self-sd": ['method.skip="attn:1,2;mlp:2"'],
    "self-sd-c": ['method.skip="attn:1,2;mlp:2"'],
    "clasp": ["method.interval=2"],
    "knapspec": ["method.interval=3", "method.history=2", "method.latency=[1e-4,1e-7,1e-4]"],
    "lookahead": ["preset=paper"],
    "recycling": ["preset=paper"],
    "swift": ["method.window=4", "method.beta=3"],
    "int8": ["method.stop.row_prices=[1,1.02,1.04,1.1,1.2,1.4]"],
    "auto": [
        "method.row_prices=[1,1.02,1.04,1.1,1.2,1.4]",
        "method.window=4",
        "method.explore=1",
    ],
}


def make_method(name: str, *overrides: str, layers: int = LAYERS) -> Method:
    """The method of `conf/method/<name>.yaml` with what it needs, then `overrides`."""
    method: Method = composed_method(name, *overrides).factory()(layers=layers)
    return method


@functools.cache  # one composition per method and variant, of which the contract makes many methods
def composed_method(name: str, *overrides: str) -> MethodConfig:
    other_rule = any(word.startswith("stop@") for word in overrides)
    needed = [w for w in NEEDED.get(name, []) if not (other_rule and w.startswith("method.stop."))]
    return compose([f"method={name}", *needed, *overrides]).method


def settings_of(name: str) -> set[str]:
    """The settings that `conf/method/<name>.yaml` has, without a composition (0.2 s)."""
    target = target_of(file_of("method", name))
    assert target is not None
    return {*schema_of(target).__struct_fields__}


OURS = {"auto": "auto", "lowbit": "int8|price"}
"""Methods, stop rules and variants of weights of `skipbench.contrib`, by part."""


def here(cases: Iterable[Any]) -> list[Any]:
    """Those of the cases that need no part of contrib that is not there."""
    gone = "|".join(words for part, words in OURS.items() if part in GONE) or "(?!)"
    return [case for case in cases if not re.search(rf"\b({gone})\b", str(case))]


def rest_slow(cases: Iterable[Any], keep: Callable[[Any], bool]) -> list[Any]:
    """Cases for `parametrize`; those that `keep` does not name belong to the slow tier.

    `keep` must say True or False, and True of a case at least: a name that is misspelt, or that no
    case has any more, would leave a test to the slow tier alone.
    """
    marked, daily = [], 0
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        kept = keep(case)
        assert isinstance(kept, bool), f"{case}: {kept!r} is neither True nor False"
        daily += kept
        marked.append(pytest.param(*values, marks=() if kept else pytest.mark.slow))
    assert daily, "no case is of every day"
    return marked


def nothing_lost(metrics: Metrics | None) -> bool:
    """Whether samples were decoded, and none ended apart from vanilla's, or unchecked."""
    assert metrics is not None
    return bool(metrics.samples) and not metrics.lossless.diverged + metrics.lossless.unchecked


def pytest_sessionstart() -> None:
    """Ctrl-C arrives where tests were started in the background, whose shell ignores it, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """What was imported, or is kept for other modules, stays: the garbage collector, which every
    load of a model calls, need not look at it again and again.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Float sums do not depend on the number of threads of the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def isolated() -> None:
    """For tests that execute code: skips them where nothing can isolate it."""
    try:
        bubblewrap()
    except SkipbenchError as error:
        pytest.skip(str(error))


@pytest.fixture
def skipbench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command line in this process: words in; exit status, stdout and stderr out.

    A log handler that Hydra puts on the captured streams goes when the test ends. Hydra closes the
    handlers that it finds, and absl's would close pytest's stream with it: it finds none.
    """
    monkeypatch.setattr(logging, "_handlerList", [])
    monkeypatch.setattr(logging.root, "handlers", logging.root.handlers[:])
    monkeypatch.chdir(ROOT)

    def run(*words: str) -> "CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["skipbench", *words])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        return CompletedProcess(words, status, *capsys.readouterr())

    return run
