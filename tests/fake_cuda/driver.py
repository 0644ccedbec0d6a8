"""What torch asks of a CUDA driver, answered without one."""

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.models.llama.modeling_llama  # noqa: F401  # its annotations name real classes
from torch.utils._device import _device_constructors

from fake_cuda.journal import Journal
from fake_cuda.streams import Event, Machine, Stream, pinned
from fake_cuda.tape import Graph

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


@contextlib.contextmanager
def no_driver(journal: Journal) -> Iterator[tuple[pytest.MonkeyPatch, Machine]]:
    """Streams, events, graphs and pinned memory; what computes runs on them."""
    device_guard()
    empty, patch, machine = torch.empty, pytest.MonkeyPatch(), Machine(journal)
    _device_constructors()  # kept by torch from its first call on: with the real `torch.empty`

    def empty_pinned(*args: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        made = empty(*args, **more)
        return pinned(made) if pin_memory else made

    def enter(mode: Any) -> None:  # wrappers are no inference tensors
        mode.held = torch.no_grad() if mode.mode else contextlib.nullcontext()
        mode.held.__enter__()

    @contextlib.contextmanager
    def selected(stream: Stream) -> Iterator[None]:
        device, before = machine.device, machine.stream(stream.device)
        machine.set_stream(stream)
        try:
            yield
        finally:
            machine.set_stream(before)
            machine.device = device

    @contextlib.contextmanager
    def on_device(device: Any) -> Iterator[None]:
        before, machine.device = machine.device, torch.device(device).index or 0
        try:
            yield
        finally:
            machine.device = before

    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    with contextlib.ExitStack() as stack:
        p = stack.enter_context(patch.context())
        stack.callback(torch.backends.cuda.enable_cudnn_sdp, cudnn)
        torch.backends.cuda.enable_cudnn_sdp(True)
        cuda: dict[str, Any] = {
            "_lazy_init": lambda: None, "synchronize": machine.synchronize,
            "Event": partial(Event, machine), "Stream": partial(Stream, machine),
            "CUDAGraph": partial(Graph, machine), "current_stream": machine.stream,
            "set_stream": machine.set_stream, "stream": selected, "device": on_device,
            "graph_pool_handle": object, "empty_cache": lambda: None,
            "mem_get_info": lambda *_: (64 << 30, 80 << 30),
        }  # fmt: skip
        for name, value in cuda.items():
            p.setattr(torch.cuda, name, value)
        p.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
        p.setattr(torch.inference_mode, "__enter__", enter)
        p.setattr(torch.inference_mode, "__exit__", lambda mode, *e: mode.held.__exit__(*e))
        p.setattr(torch, "empty", empty_pinned)
        p.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned(tensor.clone()))
        yield p, machine
