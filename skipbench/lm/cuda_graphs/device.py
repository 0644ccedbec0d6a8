"""`DeviceGraphs`: the captured graphs of the layers of one device, and the replay of a pass."""

import math
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.attention import AttentionBackend, attention_backends
from skipbench.lm.cuda_graphs.buckets import MAX_ROWS, bucket, padded_rows
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import GraphCapture, Replay
from skipbench.lm.cuda_graphs.sublayers import Attention, Mlp, Work
from skipbench.lm.engine import Sublayer
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.rows import TokenRows

PREPARE_INPUTS = -1  # among the sub-layers of a pass: masks and tables of its rows
WHOLE_PASS = -2  # all of it in one graph


class DeviceGraphs:
    """The layers of one device: their buffers by row count, and their captured graphs."""

    def __init__(
        self, config: Any, cache: KVCache, capture: GraphCapture, backend: str | None
    ) -> None:
        self.cache, self.capture, self.backend = cache, capture, backend
        self.hidden, self.group = (
            config.hidden_size,
            config.num_attention_heads // config.num_key_value_heads,
        )
        self.layers: int = config.num_hidden_layers
        self.attentions: dict[int, Attention] = {}
        self.mlps: dict[int, Mlp] = {}
        self.metadata: AttentionMetadata | None = None
        self.buffers: GraphBuffers | None = None
        self.failed: str | None = None
        self.discarded: dict[str, str] = {}
        """Backends of attention that did not work here, with the error of each."""
        self._rows: list[Tensor] | None = None  # the cache that was captured

    def sublayer(self, s: int, eager: Sublayer) -> Sublayer:
        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            if metadata is not self.metadata:
                self._load(metadata)
                if self.buffers is not None:
                    self._replays[PREPARE_INPUTS]()
            if self.buffers is None:
                return eager(hidden, metadata)
            if hidden is not self._out:
                if len(hidden) != len(self._out):
                    # more alternatives than a pass has rows go through an MLP together
                    return eager(hidden, metadata)
                self._out.copy_(hidden)
            self._replays[s]()
            return self._out

        return run

    def whole_pass(self, hidden: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        """Every sub-layer in one replay; `None` where this pass has no graphs."""
        self._load(metadata)
        if self.buffers is None:
            return None
        self._out.copy_(hidden)
        self._replays[WHOLE_PASS]()
        return self._out

    def _load(self, metadata: AttentionMetadata) -> None:
        """Begins a pass: uploads the position of its rows and chooses their graphs; `buffers` is
        `None` where it has none.
        """
        self.metadata, self.buffers = metadata, None
        if metadata.start == 0 or metadata.rows > MAX_ROWS:
            return
        if self.cache.rows is not self._rows:
            self._reset(metadata.tables)
        rows, size = padded_rows(metadata.rows), bucket(metadata.end, len(self.cache.rows[0]))
        chain = self._varlen and metadata.token_rows.contiguous_chain
        if (rows, size, chain) not in self._captured and not self._capture(rows, size, chain):
            return
        buffers = self._buffers[rows]
        buffers.load(metadata.token_rows, metadata.rows)
        self._replays = self._captured[rows, size, chain]
        self.buffers, self._out = buffers, buffers.view(metadata.rows)

    def _reset(self, tables: RotaryCache) -> None:
        """The cache was made anew: nothing captured holds any more."""
        self._rows = self.cache.rows
        self._buffers: dict[int, GraphBuffers] = {}
        self._mlps: dict[int, dict[int, tuple[Work, Replay]]] = {}
        self._captured: dict[tuple[int, int, bool], dict[int, Replay]] = {}
        self._windows = tuple(dict.fromkeys(a.window for a in self.attentions.values()))
        half_precision = self.cache.dtype in (torch.float16, torch.bfloat16)
        self._varlen = (
            self.capture.device.type == "cuda" and half_precision and self._windows == (None,)
        )
        self._rope = tables.rope
        with torch.inference_mode(False):
            self._columns = torch.arange(len(self._rows[0]), device=tables.device)

    def _capture(self, rows: int, size: int, chain: bool) -> bool:
        """Records every sub-layer of the device for a row count and bucket; whether there was
        memory for it.
        """
        if self.failed:
            return False
        d, dtype, device = self.cache.head_dim, self.cache.dtype, self.capture.device
        try:
            if rows not in self._buffers:
                self._buffers[rows] = GraphBuffers(rows, self.hidden, d, self.group, dtype, device)
            self._captured[rows, size, chain] = self._capture_all(self._buffers[rows], size, chain)
        except torch.OutOfMemoryError:
            self.failed = (
                f"{device} has no memory left for graphs of {rows} rows over {size} cache rows"
            )
        return self.failed is None

    def _capture_all(self, buffers: GraphBuffers, size: int, chain: bool) -> dict[int, Replay]:
        """By sub-layer, PREPARE_INPUTS and WHOLE_PASS; MLPs know no bucket.

        Meanwhile the buffers say that the rows stand at the end of the bucket and are written
        behind the cache: recording executes the work, and nothing that is in the cache may change.
        """
        record = self.capture.capture
        end = min(size, self.cache.capacity)
        buffers.load(TokenRows.chain(max(1, end - buffers.rows), buffers.rows), buffers.rows)
        buffers.bounds[2].fill_(self.cache.capacity)
        state = buffers.hidden.clone()  # the input of the pass at hand may lie in it
        prepare = buffers.input_preparation(size, self._windows, self._columns, *self._rope)
        prepare_replay = record(prepare)
        prepare_replay()
        buffers.hidden.normal_()
        attend = self._fastest_backend(buffers, size, chain)
        works = {s: a.work(buffers, size, attend) for s, a in self.attentions.items()}
        found = {s: record(work) for s, work in works.items()} | {PREPARE_INPUTS: prepare_replay}
        if buffers.rows not in self._mlps:
            mlps = {s: mlp.work(buffers) for s, mlp in self.mlps.items()}
            self._mlps[buffers.rows] = {s: (work, record(work)) for s, work in mlps.items()}
        works |= {s: work for s, (work, _) in self._mlps[buffers.rows].items()}
        found |= {s: replay for s, (_, replay) in self._mlps[buffers.rows].items()}
        if len(self.attentions) == self.layers:  # no graph spans two devices
            whole = [prepare, *(works[s] for s in sorted(works))]

            def run_all() -> None:
                for work in whole:
                    work()

            found[WHOLE_PASS] = record(run_all)
        buffers.hidden.copy_(state)
        return found

    def _fastest_backend(self, buffers: GraphBuffers, size: int, chain: bool) -> AttentionBackend:
        """The fastest backend of attention on this device, of those that work and agree with
        `masked`.
        """
        first = next(iter(self.attentions.values()))
        choices = attention_backends(size, chain)
        if self.backend is not None:
            return choices.get(self.backend, choices["masked"])
        shape = (buffers.rows, first.heads, self.cache.head_dim)
        query = torch.randn(shape, dtype=buffers.dtype, device=buffers.device)
        cached, mask = self.cache.rows[first.index][:size], buffers.masks[size, first.window]
        wanted = choices["masked"](query, cached, buffers, mask, first.scale)
        best, shortest = "masked", math.inf
        for name, attend in choices.items():
            try:
                result = attend(query, cached, buffers, mask, first.scale)
                seconds = self.capture.seconds(
                    self.capture.capture(first.work(buffers, size, attend))
                )
            except (RuntimeError, AttributeError, TypeError, ImportError) as error:
                # an operator that is missing or wants other shapes
                first_line = str(error).partition("\n")[0]
                self.discarded.setdefault(name, f"{type(error).__name__}: {first_line}")
                continue
            close = float((result - wanted).float().norm()) <= 0.02 * float(wanted.float().norm())
            if not close:
                self.discarded.setdefault(name, "its result is not near that of `masked`")
            elif seconds is not None and seconds < shortest:
                best, shortest = name, seconds
        return choices[best]
