"""CUDA code paths on a machine without CUDA, in two tiers.

`fake_cuda` runs on FakeTensors: shapes and devices without numbers. It finds tensors on a wrong
device, host reads, copies that make the host wait, and operations that no capture may contain, each
with file and line. `cpu_behind_cuda` runs on tensors that say `cuda:N` and compute on a CPU tensor
inside: real tokens from the code path of a GPU, on one device or several.

What neither shows is listed in docs/gpu.md: kernels, streams, timing.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import skipbench
from skipbench.profile.clock import PHASES

aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default: "a number is read from the device",
    aten.nonzero.default: "a boolean index or nonzero is read from the device",
    aten.masked_select.default: "masked_select is read from the device",
    aten.equal.default: "torch.equal is read from the device",
    aten.unique_consecutive.default: "unique is read from the device",
    aten._unique2.default: "unique is read from the device",
}
TOKENS = 50  # fewer than any model of the tests has
SOURCE = os.path.dirname(skipbench.__file__) + os.sep
"""Folder of the package; a checkout or an environment may be called `skipbench`, too."""
GUARD = """#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);
"""


@functools.cache
def device_guard() -> None:
    """Registers a device guard that does nothing where torch is built without CUDA; skips the test
    where no compiler is at hand.
    """
    if torch.backends.cuda.is_built():
        return
    if shutil.which("g++") is None:
        pytest.skip("g++ is needed: torch's CPU build has no device guard for CUDA")
    at = Path(torch.__file__).parent
    library = Path(tempfile.gettempdir()) / f"skipbench-guard-{os.getuid()}-{torch.__version__}.so"
    if not library.exists():  # one compilation serves all processes
        folder = Path(tempfile.mkdtemp(dir=library.parent))
        source, made = folder / "guard.cpp", folder / "guard.so"
        source.write_text(GUARD)
        words = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{at}/include", str(source)]
        subprocess.run([*words, "-o", str(made), f"-L{at}/lib", "-lc10"], check=True)
        made.rename(library)
        shutil.rmtree(folder)
    ctypes.CDLL(str(library))


@dataclass(frozen=True)
class Found:
    """One thing that the host did to the device.

    Attributes:
        kind: `read` (the host waits for a value), `wait` (for an event), `pageable` (for a copy to
            the device), `upload` (a copy that it does not wait for), `device` (operands on several
            devices), `capture` (what no capture may contain), `kernel` (attention in the math
            kernel, or a mask that the efficient one refuses).
    """

    kind: str
    what: str
    where: str


class Journal:
    """What was found, by phase of the decoding loop."""

    def __init__(self) -> None:
        self.capturing = False
        self.clear()

    def clear(self) -> None:
        self.phases: dict[str, list[Found]] = {phase: [] for phase in ("", *PHASES)}
        self.since: list[Found] = []
        self.kernels: Counter[str] = Counter()

    def add(self, kind: str, what: str) -> None:
        if self.capturing and kind not in ("device", "kernel"):
            kind = "capture"
        self.since.append(Found(kind, what, here()))

    def mark(self, phase: str) -> None:
        self.phases[phase] += self.since
        self.since = []

    def count(self, phase: str, *kinds: str) -> int:
        return sum(found.kind in kinds for found in self.phases[phase])

    def lines(self, *kinds: str) -> list[str]:
        """Every distinct finding of these kinds, with its place and how often it occurred."""
        counted = Counter(
            f"{f.where}: {f.what}" for p in self.phases.values() for f in p if f.kind in kinds
        )
        return [f"{line} ({count} times)" for line, count in counted.items()]


def planted(patch: pytest.MonkeyPatch, function: Any, old: str, new: str) -> None:
    """Gives `function` the code that its file would hold with `new` in the place of `old`, on the
    same lines.
    """
    path = Path(function.__code__.co_filename)
    text = path.read_text()
    assert text.count(old) == 1 and old.count("\n") == new.count("\n"), f"{path}: {old}"
    todo = [compile(text.replace(old, new), str(path), "exec")]
    while todo:
        code = todo.pop()
        if code.co_qualname == function.__qualname__:
            patch.setattr(function, "__code__", code)
            return
        todo += [c for c in code.co_consts if isinstance(c, CodeType)]
    raise AssertionError(f"{function.__qualname__} is not in {path}")


def place_of(error: BaseException) -> str:
    """File and line of the innermost frame of the package that an error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(SOURCE)]
    return f"{frames[-1].filename.removeprefix(SOURCE)}:{frames[-1].lineno}" if frames else "?"


def here() -> str:
    """File and line of the innermost frame inside the package, or inside a test."""
    frame, test = sys._getframe(2), "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(SOURCE):
            return f"{name.removeprefix(SOURCE)}:{frame.f_lineno}"
        if test == "?" and Path(name).name.startswith("test_"):
            test = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return test


class PhaseClock:
    """Stands in the place of `Clock` and sorts the journal by phase."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def start(self) -> None:
        self.journal.mark("")

    def mark(self, phase: str) -> None:
        self.journal.mark(phase)

    def stop(self) -> dict[str, float]:
        self.journal.mark("other")
        return dict.fromkeys(PHASES, 0.0)


class _Event:
    journal: Journal | None = None

    def __init__(self, **_: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        if self.journal is not None:
            self.journal.add("wait", "an event is waited for")

    def elapsed_time(self, _: Any) -> float:
        return 1.0


@contextlib.contextmanager
def _no_driver(journal: Journal) -> Iterator[pytest.MonkeyPatch]:
    """What torch asks of a driver, answered without one."""
    device_guard()
    empty, patch = torch.empty, pytest.MonkeyPatch()
    _device_constructors()  # kept by torch from its first call on: with the real `torch.empty`

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        copy.is_page_locked = True  # type: ignore[attr-defined]  # seen by the modes below
        return copy

    def empty_pinned(*args: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        made = empty(*args, **more)
        if pin_memory:
            made.is_page_locked = True  # type: ignore[attr-defined]  # as above
        return made

    def enter(mode: Any) -> None:  # neither tier can live with inference tensors
        mode.held = torch.no_grad() if mode.mode else contextlib.nullcontext()
        mode.held.__enter__()

    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    with contextlib.ExitStack() as stack:
        p = stack.enter_context(patch.context())
        stack.callback(torch.backends.cuda.enable_cudnn_sdp, cudnn)
        torch.backends.cuda.enable_cudnn_sdp(True)
        p.setattr(torch.cuda, "_lazy_init", lambda: None)
        p.setattr(torch.cuda, "synchronize", lambda *_: None)
        p.setattr(torch.cuda, "Event", type("Event", (_Event,), {"journal": journal}))
        p.setattr(torch.cuda, "current_stream", lambda *_: None)
        p.setattr(torch.inference_mode, "__enter__", enter)
        p.setattr(torch.inference_mode, "__exit__", lambda mode, *e: mode.held.__exit__(*e))
        p.setattr(torch, "empty", empty_pinned)
        p.setattr(torch.Tensor, "pin_memory", pinned)
        yield p


def _stand_ins() -> Iterator[float]:
    """Numbers in the place of those that a FakeTensor does not have."""
    return itertools.cycle((0.93, 0.4, 0.7, 0.99, 0.12))


class Watch(TorchDispatchMode):
    """On top of FakeTensorMode: notes reads, copies and mixed devices, and goes on with stand-ins
    where a number is missing.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal, self.values = journal, _stand_ins()

    def value(self, dtype: torch.dtype) -> Any:
        number = next(self.values)
        if dtype == torch.bool:
            return number > 0.5
        return number if dtype.is_floating_point else int(10 * number)

    def listed(self, tensor: torch.Tensor) -> Any:
        """In the place of `tolist`, which would ask for one element after the other."""
        if tensor.is_cuda:
            self.journal.add("read", "a tensor is read from the device")
        count = tensor.numel()
        values = (
            # distinct, so that trees keep their leaves, and within every model's vocabulary
            [number % TOKENS for number in range(count)]
            if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool
            else [self.value(tensor.dtype) for _ in range(count)]
        )
        for size in reversed(tensor.shape[1:]):
            values = [values[i : i + size] for i in range(0, len(values), size)]
        return values if tensor.ndim else values[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_device = [t for t in given if t.is_cuda]
        if func in READS:
            if on_device:
                self.journal.add("read", READS[func])
            if func is aten._local_scalar_dense.default:
                return self.value(args[0].dtype)
            if func is aten.nonzero.default:
                rows = max(1, args[0].numel())
                return args[0].new_zeros((rows, args[0].ndim), dtype=torch.int64)
            if func is aten.equal.default:
                return True
        if len({t.device for t in on_device}) > 1 and func is not aten.copy_.default:
            self.journal.add("device", f"{func}: operands on several devices")
        out = func(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        kinds = {t.device.type for t in (*given, *made)}
        if kinds == {"cpu", "cuda"}:
            self._crossed(func, given, made, kwargs)
        return out

    def _crossed(self, func: Any, given: Any, made: Any, kwargs: Any) -> None:
        hosts = [t for t in given if not t.is_cuda]
        if func in (aten.copy_.default, aten._to_copy.default):
            target, source = (given[0], given[1]) if len(given) == 2 else (made[0], given[0])
            goes_up = target.is_cuda
            waits = not getattr(source if goes_up else target, "is_page_locked", False)
            if goes_up:
                size = source.numel() * source.element_size()
                kind = "pageable" if waits else "upload"
                self.journal.add(kind, f"{size} bytes go to the device")
            elif waits:
                self.journal.add("read", "a copy to the host")
        elif func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            self.journal.add("pageable", f"{func}: an index on the host")
        elif any(t.ndim for t in hosts):
            self.journal.add("device", f"{func}: operands on the host and on the device")


ALIGNED = 8
"""Elements of a mask's row stride, and bytes of its address, that the efficient kernel wants."""


def sdpa_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """The kernel that torch 2.13 takes: `flash`, `efficient`, or `math`; `misaligned` where the
    efficient one would raise; and on a H100, whose rules differ in this, `cudnn` unless it is off.

    Rules of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: flash takes half precision and
    no mask; the efficient one takes no grouped heads, and copies a mask whose rows are not aligned.
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    dense = all(t.stride(-1) == 1 for t in (query, key, value))
    grouped = query.shape[-3] != key.shape[-3]
    if grouped and not enable_gqa:
        raise RuntimeError("scaled_dot_product_attention: heads differ without enable_gqa")
    if half and dense and torch.backends.cuda.cudnn_sdp_enabled():
        return "cudnn"
    if half and mask is None and dense and query.shape[-1] <= 256:
        return "flash"
    if enable_gqa or not dense:
        return "math"
    if mask is not None:
        strides = [s for s, n in zip(mask.stride()[:-1], mask.shape[:-1], strict=True) if n > 1]
        if mask.stride(-1) != 1:
            return "math"
        if all(s % ALIGNED == 0 for s in strides):
            offset = mask.storage_offset() * mask.element_size()
            return "efficient" if offset % ALIGNED == 0 else "misaligned"
    return "efficient"


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "flash": lambda *qkv: aten._scaled_dot_product_flash_attention(*qkv)[0],
    "cudnn": lambda *qkv: aten._scaled_dot_product_cudnn_attention(*qkv, None, False)[0],
    "efficient": lambda *qkv: aten._scaled_dot_product_efficient_attention(*qkv, None, False)[0],
}
"""As torch's meta kernels answer: shape, device and layout of what each kernel returns."""


def _attention(journal: Journal) -> Callable[..., torch.Tensor]:
    """Attention as one kernel: what it allocates, and which it would be."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        kernel = sdpa_kernel(query, key, value, attn_mask, is_causal, enable_gqa)
        journal.kernels[kernel] += 1
        if kernel in ("math", "misaligned", "cudnn"):
            journal.add("kernel", f"attention takes {kernel}")
        if attn_mask is not None and any(s % ALIGNED for s in attn_mask.stride()[:-1]):
            journal.add("kernel", "the mask is copied, since its rows are not aligned")
            torch.nn.functional.pad(attn_mask, (0, ALIGNED - attn_mask.shape[-1] % ALIGNED))
        if kernel == "math":  # scores twice, and grouped heads repeated, all in float32
            shape = (*query.shape[:-1], key.shape[-2])
            scores = [query.new_empty(shape, dtype=torch.float32) for _ in range(2)]
            groups = query.shape[-3] // key.shape[-3]
            wide = [t.float().repeat_interleave(groups, -3) for t in (key, value)]
            del scores, wide
        if kernel in KERNELS:  # its own layout
            return KERNELS[kernel](query, key, value)
        # shapes and devices, at the price of one operator
        return (query + key[..., :1, :1].sum() + value[..., :1, :1].sum()).contiguous()

    return attention


def _rms_norm(
    hidden: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """One kernel, as on a GPU."""
    assert tuple(hidden.shape[-len(shape) :]) == tuple(shape)
    return hidden.clone() if weight is None else hidden * weight


@contextlib.contextmanager
def fake_cuda() -> Iterator[Journal]:
    """FakeTensors on `cuda`, watched."""
    journal = Journal()
    with _no_driver(journal) as patch, FakeTensorMode(), torch.no_grad(), Watch(journal) as watch:
        patch.setattr(FakeTensor, "tolist", lambda tensor: watch.listed(tensor))
        patch.setattr(FakeTensor, "numpy", lambda tensor: np.array(watch.listed(tensor)))
        functional = torch.nn.functional
        patch.setattr(functional, "scaled_dot_product_attention", _attention(journal))
        patch.setattr(functional, "rms_norm", _rms_norm)
        yield journal


class FakeCapture:
    """Runs what would be captured with the journal in capture mode, where every read and every copy
    between host and device is a fault.
    """

    journal: Journal

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        before, self.journal.capturing = self.journal.capturing, True
        try:
            work()
        finally:
            self.journal.capturing = before
        return work

    def seconds(self, replay: Callable[[], None]) -> float | None:
        return None


# The second tier.


class OnCuda(torch.Tensor):
    """Says `cuda:N` and computes on `inner`, a tensor of the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> Any:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]  # torch leaves it so
            cls, inner.shape, dtype=inner.dtype, device=device, requires_grad=False, **layout
        )

    def __init__(self, inner: torch.Tensor, device: torch.device) -> None:
        self.inner = inner

    def tolist(self) -> Any:
        CpuBehindCuda.journal.add("read", "a tensor is read from the device")
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def __repr__(self) -> str:  # type: ignore[override]  # no contents
        return f"OnCuda({self.inner}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return CpuBehindCuda.compute(func, args, kwargs or {})


class CpuBehindCuda(TorchDispatchMode):
    """Computes on the tensors inside, and refuses operands on several devices as CUDA does."""

    journal = Journal()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = any(isinstance(t, OnCuda) for t in tree_leaves((args, kwargs)))
        if ours or _is_cuda(kwargs.get("device")):
            return self.compute(func, args, kwargs)
        return func(*args, **kwargs)

    @classmethod
    def compute(cls, func: Any, args: Any, kwargs: Any) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        ours = [t for t in given if isinstance(t, OnCuda)]
        hosts = [t for t in given if not isinstance(t, OnCuda)]
        copies = func in (aten.copy_.default, aten._to_copy.default)
        if func in READS:
            cls.journal.add("read", READS[func])
        if not copies and len({t.device for t in ours}) > 1:
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device ({here()})")
        if not copies and ours and any(t.ndim for t in hosts) and "index" not in func.__name__:
            raise RuntimeError(f"{func}: tensors on the host and on the device ({here()})")
        asked = kwargs.get("device")
        device = torch.device(asked) if asked is not None else ours[0].device if ours else None
        if device is not None and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", 0)
        inside = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        if _is_cuda(asked):
            inside["device"] = torch.device("cpu")
        out = func(*tree_map(_inner, args), **tree_map(_inner, inside))
        if device is None or device.type == "cpu":
            if copies and ours:
                cls.journal.add("read", "a copy to the host")
            return out
        known = {id(t.inner): t for t in ours}
        return tree_map(
            lambda t: known.get(id(t), OnCuda(t, device)) if isinstance(t, torch.Tensor) else t, out
        )


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnCuda) else value


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@contextlib.contextmanager
def cpu_behind_cuda() -> Iterator[Journal]:
    """Tensors on `cuda:N` with numbers in them, made by `moved`."""
    journal = CpuBehindCuda.journal = Journal()
    with _no_driver(journal), CpuBehindCuda(), torch.no_grad():
        yield journal


def moved(model: Any, device_of: Callable[[str], str]) -> Any:
    """The model with each parameter and buffer on the device that `device_of` gives its name;
    inside `cpu_behind_cuda`.
    """
    for name, module in model.named_modules():
        for kind in (module._parameters, module._buffers):
            for key, tensor in kind.items():
                if tensor is None:
                    continue
                there = tensor.detach().to(device_of(f"{name}.{key}"))
                kind[key] = (
                    torch.nn.Parameter(there, requires_grad=False)
                    if kind is module._parameters
                    else there
                )
    return model
