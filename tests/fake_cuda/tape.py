"""`Graph`, in the place of `torch.cuda.CUDAGraph`: a capture records the dispatched operators with
their tensors and scalars, and a replay runs this tape, not the function.

As on a GPU, captured work does not take effect; numbers of the host are frozen; memory made in a
capture belongs to a pool, where graphs that are captured later use what earlier ones have freed.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fake_cuda.journal import here
from fake_cuda.streams import Machine, Memory

Storage = torch.UntypedStorage


@dataclass(frozen=True)
class Operator:
    """One operator on the tape.

    Attributes:
        made: tensors that a replay fills with what it returns; none where it writes its arguments.
    """

    call: Any
    args: Any
    kwargs: Any
    made: list[torch.Tensor]

    def run(self) -> None:
        result = self.call(*self.args, **self.kwargs)
        for target, new in zip(self.made, tensors([result]), strict=False):
            target.copy_(new)


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Those among the values and in lists among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)


class Graph:
    """A tape over tensors of the CPU.

    Attributes:
        valid: what is in its part of the pool is what its last replay put there.
        outside: memory that was there before, with the place of its first use; `reads` and `writes`
            tell how it is used.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine, self.tape = machine, list[Operator]()
        self.valid = self.captured = False
        self.outside: dict[int, tuple[weakref.ref[Memory], str]] = {}
        self.reads, self.writes = set[int](), set[int]()
        self._before: dict[int, tuple[Storage, Storage]] = {}

    def capture_begin(self, pool: Any = None, **_: Any) -> None:
        assert self.machine.graph is None, "captures do not nest"
        self.stream, self.pool = self.machine.stream(), pool if pool is not None else object()
        self.machine.graph, self.machine.journal.capturing = self, True

    def capture_end(self) -> None:
        self.machine.graph, self.machine.journal.capturing = None, False
        for storage, content in self._before.values():  # nothing has happened yet
            storage.copy_(content)
        self._before.clear()
        self.captured = True
        self.machine.pools.setdefault(self.pool, []).append(self)

    def uses(self, memory: Memory, written: bool, inner: torch.Tensor) -> None:
        """An operator of the capture is about to use this memory."""
        if memory.owner is self:
            return
        if memory.address not in self.outside:
            self.outside[memory.address] = weakref.ref(memory), here()
            if not written:
                self.reads.add(memory.address)
        if written and memory.address not in self._before:
            self.writes.add(memory.address)
            storage = inner.untyped_storage()
            self._before[memory.address] = storage, storage.clone()

    def record(
        self, call: Any, args: Any, kwargs: Any, made: list[torch.Tensor], stream: Any
    ) -> None:
        if stream is not self.stream:
            self.machine.journal.add("capture", f"{call} is on a stream that is not captured")
        self.tape.append(Operator(call, args, kwargs, made))

    def replay(self) -> None:
        journal = self.machine.journal
        assert self.captured
        uses: dict[int, tuple[Memory, str]] = {}
        for address, (known, where) in self.outside.items():
            memory = known()
            if memory is None:
                journal.add("graph", "a graph uses memory that was freed since", where)
            elif memory.owner is not None and not memory.owner.valid:
                journal.add("graph", NOT_VALID, where)
            else:
                uses[address] = memory, where
        stream = self.machine.stream(self.stream.device)
        reads, writes = ([uses[a] for a in of if a in uses] for of in (self.reads, self.writes))
        self.machine.launch(stream, reads, writes)
        pool = self.machine.pools[self.pool]
        for later in pool[pool.index(self) + 1 :]:
            later.valid = False
        self.valid = True
        with _disable_current_modes():
            for operator in self.tape:
                operator.run()


NOT_VALID = "memory of a graph that was not replayed yet, or that the replay of another overwrote"
