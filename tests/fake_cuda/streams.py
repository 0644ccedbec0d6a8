"""Streams as queues and events as marks in them: who has waited for what.

Every stream counts its operations, and knows how far it has waited for the others (a vector clock).
Memory remembers who wrote it last and who has read it since. An operation that uses memory of
another stream without having waited for it is noted with file and line.
"""

from collections.abc import Iterable
from typing import Any

import torch

from fake_cuda.journal import Journal

Count = int
Clock = dict["Stream", Count]  # of each stream, how many of its operations are known to be done
Use = tuple["Memory", str | None]  # memory, and the place of its use where it is not the caller's


class Memory:
    """One storage: its last writer and its readers since, and the graph whose pool it lies in."""

    __slots__ = ("__weakref__", "address", "owner", "readers", "writer")

    def __init__(self, address: int = 0, owner: Any = None) -> None:
        self.address, self.owner = address, owner
        self.writer: tuple[Stream, Count] | None = None
        self.readers: Clock = {}


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host, its storage pinned from now on."""
    tensor.untyped_storage().memory = Memory()  # type: ignore[attr-defined]  # all views share it
    return tensor


def pinned_memory(tensor: torch.Tensor) -> Memory | None:
    """That of a pinned tensor of the host or a view of one, else `None`."""
    return getattr(tensor.untyped_storage(), "memory", None)


def merge(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


class Stream:
    """A queue of one device."""

    def __init__(self, machine: "Machine", device: Any = None) -> None:
        index = machine.device if device is None else torch.device(device).index or 0
        self.machine, self.device = machine, torch.device("cuda", index)
        self.count: Count = 0
        self.clock: Clock = {}
        machine.streams.append(self)

    def record_event(self) -> "Event":
        event = Event(self.machine)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        merge(self.clock, event.clock)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())


class Event:
    """A mark behind what one stream had been given when it was recorded."""

    def __init__(self, machine: "Machine", enable_timing: bool = False, **_: Any) -> None:
        self.machine, self.clock = machine, Clock()

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.machine.stream()
        self.clock = {**stream.clock, stream: stream.count}
        merge(self.clock, self.machine.host)

    def synchronize(self) -> None:
        self.machine.journal.add("wait", "an event is waited for")
        merge(self.machine.host, self.clock)

    def elapsed_time(self, _: "Event") -> float:
        return 1.0


class Machine:
    """The streams of all devices, and what the host knows to be done.

    Attributes:
        device: index of the current device.
        current: by index of the device, its current stream.
        graph: the graph that is being captured.
        pools: the graphs that share memory, in the order of their capture.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal, self.device, self.host = journal, 0, Clock()
        self.current: dict[int, Stream] = {}
        self.streams: list[Stream] = []
        self.graph: Any = None
        self.pools: dict[object, list[Any]] = {}

    def stream(self, device: Any = None) -> Stream:
        index = self.device if device is None else torch.device(device).index or 0
        if index not in self.current:
            self.current[index] = Stream(self, torch.device("cuda", index))
        return self.current[index]

    def set_stream(self, stream: Stream) -> None:
        self.device = stream.device.index
        self.current[self.device] = stream

    def wait(self, stream: Stream) -> None:
        """The host waits for a stream."""
        merge(self.host, {**stream.clock, stream: stream.count})

    def synchronize(self, device: Any = None) -> None:
        """The host waits for all streams of a device."""
        index = self.device if device is None else torch.device(device).index or 0
        for stream in self.streams:
            if stream.device.index == index:
                self.wait(stream)

    def launch(self, stream: Stream, reads: Iterable[Use], writes: Iterable[Use]) -> None:
        """One operation on a stream."""
        stream.count += 1
        for memory, where in reads:
            if memory.writer is not None and not self._after(stream, *memory.writer):
                self.journal.add("order", "reads what another stream may not have written", where)
            memory.readers[stream] = stream.count
        for memory, where in writes:
            users = [*memory.readers.items(), *([memory.writer] if memory.writer else [])]
            if not all(self._after(stream, *user) for user in users):
                self.journal.add("order", "overwrites what another stream may be using", where)
            memory.writer = stream, stream.count
            memory.readers = {}

    def _after(self, stream: Stream, other: Stream, count: Count) -> bool:
        return other is stream or max(stream.clock.get(other, 0), self.host.get(other, 0)) >= count

    def host_uses(
        self, tensors: Iterable[torch.Tensor], written: Iterable[torch.Tensor] = ()
    ) -> None:
        """The host reads tensors of its own, and writes some, while copies may be on their way."""
        for tensor in tensors:
            memory = pinned_memory(tensor)
            if memory is None:
                continue
            if memory.writer is not None and not self._done(*memory.writer):
                what = "the host reads a copy without having waited for its event"
                self.journal.add("order", what)
            writes = any(tensor is w for w in written)
            if writes and not all(self._done(*reader) for reader in memory.readers.items()):
                self.journal.add("order", "the host overwrites what a copy may not have read")

    def _done(self, stream: Stream, count: Count) -> bool:
        return self.host.get(stream, 0) >= count

    def to_host(self, target: torch.Tensor, device: torch.device, source: Iterable[Use]) -> None:
        """A copy into pinned memory, for which the host does not wait."""
        memory = pinned_memory(target)
        assert memory is not None
        self.launch(self.stream(device), source, [(memory, None)])
