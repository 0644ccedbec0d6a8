"""The K/V cache: preallocated, shared by draft and target, with a length instead of a history."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """`values` on the device. From the host to a GPU the copy is only on its way when this returns,
    out of pinned memory: from pageable memory the host would wait for all that the device still has
    to do.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values if values.device == device else values.to(device)


def upload_into(target: Tensor, values: Tensor) -> None:
    """`upload` into a tensor that is there."""
    if target.device.type == "cuda":
        values = values.pin_memory()
    target.copy_(values, non_blocking=True)


def read_later(values: Tensor) -> Callable[[], list[Any]]:
    """Starts the copy of numbers [N] to the host, which may launch more work meanwhile; the result
    waits for the work launched before, and for none after it.
    """
    if values.device.type != "cuda":
        return lambda: [value.item() for value in values]
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it so
    arrived.record(torch.cuda.current_stream(values.device))

    def read() -> list[Any]:
        arrived.synchronize()
        return list(host.tolist())

    return read


class KVCache:
    """Keys and values of every layer, `[capacity, 2 * KV, d]` each: a row holds the keys of all
    heads, then the values.

    Rows `0 .. length - 1` are committed. Rows after them are scratch: any pass may write there,
    and a pass reads only the rows that its `TokenRows` names, so a rejected draft costs nothing.
    """

    def __init__(
        self, devices: list[torch.device], kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.devices, self.kv_heads, self.head_dim, self.dtype = devices, kv_heads, head_dim, dtype
        self.capacity = 0
        self.length = 0
        self.spare = 0  # rows after the last one, where an engine that rounds row counts up writes
        self.lock = threading.RLock()
        self.switches = 0  # how often another request got its turn, and scratch rows were lost
        self._served: ref[Any] | None = None  # the request whose rows are committed
        self._aside: WeakKeyDictionary[Any, list[Tensor]] = WeakKeyDictionary()
        """Committed rows of the other requests."""
        self._rows: dict[torch.device, Tensor] = {}
        """Of all layers of a device, one tensor, so that one call moves rows in all of them."""
        self.rows: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def allocate(self, capacity: int) -> None:
        """Allocates `capacity` rows; never shrinks. The contents are lost when it grows."""
        if capacity <= self.capacity:
            return
        self.capacity, self.length = capacity, 0
        shape = (capacity + self.spare, 2 * self.kv_heads, self.head_dim)
        # Zeros, not empty: masked rows are multiplied by an exact 0, which NaN in fresh memory
        # would survive.
        self._rows = {
            device: torch.zeros((count, *shape), dtype=self.dtype, device=device)
            for device, count in Counter(self.devices).items()
        }
        layers = {device: iter(rows) for device, rows in self._rows.items()}
        self.rows = [next(layers[device]) for device in self.devices]
        self.keys = [r[:, : self.kv_heads].transpose(0, 1)[None] for r in self.rows]
        self.values = [r[:, self.kv_heads :].transpose(0, 1)[None] for r in self.rows]

    def clear(self, start: int, end: int | None = None) -> None:
        """Zeroes the rows from `start` to before `end`, where some may not be finite."""
        for layer in self.rows:
            layer[start:end] = 0

    def keep(self, rows: list[int]) -> None:
        """Appends the scratch rows `rows` (ascending cache rows) to the committed ones.

        Rows that are already in their place are not moved, so that a chain costs nothing.
        """
        start = self.length
        if rows != list(range(start, start + len(rows))):
            kept = torch.tensor(rows)
            for device, layers in self._rows.items():
                layers[:, start : start + len(rows)] = layers[:, upload(kept, device)]
        self.length = start + len(rows)

    def copied(self) -> list[Tensor]:
        """A copy of the committed rows of every layer."""
        return [rows[: self.length].clone() for rows in self.rows]

    @contextmanager
    def turn(self, request: object | None = None) -> Iterator[None]:
        """Holds the cache for one request, whose committed rows are in it meanwhile; `None` for
        passes that belong to no request.

        The rows of another are copied when it loses its place, and kept until its next turn.
        """
        with self.lock:
            before = None if self._served is None else self._served()
            if before is not request:
                self.switches += 1
                if before is not None:
                    self._aside[before] = self.copied()
                self._served = None if request is None else ref(request)
                copied = [] if request is None else self._aside.pop(request, [])
                self.length = len(copied[0]) if copied else 0
                for rows, own in zip(self.rows, copied, strict=False):
                    rows[: self.length] = own
            yield

    @property
    def bytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)
