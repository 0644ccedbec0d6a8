"""The first tier: FakeTensors on `cuda`, shapes and devices without numbers.

It finds tensors on a wrong device, host reads, copies that make the host wait, operations that no
capture may contain, and what kernels of attention refuse, each with file and line.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fake_cuda.attention import attention_on, rms_norm
from fake_cuda.driver import no_driver
from fake_cuda.journal import Journal
from fake_cuda.streams import Machine, pinned_memory

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


def _stand_ins() -> Iterator[float]:
    """Numbers in the place of those that a FakeTensor does not have."""
    return itertools.cycle((0.93, 0.4, 0.7, 0.99, 0.12))


class Watch(TorchDispatchMode):
    """On top of FakeTensorMode: notes reads, copies and mixed devices, and goes on with stand-ins
    where a number is missing.
    """

    def __init__(self, journal: Journal, machine: Machine) -> None:
        super().__init__()
        self.journal, self.machine, self.values = journal, machine, _stand_ins()

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
            self.machine.host_uses(t for t in given if not t.is_cuda)
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
            waits = pinned_memory(source if goes_up else target) is None
            if goes_up:
                size = source.numel() * source.element_size()
                kind = "pageable" if waits else "upload"
                self.journal.add(kind, f"{size} bytes go to the device")
            elif waits:
                self.journal.add("read", "a copy to the host")
            else:
                self.machine.to_host(target, source.device, [])
        elif func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            self.journal.add("pageable", f"{func}: an index on the host")
        elif any(t.ndim for t in hosts):
            self.journal.add("device", f"{func}: operands on the host and on the device")


@contextlib.contextmanager
def fake_cuda(capability: int = 9) -> Iterator[Journal]:
    """FakeTensors on `cuda`, watched; `capability` of the GPU: 8 as an A100, 9 as Hopper."""
    journal = Journal()
    with contextlib.ExitStack() as stack:
        patch, machine = stack.enter_context(no_driver(journal))
        for context in (FakeTensorMode(), torch.no_grad()):
            stack.enter_context(context)
        watch = stack.enter_context(Watch(journal, machine))
        patch.setattr(FakeTensor, "tolist", lambda tensor: watch.listed(tensor))
        patch.setattr(FakeTensor, "numpy", lambda tensor: np.array(watch.listed(tensor)))
        functional = torch.nn.functional
        attention = attention_on(journal, capability)
        patch.setattr(functional, "scaled_dot_product_attention", attention)
        patch.setattr(functional, "rms_norm", rms_norm)
        yield journal
