"""`DeviceGraphs`: the captured graphs of the layers of one device, and the replay of a pass."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.attention import TRITON, attention_backends
from skipbench.lm.cuda_graphs.buffers import MAX_ROWS, GraphBuffers, bucket, padded_rows
from skipbench.lm.cuda_graphs.capture import EagerCapture, Replay, Work, out_of_memory
from skipbench.lm.cuda_graphs.launches import Launches
from skipbench.lm.cuda_graphs.sets import SetGraphs, SetKey
from skipbench.lm.cuda_graphs.trial import AttentionTrial, differs, first_line, small_kernels_differ
from skipbench.lm.cuda_graphs.work import Attention, Mlp
from skipbench.lm.engine import Sublayer
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.rows import TokenRows

PREPARE_INPUTS = -1  # among the sub-layers of a pass: masks and tables of its rows
WHOLE_PASS = -2  # all of it in one graph
T = TypeVar("T")
Key = tuple[int, int, bool]  # row count, bucket, whether of chains for `varlen`


class DeviceGraphs:
    """The layers of one device: their buffers by row count, and their captured graphs."""

    def __init__(
        self, config: Any, cache: KVCache, capture: EagerCapture, backend: str | None
    ) -> None:
        self.cache, self.capture, self.backend = cache, capture, backend
        self.hidden, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self._whole = tuple(range(2 * self.layers))
        self.group = config.num_attention_heads // config.num_key_value_heads
        # by number; 2L and more: with a variant of the weights
        self.attentions: dict[int, Attention] = {}
        self.mlps: dict[int, Mlp] = {}
        self.metadata: AttentionMetadata | None = None  # of the pass that is loaded
        self.buffers: GraphBuffers | None = None
        self._prepared = False  # targets, tables and masks in `buffers` are those of `metadata`
        self.failed: str | None = None  # the reason why no more graphs are captured
        self.discarded: dict[str, str] = {}
        """Backends of attention that did not work here, with the error of each."""
        self.graphs, self.seconds = 0, 0.0
        """Graphs that were captured, and the time that took with the work around it."""
        self._seen: set[tuple[int, bool]] = set()  # row counts, and whether of chains for `varlen`
        self.triton = False  # the small kernels are those of `ops`
        self._rows: list[Tensor] | None = None  # the cache that was captured

    def sublayer(self, s: int, eager: Sublayer) -> Sublayer:
        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            self._load(metadata)
            # More alternatives than a pass has rows go through an MLP together.
            if self.buffers is None or len(hidden) != len(self._out):
                return eager(hidden, metadata)
            return self._replay(self._replays[s], hidden)

        return run

    def at_once(
        self, hidden: Tensor, metadata: AttentionMetadata, numbers: tuple[int, ...]
    ) -> Tensor | None:
        """These sub-layers in one replay; `None` where they have no graph of their own."""
        self._load(metadata)
        if self.buffers is None or len(hidden) != len(self._out):
            return None
        if numbers == self._whole:
            return self._replay(self._replays[WHOLE_PASS], hidden, prepares=True)
        key = SetKey(*self._key, not self._prepared, numbers)
        replay = self._sets.replay(key, partial(self._capture_set, key))
        self._load(metadata)  # again, where the capture used the buffers
        return None if replay is None else self._replay(replay, hidden, prepares=key.fresh)

    def _replay(self, replay: Replay, hidden: Tensor, prepares: bool = False) -> Tensor:
        """Replays a graph for the pass that `_load` loaded, whose targets, tables and masks are
        made before its first one; `prepares`: this graph makes them itself.
        """
        if not (self._prepared or prepares):
            self._replays[PREPARE_INPUTS]()
        self._prepared = True
        if hidden is not self._out:
            self._out.copy_(hidden)
        replay()
        return self._out

    def _capture_set(self, key: SetKey) -> Replay | None:
        if self.failed:
            return None
        works, prepare = self._works[key[:3]], self._captured[key[:3]][PREPARE_INPUTS]
        chosen = [works[s] for s in (*[PREPARE_INPUTS] * key.fresh, *key.chosen)]
        with self._aside(self._buffers[key.rows], key.size):
            prepare()
            return self._captured_within(lambda: self._record_all(chosen))

    def launches(self, metadata: AttentionMetadata) -> tuple[int, int]:
        """Kernels of one layer of a pass, and copies and kernels that make its positions, tables
        and masks, behind a chain elsewhere; of graphs that `EagerCapture` made.
        """
        device = self.capture.device
        self._load(metadata)  # captures
        with Launches(device) as layer:
            self._replays[min(self.attentions)]()
            self._replays[min(self.mlps)]()
        chain = TokenRows.chain(metadata.start - 1, metadata.rows)
        self._load(AttentionMetadata(chain, metadata.tables))
        with Launches(device) as inputs:
            self._load(metadata)
            self._replays[PREPARE_INPUTS]()
        return layer.count, inputs.count

    def _load(self, metadata: AttentionMetadata) -> None:
        """Uploads the position of the rows of a pass that is not loaded yet; `buffers` becomes
        `None` where they have no graphs.
        """
        if metadata is self.metadata:
            return
        key, self.buffers = self._key_of(metadata), None
        if key is not None and self._ready(*key):
            self._key, self._replays = key, self._captured[key]
            self.buffers = self._buffers[key[0]]
            self.buffers.load(metadata.token_rows, metadata.hidden)
            self._out = self.buffers.view(metadata.rows)
        self.metadata, self._prepared = metadata, False

    def _key_of(self, metadata: AttentionMetadata) -> Key | None:
        """The graphs of a pass; `None` for one that runs without."""
        if metadata.start == 0 or metadata.rows > MAX_ROWS:
            return None
        if self.cache.rows is not self._rows:
            self._reset(metadata.tables)
        windowed = metadata.draft_window is not None
        if windowed and not (self.triton and metadata.rows == 1):
            return None
        rows, size = padded_rows(metadata.rows), bucket(metadata.end, len(self.cache.rows[0]))
        chain = self._varlen and metadata.token_rows.contiguous_chain and not windowed
        self._seen.add((rows, chain))
        return rows, size, chain

    def _ready(self, rows: int, size: int, chain: bool) -> bool:
        """True if the graphs of a row count and bucket are there, or could be captured now."""
        key = rows, size, chain
        if key not in self._captured and not self.failed:
            made = self._captured_within(lambda: self._capture(*key))
            if made is not None:
                self._captured[key] = made
            else:
                self.failed = f"{self.failed} of {rows} rows over {size} cache rows"
        return key in self._captured

    def _captured_within(self, capture: Callable[[], T]) -> T | None:
        """What a capture made, its seconds booked; `None` where memory is full."""
        began = time.perf_counter()
        try:
            return capture()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self.failed = f"{self.capture.device} has no memory left for graphs"
            return None
        finally:
            self.seconds += time.perf_counter() - began

    @torch.inference_mode()
    def capture_ahead(self, start: int, end: int) -> None:
        """Captures all row counts met so far, and the sets that have a graph, over every bucket of
        passes that begin at the cache rows `start` to `end`.
        """
        if self.cache.rows is not self._rows:
            return  # nothing ran over this cache yet
        total, sets = len(self._rows[0]), list(self._sets.graphs)
        for rows, chain in sorted(self._seen):
            ends = range(start + rows, min(end + rows, total) + 1)
            for size in dict.fromkeys(bucket(n, total) for n in ends):
                here = [s for s in sets if (s.rows, s.chain) == (rows, chain)]
                for key in here if self._ready(rows, size, chain) else []:
                    ahead = key._replace(size=size)
                    self._sets.enter(ahead, partial(self._capture_set, ahead))

    def forget(self) -> None:
        """Sub-layers were added: the graphs of a pass are captured anew."""
        self._rows = self.metadata = None

    def _reset(self, tables: RotaryCache) -> None:
        """The cache was made anew: nothing captured holds any more."""
        self._rows, self._rope = self.cache.rows, tables.rope
        self._buffers: dict[int, GraphBuffers] = {}
        self._mlps: dict[int, dict[int, tuple[Work, Replay]]] = {}
        self._captured: dict[Key, dict[int, Replay]] = {}
        self._works: dict[Key, dict[int, Work]] = {}
        self._sets = SetGraphs()
        self._windows = tuple(dict.fromkeys(a.window for a in self.attentions.values()))
        half_precision = self.cache.dtype in (torch.float16, torch.bfloat16)
        cuda = self.capture.device.type == "cuda"
        self._varlen = cuda and half_precision and self._windows == (None,)
        with torch.inference_mode(False):
            self._columns = torch.arange(len(self._rows[0]), device=tables.device)
        self.triton = self._triton_works() if self.backend is None else self.backend == TRITON

    def _capture(self, rows: int, size: int, chain: bool) -> dict[int, Replay]:
        """Replays of a row count and bucket by sub-layer, PREPARE_INPUTS and WHOLE_PASS; MLPs know
        no bucket.
        """
        if rows not in self._buffers:
            sizes = rows, self.hidden, self.cache.head_dim, self.group
            self._buffers[rows] = GraphBuffers(*sizes, self.cache.dtype, self.capture.device)
        buffers, record = self._buffers[rows], self._record
        tables = self._windows, self._columns, *self._rope
        prepare = buffers.input_preparation(size, *tables, self.triton)
        with self._aside(buffers, size):
            found = {PREPARE_INPUTS: record(prepare)}
            found[PREPARE_INPUTS]()
            chosen = self._fastest_backend(buffers, size, chain), self.triton
            works = {s: a.work(buffers, size, *chosen) for s, a in self.attentions.items()}
            found |= {s: record(work) for s, work in works.items()}
            if rows not in self._mlps:
                mlps = {s: mlp.work(buffers, self.triton) for s, mlp in self.mlps.items()}
                self._mlps[rows] = {s: (work, record(work)) for s, work in mlps.items()}
            for s, (work, replay) in self._mlps[rows].items():
                works[s], found[s] = work, replay
            full = [works[s] for s in sorted(works) if s < 2 * self.layers]
            if len(full) == 2 * self.layers:  # no graph spans two devices
                found[WHOLE_PASS] = self._record_all([prepare, *full])
        self._works[rows, size, chain] = works | {PREPARE_INPUTS: prepare}
        return found

    @contextmanager
    def _aside(self, buffers: GraphBuffers, size: int) -> Iterator[None]:
        """Buffers to record with, which executes the work: the rows read a whole bucket and are
        written behind the cache. The state, which the pass at hand may be in, comes back at the
        end, also where memory did not suffice; no pass is loaded then.
        """
        state, end = buffers.hidden.clone(), min(size, self.cache.capacity)
        buffers.load(TokenRows.chain(max(1, end - buffers.rows), buffers.rows))
        buffers.bounds[2].fill_(self.cache.capacity)
        buffers.hidden.normal_()
        try:
            yield
        finally:
            buffers.hidden.copy_(state)
            self.metadata = None

    def _record_all(self, works: list[Work]) -> Replay:
        def run_all() -> None:
            for work in works:
                work()

        return self._record(run_all)

    def _record(self, work: Work) -> Replay:
        self.graphs += 1
        return self.capture.capture(work)

    def _fastest_backend(self, buffers: GraphBuffers, size: int, chain: bool) -> str:
        """The fastest backend here, of those that work and agree with `masked`."""
        first = next(iter(self.attentions.values()))
        choices = attention_backends(buffers.rows, size, chain, self.triton)
        if self.backend is not None:
            return self.backend if self.backend in choices else "masked"
        trial = AttentionTrial(first, buffers, size)
        best, shortest, wanted = "masked", math.inf, trial.result("masked", False)
        for name in choices:
            try:
                fault = differs(trial.result(name, self.triton), wanted)
                replay = self._record(first.work(buffers, size, name, self.triton))
                seconds = self.capture.seconds(replay)
            except Exception as error:  # an operator that is missing, or a compiler's
                self.discarded.setdefault(name, first_line(error))
                continue
            if fault:
                self.discarded.setdefault(name, "its result is not near that of `masked`")
            elif seconds is not None and seconds < shortest:
                best, shortest = name, seconds
        return best

    def _triton_works(self) -> bool:
        """True if Triton's kernels give on this device what torch's operators give."""
        if not ops.at_hand(self.capture.device):
            if self.capture.device.type == "cuda":
                self.discarded[TRITON] = "Triton is not installed"
            return False
        first = next(iter(self.attentions.values()))
        try:
            tables = self._windows, self._columns, self._rope
            fault = small_kernels_differ(first, self.group, *tables)
        except Exception as error:  # whatever its compiler or driver does
            self.discarded[TRITON] = first_line(error)
            return False
        if fault is not None:
            self.discarded[TRITON] = f"its kernel {fault} does not give what torch gives"
        return fault is None
