"""`DeviceGraphs`: the captured graphs of the layers of one device, and the replay of a pass."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.buffers import GraphBuffers, bucket, padded_rows
from skipbench.lm.cuda_graphs.capture import EagerCapture, Replay, Work, out_of_memory
from skipbench.lm.cuda_graphs.parts import MAX_ROWS
from skipbench.lm.cuda_graphs.products import ROWS
from skipbench.lm.cuda_graphs.sets import SetGraphs, SetKey
from skipbench.lm.cuda_graphs.work import Attention, Mlp
from skipbench.lm.engine import Sublayer
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.rows import TokenRows

PREPARE_INPUTS = -1  # among the sub-layers of a pass: tables, and paths or masks of its rows
WHOLE_PASS = -2  # all of it in one graph
T = TypeVar("T")
Key = tuple[int, int, bool]  # row count, bucket, whether products are ours


class DeviceGraphs:
    """The layers of one device: their buffers by row count, and their captured graphs."""

    def __init__(self, config: Any, cache: KVCache, capture: EagerCapture, strict: bool) -> None:
        self.cache, self.capture, self.strict = cache, capture, strict
        self.hidden, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self._whole = tuple(range(2 * self.layers))
        self.attentions: dict[int, Attention] = {}  # by number; 2L and more: of a variant
        self.mlps: dict[int, Mlp] = {}
        self.metadata: AttentionMetadata | None = None  # of the pass that is loaded
        self.buffers: GraphBuffers | None = None
        self._prepared = False  # what `input_preparation` makes in `buffers` is of `metadata`
        self.failed: str | None = None  # the reason why no more graphs are captured
        self.graphs, self.seconds = 0, 0.0
        """Graphs that were captured, and the time that took with the work around it."""
        self._seen: set[tuple[int, bool]] = set()  # keys without their bucket
        self._rows: list[Tensor] | None = None  # the cache that was captured

    def sublayer(self, s: int, eager: Sublayer) -> Sublayer:
        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            self.load(metadata)
            # More alternatives than a pass has rows go through an MLP together.
            if self.buffers is None or len(hidden) != len(self._out):
                self._refuse_others(metadata)
                return eager(hidden, metadata)
            return self._replay(self.replays[s], hidden)

        return run

    def _refuse_others(self, metadata: AttentionMetadata) -> None:
        """Of a strict engine only prompts, and rows that are not verified, run without graphs."""
        if self.strict and metadata.start and (self.failed or metadata.token_rows.verifies):
            why = self.failed or f"a pass verifies {metadata.rows} rows, of {MAX_ROWS} at most"
            instead = "use engine.strict=false, or smaller drafts or texts"
            raise SkipbenchError(f"engine.strict=true cannot be kept: {why}; {instead}")

    def at_once(
        self, hidden: Tensor, metadata: AttentionMetadata, numbers: tuple[int, ...]
    ) -> Tensor | None:
        """These sub-layers in one replay; `None` where they have no graph of their own."""
        self.load(metadata)
        if self.buffers is None or len(hidden) != len(self._out):
            return None
        if numbers == self._whole:
            return self._replay(self.replays[WHOLE_PASS], hidden, prepares=True)
        key = SetKey(*self._key, not self._prepared, numbers)
        replay = self._sets.replay(key, partial(self._capture_set, key))
        self.load(metadata)  # again, where the capture used the buffers
        return None if replay is None else self._replay(replay, hidden, prepares=key.fresh)

    def _replay(self, replay: Replay, hidden: Tensor, prepares: bool = False) -> Tensor:
        """Replays a graph for the pass that `load` loaded, whose inputs are prepared before
        its first one; `prepares`: this graph makes them itself.
        """
        if not (self._prepared or prepares):
            self.replays[PREPARE_INPUTS]()
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
        with self._recording(self._buffers[key.rows], key.size):
            prepare()
            return self._captured_within(lambda: self._record_all(chosen))

    def load(self, metadata: AttentionMetadata) -> None:
        """Uploads the position of the rows of a pass that is not loaded yet; `buffers` becomes
        `None` where they have no graphs.
        """
        if metadata is self.metadata:
            return
        key, self.buffers = self._key_of(metadata), None
        if key is not None and self._ready(key):
            self._key, self.replays = key, self._captured[key]
            self.buffers = self._buffers[key[0]]
            self.buffers.load(metadata.token_rows)
            self._out = self.buffers.view(metadata.rows)
        self.metadata, self._prepared = metadata, False

    def _key_of(self, metadata: AttentionMetadata) -> Key | None:
        """The graphs of a pass; `None` for one that runs without."""
        if metadata.rows > MAX_ROWS:
            return None
        if self.cache.rows is not self._rows:
            self._reset(metadata.tables)
        rows, size = padded_rows(metadata.rows), bucket(metadata.end, len(self.cache.rows[0]))
        many = self.strict and metadata.token_rows.verifies
        own = rows <= ROWS or many
        self._seen.add((rows, own))
        return rows, size, own

    def _ready(self, key: Key) -> bool:
        """True if the graphs of a key are there, or could be captured now."""
        if key not in self._captured and not self.failed:
            made = self._captured_within(lambda: self._capture(*key))
            if made is not None:
                self._captured[key] = made
            else:
                self.failed = f"{self.failed} of {key[0]} rows over {key[1]} cache rows"
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
        for rows, own in sorted(self._seen):
            ends = range(start + rows, min(end + rows, total) + 1)
            for size in dict.fromkeys(bucket(n, total) for n in ends):
                here = [s for s in sets if (s.rows, s.own) == (rows, own)]
                for key in here if self._ready((rows, size, own)) else []:
                    ahead = key._replace(size=size)
                    self._sets.enter(ahead, partial(self._capture_set, ahead))

    def forget(self) -> None:
        """Sub-layers were added: the graphs of a pass are captured anew."""
        self._rows = self.metadata = None

    def _reset(self, tables: RotaryCache) -> None:
        """The cache was made anew: nothing captured holds any more."""
        self._rows, self._rope = self.cache.rows, tables.rope
        self._buffers: dict[int, GraphBuffers] = {}
        self._mlps: dict[tuple[int, bool], dict[int, tuple[Work, Replay]]] = {}
        self._captured: dict[Key, dict[int, Replay]] = {}
        self._works: dict[Key, dict[int, Work]] = {}
        self._sets = SetGraphs()

    def _capture(self, rows: int, size: int, own: bool) -> dict[int, Replay]:
        """Replays of a key by sub-layer, PREPARE_INPUTS and WHOLE_PASS; MLPs know no bucket."""
        if rows not in self._buffers:
            sizes = rows, self.hidden, self.cache.head_dim
            self._buffers[rows] = GraphBuffers(*sizes, self.cache.dtype, self.capture.device)
        buffers, record = self._buffers[rows], self._record
        prepare = buffers.input_preparation(*self._rope)
        with self._recording(buffers, size):
            found = {PREPARE_INPUTS: record(prepare)}
            found[PREPARE_INPUTS]()
            works = {s: a.work(buffers, size, own) for s, a in self.attentions.items()}
            found |= {s: record(work) for s, work in works.items()}
            if (rows, own) not in self._mlps:
                mlps = {s: mlp.work(buffers, own) for s, mlp in self.mlps.items()}
                self._mlps[rows, own] = {s: (work, record(work)) for s, work in mlps.items()}
            for s, (work, replay) in self._mlps[rows, own].items():
                works[s], found[s] = work, replay
            full = [works[s] for s in sorted(works) if s < 2 * self.layers]
            if len(full) == 2 * self.layers:  # no graph spans two devices
                found[WHOLE_PASS] = self._record_all([prepare, *full])
        self._works[rows, size, own] = works | {PREPARE_INPUTS: prepare}
        return found

    @contextmanager
    def _recording(self, buffers: GraphBuffers, size: int) -> Iterator[None]:
        """Buffers to record with, which executes the work: the rows read a whole bucket and are
        written behind the cache. The state, which the pass at hand may be in, comes back at the
        end, also where memory did not suffice; no pass is loaded then.
        """
        capacity = self.cache.capacity
        state, end = buffers.hidden.clone(), min(size, capacity)
        buffers.load(TokenRows.chain(max(1, end - buffers.rows), buffers.rows))
        buffers.bounds[2].fill_(capacity)
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
