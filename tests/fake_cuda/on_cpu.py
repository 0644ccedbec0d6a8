"""Tensors that say `cuda:N` and compute on a CPU tensor inside.

Real tokens from the code path of a GPU, on one device or several, with streams, events and graphs:
see `streams` and `tape`.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fake_cuda.driver import no_driver
from fake_cuda.journal import Journal, here
from fake_cuda.streams import Machine, Memory, pinned, pinned_memory
from fake_cuda.tape import NOT_VALID, tensors
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM

aten = torch.ops.aten
CPU = torch.device("cpu")
ALIGNED = 8
"""Elements of a mask's row stride that torch's efficient kernel wants."""
COPIES = (aten.copy_.default, aten._to_copy.default)
READS = {
    aten._local_scalar_dense.default: "a number is read from the device",
    aten.nonzero.default: "a boolean index or nonzero is read from the device",
    aten.masked_select.default: "masked_select is read from the device",
    aten.equal.default: "torch.equal is read from the device",
    aten.unique_consecutive.default: "unique is read from the device",
    aten._unique2.default: "unique is read from the device",
}


class OnCuda(torch.Tensor):
    """Says `cuda:N` and computes on `inner`, a tensor of the CPU that lies in `memory`."""

    inner: torch.Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device, memory: Memory) -> Any:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]  # torch leaves it so
            cls, inner.shape, dtype=inner.dtype, device=device, requires_grad=False, **layout
        )

    def __init__(self, inner: torch.Tensor, device: torch.device, memory: Memory) -> None:
        self.inner, self.memory = inner, memory

    def tolist(self) -> Any:
        CpuBehindCuda.read("a tensor is read from the device", [self])
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return CpuBehindCuda.compute(func, args, kwargs or {})


class CpuBehindCuda(TorchDispatchMode):
    """Computes on the tensors inside, refuses operands on several devices as CUDA does, and tells
    the streams, or the graph that is being captured.
    """

    machine = Machine(Journal())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [*tensors(args), *tensors(kwargs.values())]
        if any(isinstance(t, OnCuda) for t in given) or _is_cuda(kwargs.get("device")):
            return self.compute(func, args, kwargs)
        self.machine.host_uses(given, _written(func, args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def compute(cls, func: Any, args: Any, kwargs: Any) -> Any:
        given = [*tensors(args), *tensors(kwargs.values())]
        ours = [t for t in given if isinstance(t, OnCuda)]
        hosts = [t for t in given if not isinstance(t, OnCuda)]
        copies = func in COPIES
        cls._refuse(func, ours, hosts, copies)
        asked = kwargs.get("device")
        if asked is None and given:
            asked = given[0].device if func is COPIES[0] else ours[0].device
        device = torch.device("cpu" if asked is None else asked)
        if func in READS:
            cls.read(READS[func], ours)
        elif copies and device.type == "cpu":
            return cls._to_host(func, args, kwargs, given)
        elif copies or "index" in func.__name__:
            for source in (t for t in hosts if copies or t.ndim):
                kind = "pageable" if pinned_memory(source) is None else "upload"
                cls.machine.journal.add(kind, f"{func}: {source.nbytes} bytes go to the device")
        if device.type == "cpu":
            return func(*map(_inner, args), **kwargs)
        return cls._on_device(func, args, kwargs, ours, torch.device("cuda", device.index or 0))

    @staticmethod
    def _refuse(func: Any, ours: list[OnCuda], hosts: list[torch.Tensor], copies: bool) -> None:
        if not copies and len({t.device for t in ours}) > 1:
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device ({here()})")
        if not copies and ours and any(t.ndim for t in hosts) and "index" not in func.__name__:
            raise RuntimeError(f"{func}: tensors on the host and on the device ({here()})")

    @classmethod
    def read(cls, what: str, ours: list[OnCuda]) -> None:
        """The host waits for the stream and looks at these tensors."""
        cls.machine.journal.add("read", what)
        for tensor in ours:
            stream = cls.machine.stream(tensor.device)
            cls._valid(tensor)
            cls.machine.launch(stream, [(tensor.memory, None)], [])
            cls.machine.wait(stream)

    @classmethod
    def _valid(cls, tensor: OnCuda) -> None:
        graph = tensor.memory.owner
        if graph is not None and not graph.valid and graph is not cls.machine.graph:
            cls.machine.journal.add("graph", NOT_VALID)

    @classmethod
    def _to_host(cls, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        source = given[-1]
        target = func(*map(_inner, args), **kwargs)
        if func is not COPIES[0] and _non_blocking(args, kwargs):
            pinned(target)  # as torch does
        if pinned_memory(target) is not None and _non_blocking(args, kwargs):
            cls._valid(source)
            cls.machine.to_host(target, source.device, [(source.memory, None)])
        else:
            cls.read("a copy to the host", [source])
        return target

    @classmethod
    def _on_device(
        cls, func: Any, args: Any, kwargs: Any, ours: list[OnCuda], device: torch.device
    ) -> Any:
        graph, known = cls.machine.graph, {t.memory.address: t.memory for t in ours}
        for tensor in ours:
            cls._valid(tensor)
        written = [t for t in _written(func, args, kwargs) if isinstance(t, OnCuda)]
        if graph is not None:
            for tensor in ours:
                graph.uses(tensor.memory, any(tensor is w for w in written), tensor.inner)
        inside = {k: _inner(v) for k, v in kwargs.items() if k != "pin_memory"}
        if "device" in inside:
            inside["device"] = CPU
        inner_args = tuple(map(_inner, args))
        call = ON_CPU.get(func, func)
        out = call(*inner_args, **inside)
        same = {id(t.inner): t for t in written}
        made: list[torch.Tensor] = []
        new: list[Memory] = []

        def wrapped(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) in same:
                return same[id(value)]
            address = value.untyped_storage()._cdata
            if address not in known:
                known[address] = Memory(address, graph)
                made.append(value)
                new.append(known[address])
            return OnCuda(value, device, known[address])

        result = tree_map(wrapped, out) if isinstance(out, list | tuple) else wrapped(out)
        if written or made:  # else only another view
            stream = cls.machine.stream(device)
            if graph is not None:
                graph.record(call, inner_args, inside, made, stream)
            else:
                read = [t.memory for t in ours]
                if func in COPIES and _non_blocking(args, kwargs):
                    pages = [pinned_memory(t) for t in tensors(args) if not isinstance(t, OnCuda)]
                    read += [page for page in pages if page is not None]
                cls._launch(stream, ours, read, [*(t.memory for t in written), *new])
        return result

    @classmethod
    def _launch(
        cls, stream: Any, ours: list[OnCuda], read: list[Memory], written: list[Memory]
    ) -> None:
        """One operator, on the stream of what it writes; a copy between devices has both streams
        wait for each other.
        """
        others = {t.device for t in ours} - {stream.device}
        for device in others:
            stream.wait_stream(cls.machine.stream(device))
        cls.machine.launch(stream, [(m, None) for m in read], [(m, None) for m in written])
        for device in others:
            cls.machine.stream(device).wait_stream(stream)


def _efficient(query: Any, key: Any, value: Any, bias: Any, *_: Any, scale: Any = None) -> Any:
    """Private operator of CUDA: outputs, logarithms of the sums, and two seeds."""
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    return *flash(query, key, value, attn_mask=bias, scale=scale), torch.zeros(()), torch.zeros(())


ON_CPU = {aten._scaled_dot_product_efficient_attention.default: _efficient}
_WRITTEN: dict[Any, tuple[list[int], list[str]]] = {}


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The arguments that an operator writes, by its schema."""
    if func not in _WRITTEN:
        arguments = func._schema.arguments
        at = [i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
        _WRITTEN[func] = at, [arguments[i].name for i in at]
    places, names = _WRITTEN[func]
    yield from (args[i] for i in places if i < len(args))
    yield from (kwargs[name] for name in names if name in kwargs)


def _inner(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_inner(v) for v in value]
    return value.inner if isinstance(value, OnCuda) else value


def _non_blocking(args: Any, kwargs: Any) -> bool:
    """Of a copy."""
    return bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@contextlib.contextmanager
def cpu_behind_cuda() -> Iterator[Journal]:
    """Tensors on `cuda:N` with numbers in them, made by `moved`."""
    journal = Journal()
    with no_driver(journal) as (patch, machine), CpuBehindCuda(), torch.no_grad():
        patch.setattr(CpuBehindCuda, "machine", machine)
        tolist: Any = torch.Tensor.tolist  # of a tensor of the host, which no mode sees
        patch.setattr(torch.Tensor, "tolist", lambda t: [machine.host_uses([t]), tolist(t)][1])
        functional = torch.nn.functional
        attend = _watched(journal, functional.scaled_dot_product_attention)
        patch.setattr(functional, "scaled_dot_product_attention", attend)
        yield journal


def _watched(journal: Journal, attend: Callable[..., Any]) -> Callable[..., Any]:
    """Attention, of which is noted what the kernels of a GPU refuse, or copy before they begin."""

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **more: Any
    ) -> Any:
        grouped = more.get("enable_gqa") and (attn_mask is not None or query.dtype == torch.float32)
        if query.is_cuda and grouped:
            journal.add("kernel", "grouped heads with a mask or in float32: the math kernel")
        if query.is_cuda and attn_mask is not None:
            if attn_mask.dtype not in (torch.bool, query.dtype):
                journal.add("kernel", "the mask is of another dtype")
            if any(stride % ALIGNED for stride in attn_mask.stride()[:-1]):
                journal.add("kernel", "the mask is copied, since its rows are not aligned")
        return attend(query, key, value, attn_mask, *rest, **more)

    return attention


def one_device(name: str) -> str:
    return "cuda:0"


def two_devices(name: str) -> str:
    """The second half of the layers, the norm and the head on the second device."""
    words = name.split(".")
    if "layers" in words:
        return f"cuda:{int(words[words.index('layers') + 1]) // 2}"
    return "cuda:1" if words[1] == "norm" or words[0] == "lm_head" else "cuda:0"


def lm_on(place: Callable[[str], str], engine: Any, model: Any, capacity: int = 400) -> LM:
    """The model there; inside `cpu_behind_cuda`."""
    made = partial(CudaGraphsEngine, capture=CudaGraphCapture)
    lm = LM(moved(model, place), made if engine == "cuda_graphs" else engine)
    lm.allocate(capacity)
    assert "graphs" not in " ".join(lm.notes()) and lm.cache.rows[0].is_cuda
    return lm


def moved(model: Any, device_of: Callable[[str], str]) -> Any:
    """The model with each parameter and buffer on the device that `device_of` gives its name;
    inside `cpu_behind_cuda`.
    """
    for name, module in model.named_modules():
        for kind in (module._parameters, module._buffers):
            for key, tensor in kind.items():
                if tensor is not None:
                    there = tensor.detach().to(device_of(f"{name}.{key}"))
                    own = kind is module._parameters
                    kind[key] = torch.nn.Parameter(there, requires_grad=False) if own else there
    return model
