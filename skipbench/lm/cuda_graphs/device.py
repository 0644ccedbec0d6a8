"""`DeviceGraphs`: the captured graphs of the layers of one device, and the replay of a pass."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.attention import MAX_ROWS
from skipbench.lm.cuda_graphs.buffers import ROW_STEPS, GraphBuffers, bucket, row_step
from skipbench.lm.cuda_graphs.capture import EagerCapture, Replay, Work, out_of_memory
from skipbench.lm.cuda_graphs.captured import Captured, Key
from skipbench.lm.cuda_graphs.products import ROWS
from skipbench.lm.cuda_graphs.work import Attention, Mlp
from skipbench.lm.engine import Chosen, Sublayer
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows

MOST_GRAPHS = 8192
"""Of single sub-layers, about: nearly twice what 300 prompts of ten methods captured of a model of
32 layers (67 keys, 4,400 graphs)."""
USES = 8  # of a set of sub-layers before it is captured
SETS = 8  # graphs of several sub-layers that a key keeps, those used last
COUNTED = 64  # sets without a graph whose uses are counted: a search tries thousands
T = TypeVar("T")


class DeviceGraphs:
    """The layers of one device, and their captured graphs.

    Attributes:
        blocks: sub-layers by variant of the weights and number.
        rope: the rotary tables of all positions.
        most: keys of `table`, at most.
        refuse: is told why a row gets other bits than alone, where the engine is strict.
        lacked: the graphs for which memory did not suffice last; empty if it always did.
        graphs, seconds: what was captured so far, and the time that took with the work around it.
    """

    rope: tuple[Tensor, Tensor]
    refuse: Callable[[str], None]

    def __init__(self, config: Any, cache: KVCache, capture: EagerCapture, strict: bool) -> None:
        self.cache, self.capture, self.strict = cache, capture, strict
        self.hidden = int(config.hidden_size)
        self._all = tuple(range(2 * int(config.num_hidden_layers)))
        self.most = max(2 * len(ROW_STEPS), MOST_GRAPHS // len(self._all))
        self.blocks: dict[str, dict[int, Attention | Mlp]] = {}
        self.lacked, self.graphs, self.seconds = "", 0, 0.0
        self.forget()

    def forget(self) -> None:
        """Frees all graphs: the cache is made anew."""
        self.table: dict[Key, Captured] = {}  # the key used last at the end
        self.bytes = 0  # of the device, which the graphs that are held take
        self._text: set[Key] = set()  # keys that the text at hand used
        self._full = False  # memory ran out in this text, for which nothing more is captured
        self._metadata: AttentionMetadata | None = None  # of the pass that is loaded
        self._variant = ""  # of the weights of that pass
        self._held: Captured | None = None  # the graphs of that pass, if any
        self._prepared = False  # `prepare` has run for it

    def sublayer(self, s: int, variant: str, eager: Sublayer) -> Sublayer:
        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            held, why = self.load(metadata, variant), ""
            # More alternatives than a pass has rows go through an MLP together.
            if held is not None and len(hidden) == metadata.rows:
                if replay := self._sublayers(held).get(s):
                    self.load(metadata, variant)  # again, where a capture used the buffers
                    return self._replayed(replay, hidden)
                why = self._lack(held.key)
            if metadata.token_rows.verifies:
                self.refuse(why or f"a pass verifies {metadata.rows} rows, of {MAX_ROWS} at most")
            return eager(hidden, metadata)

        return run

    def at_once(self, hidden: Tensor, metadata: AttentionMetadata, chosen: Chosen) -> Tensor | None:
        """These sub-layers in one replay; `None` where they have no graph of their own."""
        numbers, variant = chosen
        held = self.load(metadata, variant)
        if held is None or len(hidden) != metadata.rows:
            return None
        replay = self._whole(held, numbers)
        self.load(metadata, variant)  # again, where a capture used the buffers
        return None if replay is None else self._replayed(replay, hidden, prepares=True)

    def _replayed(self, replay: Replay, hidden: Tensor, prepares: bool = False) -> Tensor:
        """Replays a graph for the pass that is loaded, whose inputs are prepared before its first
        one; `prepares`: this graph makes them itself.
        """
        assert self._held is not None
        if not (self._prepared or prepares):
            self._held.prepare()
        self._prepared = True
        if hidden is not self._out:
            self._out.copy_(hidden)
        replay()
        return self._out

    def load(self, metadata: AttentionMetadata, variant: str) -> Captured | None:
        """The graphs of a pass, captured where they are not there, with the position of its rows
        uploaded; `None` for one that runs without. Raises NotStrictError.
        """
        if metadata is self._metadata and variant == self._variant:
            return self._held
        if metadata.start == 0:  # a text begins, and memory may be there again
            self._full = False
            self._text.clear()
        self._metadata, key = None, self.key_of(metadata, variant)
        self._held = held = None if key is None else self._found(key)
        if held is not None:
            self._text.add(held.key)
            held.buffers.load(metadata.token_rows)
            self._out = held.buffers.view(metadata.rows)
        elif key is not None:
            self.refuse(self.lacked)
        self._metadata, self._variant, self._prepared = metadata, variant, False
        return held

    def key_of(self, metadata: AttentionMetadata, variant: str) -> Key | None:
        """The key of a pass; `None` for one that runs without graphs."""
        if metadata.rows > MAX_ROWS:
            return None
        rows, size = row_step(metadata.rows), bucket(metadata.end, len(self.cache.rows[0]))
        many = self.strict and metadata.token_rows.verifies
        return Key(rows, size, rows <= ROWS or many, variant)

    def _found(self, key: Key) -> Captured | None:
        """The graphs of a key, captured where they are not there; `None` where memory is full."""
        held = self.table.pop(key, None) or self._within_memory(lambda: self._capture(key))
        if held is None:
            self._lack(key)
            return None
        self.table[key] = held
        if len(self.table) > self.most:
            del self.table[next(iter(self.table))]
        return held

    def _lack(self, key: Key) -> str:
        graphs = f"graphs of {key.rows} rows over {key.size} cache rows"
        self.lacked = f"{self.capture.device} has no memory left for {graphs}"
        return self.lacked

    def _sublayers(self, held: Captured) -> dict[int, Replay]:
        """The graphs of single sub-layers, captured together at their first use: a search over skip
        sets would else meet captures in its timings. Empty where memory is full.
        """
        if not held.sublayers:
            self._within_memory(lambda: self._capture_sublayers(held))
        return held.sublayers

    def _whole(self, held: Captured, numbers: tuple[int, ...]) -> Replay | None:
        """The graph of several sub-layers, captured at their `USES`-th use; `None` before."""
        replay = held.whole.pop(numbers, None)
        if replay is None:
            if len(held.uses) > COUNTED:
                held.uses.clear()
            held.uses[numbers] += 1
            if held.uses[numbers] >= USES:
                replay = self._within_memory(lambda: self._capture_whole(held, numbers))
            if replay is None:
                return None
            if len(held.whole) >= SETS:
                del held.whole[next(iter(held.whole))]
        held.whole[numbers] = replay
        return replay

    def _within_memory(self, capture: Callable[[], T]) -> T | None:
        """What a capture made, with its seconds and bytes booked. Where memory is full, keys that
        the text at hand does not use go, the longest unused half first; if none is left, `None`,
        and nothing more is captured for this text.
        """
        if self._full:
            return None
        began, free = time.perf_counter(), self.capture.free_bytes()
        try:
            while not self._full:
                try:
                    return capture()
                except RuntimeError as error:
                    if not out_of_memory(error):
                        raise
                others = [key for key in self.table if key not in self._text]
                others = others or [*self.table][: -2 * len(ROW_STEPS)]  # as those of shorter texts
                for key in others[: len(others) // 2 + 1]:
                    del self.table[key]
                self._full = not others
                self.capture.free_bytes()  # empties the allocator again
            return None
        finally:
            self.bytes += free - self.capture.free_bytes()
            self.seconds += time.perf_counter() - began

    @torch.inference_mode()
    def capture_ahead(self, start: int, end: int) -> None:
        """Captures what the table has over every bucket of passes that begin at the cache rows
        `start` to `end`; what was used last comes first, and what does not fit is left out.
        """
        total, wanted = len(self.cache.rows[0]), list[Key]()
        sets = dict[Key, set[tuple[int, ...]]]()  # (): single sub-layers
        for key, held in reversed(self.table.items()):
            of_kind = sets.setdefault(key._replace(size=0), set())
            of_kind.update(held.whole, [()] * bool(held.sublayers))
        for kind in sets:
            ends = range(start + kind.rows, min(end + kind.rows, total) + 1)
            wanted += [kind._replace(size=s) for s in dict.fromkeys(bucket(n, total) for n in ends)]
        for key in wanted[: self.most]:
            if (ahead := self._found(key)) is None:
                return
            for numbers in sets[key._replace(size=0)] - ahead.whole.keys():
                if not numbers:
                    self._sublayers(ahead)
                elif len(ahead.whole) < SETS:
                    ahead.uses[numbers] = USES
                    self._whole(ahead, numbers)

    def _capture(self, key: Key) -> Captured:
        newest = reversed(self.table.values())
        of_rows = next((held for held in newest if held.key.rows == key.rows), None)
        sizes = key.rows, self.hidden, self.cache.head_dim, self.cache.dtype, self.capture.device
        buffers = of_rows.buffers if of_rows else GraphBuffers(*sizes)
        blocks = self.blocks[key.variant].items()
        with self._recording(buffers, key.size):
            inputs = buffers.input_preparation(*self.rope)
            prepare = of_rows.prepare if of_rows else self._record(inputs)
            works = {s: block.work(buffers, key.size, key.own) for s, block in blocks}
            held = Captured(key, buffers, inputs, prepare, works)
            if len(works) == len(self._all):  # no graph spans two devices
                held.whole[self._all] = self._record_whole(held, self._all)
        return held

    def _capture_sublayers(self, held: Captured) -> None:
        key, blocks = held.key, self.blocks[held.key.variant]
        of_mlps = dict[int, Replay]()
        for other in self.table.values():
            if other.key._replace(size=key.size) == key:
                of_mlps |= {s: r for s, r in other.sublayers.items() if isinstance(blocks[s], Mlp)}
        with self._recording(held.buffers, key.size):
            held.prepare()
            made = {s: of_mlps.get(s) or self._record(work) for s, work in held.works.items()}
        held.sublayers.update(made)

    def _capture_whole(self, held: Captured, numbers: tuple[int, ...]) -> Replay:
        with self._recording(held.buffers, held.key.size):
            return self._record_whole(held, numbers)

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
            self._metadata = None

    def _record_whole(self, held: Captured, numbers: tuple[int, ...]) -> Replay:
        works = [held.inputs, *(held.works[s] for s in numbers)]

        def run_all() -> None:
            for work in works:
                work()

        return self._record(run_all)

    def _record(self, work: Work) -> Replay:
        replay = self.capture.capture(work)
        self.graphs += 1
        return replay
