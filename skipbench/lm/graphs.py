"""`engine=graphs`: one CUDA graph a sub-layer and row count, replayed in the order of a skip set.

A pass loads its position into a few numbers on the device, replays one graph that makes masks and rotary tables of them, then
one graph a sub-layer; a skipped one is not replayed, so that a new skip set costs nothing. What a length is enters in two ways:
attention reads a bucket of the cache, for which there are few sizes, and a mask (or a length) made on the device says where in
it the text ends. Graphs of a row count and bucket are recorded at their first use, those of all sub-layers together: lazily,
because most pairs never occur; together, because a search over skip sets would otherwise meet unrecorded ones in its timings.

Prompts and passes of more than LIMIT rows run the sub-layers of `lean`, over the same weights and cache. Embedding and head are
lean's too: one kernel and two, which a graph of their own would only surround with copies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.attend import Attend, ways
from skipbench.lm.bucket import LIMIT, bucket, padded_rows
from skipbench.lm.cache import KVCache
from skipbench.lm.families import Family
from skipbench.lm.frame import Frame, Tables
from skipbench.lm.lean import LeanEngine
from skipbench.lm.modules import Sublayer
from skipbench.lm.record import CudaRecorder, Recorder, Replay
from skipbench.lm.slot import Slot
from skipbench.lm.span import Span
from skipbench.lm.static import Attention, Mlp

PLACE = -1  # among the sub-layers of a pass: masks and tables of its rows
ROOM = 512 << 20  # bytes that graphs of a few row counts may take, beside weights and cache
COST = "the tokens are the same, but every kernel is launched by itself, which bounds the speed of small passes"
MakeRecorder = Callable[[torch.device], Recorder]


def refusal(model: Any) -> str | None:
    """Why graphs cannot run this model on this machine, `None` if they can."""
    devices = {p.device for p in model.parameters()}
    if not torch.cuda.is_available():
        return "no CUDA device is at hand"
    others = sorted({str(d) for d in devices if d.type != "cuda"})
    if others:
        return f"weights are on {', '.join(others)}, and CUDA graphs hold work of a GPU alone"
    for device in devices:
        free, _ = torch.cuda.mem_get_info(device)
        if free < ROOM:
            return f"{free >> 20} MiB are free on {device}, {ROOM >> 20} MiB is what graphs may need"
    return None


class GraphsEngine:
    """Sub-layers as `hidden [T, D], frame -> hidden [T, D]`; the result is a buffer that the next one overwrites."""

    name = "graphs"

    def __init__(
        self,
        model: Any,
        family: Family,
        cache: KVCache,
        spare_mib: int,
        recorder: MakeRecorder = CudaRecorder,
        way: str | None = None,
    ) -> None:
        """`way`: of `attend.ways`; `None` takes the fastest of those that the recorder can time."""
        self.lean = LeanEngine(model, family, cache, spare_mib)
        self.kernels, self.notes = self.lean.kernels, self.lean.notes
        self.cache, self.embed, self.head = cache, self.lean.embed, self.lean.head
        cache.spare = LIMIT
        self.parts: dict[torch.device, Part] = {}
        self.sublayers: list[Sublayer] = []
        for index, (layer, device) in enumerate(zip(model.model.layers, cache.devices, strict=True)):
            if device not in self.parts:
                self.parts[device] = Part(model.config, cache, recorder(device), way)
            part = self.parts[device]
            window = family.window(model.config, index)
            part.attentions[2 * index] = Attention(layer, index, window, family.qk_norm, model.config, cache)
            part.mlps[2 * index + 1] = Mlp(layer)
            self.sublayers += [part.sublayer(s, self.lean.sublayers[s]) for s in (2 * index, 2 * index + 1)]

    @property
    def failed(self) -> str | None:
        """Why no more graphs were recorded, where a device ran out of memory."""
        return next((p.failed for p in self.parts.values() if p.failed), None)

    def prove(self, tables: dict[torch.device, Tables]) -> str | None:
        """Records and replays one pass over an empty cache. Returns why graphs cannot be used, if they cannot."""
        at, rows = min(100, self.cache.capacity // 2), self.cache.rows
        if at == 0:
            return None
        for layer in rows:
            layer.normal_()  # zeros would hide a wrong mask
        try:
            return self._differs(Span.chain(at, 1), tables) or self.failed
        except RuntimeError as error:
            return f"a sub-layer cannot be recorded: {str(error).splitlines()[0]}"
        finally:
            for layer in rows:
                layer.zero_()

    def _differs(self, span: Span, tables: dict[torch.device, Tables]) -> str | None:
        for device, part in self.parts.items():
            frame = Frame(span, tables[device])
            part.frame = None
            ones = torch.ones(1, part.hidden, dtype=self.cache.dtype, device=device)
            for s in (next(iter(part.attentions)), next(iter(part.mlps))):
                found = self.sublayers[s](ones, frame).float()
                wanted = self.lean.sublayers[s](ones, frame).float()
                if not float((found - wanted).norm()) <= 0.02 * float((wanted - ones).norm()):
                    return f"a replayed sub-layer on {device} does not give what lean gives"
        return None


class Part:
    """The layers of one device: their buffers by row count, and what was recorded."""

    def __init__(self, config: Any, cache: KVCache, recorder: Recorder, way: str | None) -> None:
        self.cache, self.recorder, self.way = cache, recorder, way
        self.hidden, self.group = config.hidden_size, config.num_attention_heads // config.num_key_value_heads
        self.attentions: dict[int, Attention] = {}
        self.mlps: dict[int, Mlp] = {}
        self.frame: Frame | None = None
        self.slot: Slot | None = None
        self.failed: str | None = None
        self._rows: list[Tensor] | None = None  # the cache that was recorded

    def sublayer(self, s: int, eager: Sublayer) -> Sublayer:
        def run(hidden: Tensor, frame: Frame) -> Tensor:
            if frame is not self.frame:
                self._enter(frame)
            if self.slot is None:
                return eager(hidden, frame)
            if hidden is not self._out:
                if len(hidden) != len(self._out):
                    return eager(hidden, frame)  # more alternatives than a pass has rows go through an MLP together
                self._out.copy_(hidden)
            self._replays[s]()
            return self._out

        return run

    def _enter(self, frame: Frame) -> None:
        """The first sub-layer of a pass: position, masks and tables of its rows."""
        self.frame, self.slot = frame, None
        if frame.start == 0 or frame.rows > LIMIT:
            return
        if self.cache.rows is not self._rows:
            self._forget(frame.tables)
        rows, size = padded_rows(frame.rows), bucket(frame.end, len(self.cache.rows[0]))
        chain = self._varlen and frame.span.contiguous_chain
        if (rows, size, chain) not in self._recorded and not self._record(rows, size, chain):
            return
        slot = self._slots[rows]
        slot.load(frame.span, frame.rows)
        self._replays = self._recorded[rows, size, chain]
        self._replays[PLACE]()
        self.slot, self._out = slot, slot.view(frame.rows)

    def _forget(self, tables: Tables) -> None:
        """The cache was made anew: nothing recorded holds any more."""
        self._rows = self.cache.rows
        self._slots: dict[int, Slot] = {}
        self._mlps: dict[int, dict[int, Replay]] = {}
        self._recorded: dict[tuple[int, int, bool], dict[int, Replay]] = {}
        self._windows = tuple(dict.fromkeys(a.window for a in self.attentions.values()))
        half_precision = self.cache.dtype in (torch.float16, torch.bfloat16)
        self._varlen = self.recorder.device.type == "cuda" and half_precision and self._windows == (None,)
        half = tables.sin.shape[1] // 2
        with torch.inference_mode(False):
            self._columns = torch.arange(len(self._rows[0]), device=tables.device)
            self._cos = tables.cos[:, None].clone()
            self._sin = torch.cat((-tables.sin[:, :half], tables.sin[:, half:]), -1)[:, None]

    def _record(self, rows: int, size: int, chain: bool) -> bool:
        """Records every sub-layer of the device for a row count and bucket; whether there was memory for it."""
        if self.failed:
            return False
        d, dtype, device = self._cos.shape[-1], self.cache.dtype, self.recorder.device
        try:
            if rows not in self._slots:
                self._slots[rows] = Slot(rows, self.hidden, d, self.group, dtype, device)
            self._recorded[rows, size, chain] = self._replays_of(self._slots[rows], size, chain)
        except torch.OutOfMemoryError:
            self.failed = f"{device} has no memory left for graphs of {rows} rows over {size} cache rows"
        return self.failed is None

    def _replays_of(self, slot: Slot, size: int, chain: bool) -> dict[int, Replay]:
        """By sub-layer, and PLACE; MLPs know no bucket.

        Meanwhile the buffers say that the rows stand at the end of the bucket and are written behind the cache: recording
        executes the work, and nothing that is in the cache may change.
        """
        record = self.recorder.record
        end = min(size, self.cache.capacity)
        slot.load(Span.chain(max(1, end - slot.rows), slot.rows), slot.rows)
        slot.bounds[2].fill_(self.cache.capacity)
        found = {PLACE: record(slot.placing(size, self._windows, self._columns, self._cos, self._sin))}
        found[PLACE]()
        slot.hidden.normal_()
        attend = self._fastest(slot, size, chain)
        found |= {s: record(a.work(slot, size, attend)) for s, a in self.attentions.items()}
        if slot.rows not in self._mlps:
            self._mlps[slot.rows] = {s: record(mlp.work(slot)) for s, mlp in self.mlps.items()}
        return found | self._mlps[slot.rows]

    def _fastest(self, slot: Slot, size: int, chain: bool) -> Attend:
        """The way of attention that is quickest on this device, of those that work and agree with the plain one."""
        first = next(iter(self.attentions.values()))
        choices = ways(size, first.scale, chain)
        if self.way is not None:
            return choices.get(self.way, choices["masked"])
        query = torch.randn(slot.rows, first.heads, first.d, dtype=slot.dtype, device=slot.device)
        cached = self.cache.rows[first.index]
        wanted, best, least = choices["masked"](query, cached, slot, size, first.window), "masked", None
        for name, attend in choices.items():
            try:
                got = attend(query, cached, slot, size, first.window)
                seconds = self.recorder.seconds(self.recorder.record(first.work(slot, size, attend)))
            except (
                RuntimeError,
                AttributeError,
                TypeError,
                ImportError,
            ):  # of an operator that is missing or wants other shapes
                continue
            close = float((got - wanted).float().norm()) <= 0.02 * float(wanted.float().norm())
            if seconds is not None and close and (least is None or seconds < least):
                best, least = name, seconds
        return choices[best]
