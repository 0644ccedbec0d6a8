"""Faults planted in the package: each is found with file and line, in the first tier or in the
second.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import make_method, random_model, rest_slow
from fake_cuda import (
    SOURCE,
    CheckedCapture,
    Journal,
    cpu_behind_cuda,
    moved,
    place_of,
    planted,
)
from test_fake_cuda import PROMPT, decoded, excess
from test_fake_cuda_tokens import one_device, two_devices

from skipbench.decode.draft import State
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.loop import generate
from skipbench.decode.sampling import best_tokens, choices
from skipbench.lm import metadata
from skipbench.lm.cache import KVCache, read_later, upload
from skipbench.lm.cuda_graphs import device
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.fused import sublayers
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.model import LM
from skipbench.methods.knapspec import KnapSpec

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

Case = tuple[str, ...]
"""Method, variant, engine and perhaps dtype in the first tier; in the second a devices' map, engine
and tokens.
"""
FAULTY: dict[str, tuple[Any, str, str, Case, str]] = {
    # name: function, text, text with the fault, case, file that must be named
    "item in a chain": (
        SkipMethod._next, "return first, top", "int(first); return first, top",
        ("uniform", "greedy", "fused"), "decode/drafting.py",
    ),
    "pageable copy": (
        upload, "values.pin_memory().to(device, non_blocking=True)", "values.to(device)",
        ("vanilla", "greedy", "fused"), "lm/cache.py",
    ),
    "mask on the host": (
        AttentionMetadata._make_mask, "dtype=self.tables.dtype, device=device)",
        "dtype=self.tables.dtype)", ("uniform", "tree", "fused"), "lm/metadata.py",
    ),
    "frozen length": (
        GraphBuffers.input_preparation, "            attention.place(",
        "            self.bounds.tolist()\n            attention.place(",
        ("vanilla", "greedy", "cuda_graphs"), "lm/cuda_graphs/buffers.py",
    ),
    "boolean index": (
        choices, "best = finite_best(logits)", "best = finite_best(logits); best[best < 0]",
        ("uniform", "greedy", "fused"), "decode/sampling.py",
    ),
    "index on the host": (
        KnapSpec.adapt, "states.index_select(1, upload(rows, states.device))", "states[:, rows]",
        ("knapspec", "tree", "fused"), "methods/knapspec.py",
    ),
    "copy to the host": (
        best_tokens, "return logits.argmax(-1)", "return logits.cpu().argmax(-1)",
        ("vanilla", "greedy", "fused"), "decode/",
    ),
    "condition on a tensor": (
        sublayers.Attention.__call__, "cos, sin = metadata.rope",
        "cos, sin = metadata.rope if bool(hidden.sum() < 1) or hidden.ndim else hidden",
        ("uniform", "greedy", "fused"), "lm/fused/sublayers.py",
    ),
    "grouped heads with a mask": (
        sublayers.Attention.at_once, "(folded, keys, values, mask, scale=self.scale)",
        "(folded, keys, values, mask, scale=self.scale, enable_gqa=True)",
        ("uniform", "greedy", "fused"), "lm/fused/sublayers.py",
    ),
    "unaligned mask": (
        AttentionMetadata._repeated, 'mask.device.type == "cpu"', "True",
        ("uniform", "greedy", "fused"), "lm/fused/sublayers.py",
    ),
    "number of the host in a capture": (
        device.Mlp.work, "hidden = buffers.hidden",
        "hidden = buffers.hidden; float(hidden.sum())",
        ("vanilla", "greedy", "cuda_graphs"), "lm/cuda_graphs/work.py",
    ),
    "tables on the host": (
        metadata.rotary_cache, "= cos[0].to(device), sin[0].to(device)",
        "= cos[0].cpu(), sin[0].cpu()", ("vanilla", "greedy", "fused"), "lm/",
    ),
    "number read in commit": (
        State.commit, "base, draft, accepted = self.lm", "float(self.lm.cache.rows[0].sum()); "
        "base, draft, accepted = self.lm", ("vanilla", "greedy", "fused"), "decode/draft.py",
    ),
    "float32 mask": (
        RotaryCache._causal, "dtype=self.dtype", "dtype=torch.float32",
        ("uniform", "greedy", "fused"), "lm/fused/sublayers.py",
    ),
    "view of what a kernel lays out": (
        sublayers.Attention._one_row, "return out.reshape(1,", "return out.view(1,",
        ("vanilla", "greedy", "fused", "fp32"), "lm/fused/sublayers.py",
    ),
    "confidence before its event": (
        read_later, "arrived.synchronize()", "pass", ("chain",), "lm/cache.py",
    ),
    "event on another stream": (
        read_later, "arrived.record(torch.cuda.current_stream(values.device))",
        "arrived.record()", ("chain", "two"), "lm/cache.py",
    ),
    "index on another device": (
        KVCache.keep, "upload(kept, device)", "upload(kept, self.devices[0])",
        ("keep", "two"), "lm/cache.py",
    ),
    "stream not waited for": (
        CudaGraphCapture.capture, "self.stream.wait_stream(now)", "pass", ("graphs",),
        "lm/cuda_graphs/",
    ),
    "number frozen in the prepare graph": (
        device.DeviceGraphs._capture, "self._record(make_inputs)", "self._record("
        "lambda: [make_inputs(), buffers.bounds[2:].fill_(self.cache.length)])", ("graphs",),
        "lm/cuda_graphs/device.py",
    ),
    "buffer made anew": (
        device.DeviceGraphs.load, "metadata.token_rows)\n            self._out",
        "metadata.token_rows); held.buffers.bounds = held.buffers.bounds.clone()\n"
        "            self._out", ("graphs",), "lm/cuda_graphs/buffers.py",
    ),
    "output of a graph in its pool": (
        GraphBuffers.input_preparation, "            attention.place(",
        "            self.cos = self.cos.clone()\n            attention.place(",
        ("graphs",), "lm/cuda_graphs/",
    ),
}  # fmt: skip


LENGTHS = {"greedy": 5, "tree": 12}  # tokens; of a tree so many that rows have to be moved


def on_fake(method: str, variant: str, engine: str, dtype: str = "bf16") -> list[str]:
    """What the first tier finds."""
    return excess(*decoded(method, variant, engine, dtype, LENGTHS[variant]), variant)


def on_cpu(case: str, devices: str = "one") -> list[str]:
    """What the second tier finds."""
    with cpu_behind_cuda() as journal:
        place = two_devices if devices == "two" else one_device
        graphs: Any = partial(CudaGraphsEngine, capture=CheckedCapture)
        lm = LM(moved(random_model("llama"), place), graphs if case == "graphs" else "fused")
        lm.allocate(120)
        if case == "keep":
            lm.prefill(PROMPT)
            lm.cache.keep([len(PROMPT) + 1, len(PROMPT) + 3])
        else:
            generate(lm, make_method("uniform", "method.stop.threshold=0.01"), PROMPT, 4)
        return journal.lines("order", "graph", "capture")


def found_in(case: Case) -> list[str]:
    return (on_cpu if case[0] in ("chain", "keep", "graphs") else on_fake)(*case)


DAILY = {  # one of each kind that is found: a read, a copy, a place, a kernel, a capture, an order
    "boolean index", "pageable copy", "index on the host", "grouped heads with a mask",
    "number of the host in a capture", "confidence before its event", "index on another device",
    "number frozen in the prepare graph", "stream not waited for",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_still_has_its_place(fault: str) -> None:
    """Every day, as most faults are planted in the slow tier."""
    function, old, *_ = FAULTY[fault]
    assert Path(function.__code__.co_filename).read_text().count(old) == 1


@pytest.mark.parametrize("fault", rest_slow(FAULTY, DAILY.__contains__))
def test_an_injected_fault_is_caught_with_file_and_line(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, old, new, case, file = FAULTY[fault]
    planted(monkeypatch, function, old, new)
    try:
        found = found_in(case)
    except AssertionError as error:  # what was found before the first token
        found = str(error).splitlines()
    except (RuntimeError, ValueError) as error:  # what torch refuses
        found = [f"{place_of(error)}: {error}"]
    assert any(re.search(rf"{file}[\w/.]*:\d+", line) for line in found), found


@pytest.mark.slow
def test_a_faultless_run_finds_nothing() -> None:
    """Whatever the faults above are caught in runs clean without them."""
    for case in {case for *_, case, _ in FAULTY.values()}:
        assert not found_in(case), case


@pytest.mark.parametrize("case", [("graphs",), ("chain", "two"), ("keep", "two")])
def test_the_second_tier_finds_nothing_without_a_fault(case: Case) -> None:
    assert not found_in(case)


def test_a_place_is_in_the_package_whatever_the_checkout_is_called() -> None:
    def caller(path: str) -> Any:
        return eval(compile("lambda call, *arguments: call(*arguments)", path, "eval"))

    ours, journal = caller(f"{SOURCE}lm/any.py"), Journal()
    for folder in ("/x/skipbench/.venv", "/x/.venvs/skipbench"):
        theirs = caller(f"{folder}/lib/python3.12/site-packages/torch/any.py")
        ours(theirs, journal.add, "read", "")
        with pytest.raises(ZeroDivisionError) as error:
            ours(theirs, lambda: 1 / 0)
        assert [place_of(error.value), journal.since[-1].where] == ["lm/any.py:1"] * 2
