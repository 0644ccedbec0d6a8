"""All sub-layers of a pass over few rows in one call of `pass.c`: the same C functions on the same
numbers as one by one, so every bit is the same, without Python between them.
"""

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from skipbench.contrib.cpu.elementwise import function_of, kernel_of
from skipbench.contrib.cpu.few_rows import Native, most_rows, native_mlp
from skipbench.contrib.cpu.native import AVX2, FLOAT, LONG, POINTER, address, library
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Chosen
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.layer import AttentionParts, MlpParts
from skipbench.lm.metadata import QUERIES, AttentionMetadata

Parts = Sequence[tuple[AttentionParts, MlpParts]]
KEPT = 256  # lists of sub-layers whose addresses are kept: a search tries thousands


class _Sublayer(ctypes.Structure):
    """As `Sublayer` of the C file."""

    _fields_ = (
        *((name, POINTER) for name in ("first", "second", "first_weight", "second_weight")),
        *((name, POINTER) for name in ("both", "norm", "cache")),
        *(("inner", LONG), ("eps", FLOAT), ("scale", FLOAT)),
    )


class _Model(ctypes.Structure):
    """As `Model` of the C file."""

    _fields_ = (
        *((name, POINTER) for name in ("norm", "silu", "rotate", "attend")),
        *((name, LONG) for name in ("size", "width", "kv", "d", "widest")),
    )


class _Pass(ctypes.Structure):
    """As `Pass` of the C file."""

    _fields_ = (
        *((name, POINTER) for name in ("parent", "cos", "sin", "queries")),
        *((name, LONG) for name in ("rows", "committed", "start", "window")),
    )


def native_pass(
    parts: Parts, cache: KVCache, weights: Mapping[str, Sequence[LayerWeights]]
) -> "NativePass | None":
    """`None` where a part of a pass has no C function."""
    plain = all(attention.qk_norms is None for attention, _ in parts)
    if not plain or kernel_of(parts[0][0].norm.weight) is None or cache.head_dim % 8:
        return None
    native = [weight.native for layers in weights.values() for layer in layers for weight in layer]
    known = [one for one in native if one is not None]
    return NativePass(parts, cache, weights, known) if len(known) == len(native) else None


class NativePass:
    """Runs sub-layers in one call."""

    def __init__(
        self,
        parts: Parts,
        cache: KVCache,
        weights: Mapping[str, Sequence[LayerWeights]],
        native: Sequence[Native],
    ) -> None:
        """
        Args:
            weights: those of every layer by their variant, empty for the model's own.
            native: of all of these weights.
        """
        like, self._cache = parts[0][0].norm.weight, cache
        self._norms = [part.norm.weight.data.contiguous() for pair in parts for part in pair]
        products, self._sublayers = iter(native), list[_Sublayer]()
        self._used = weights  # the C function reads their memory
        self._first = {name: 2 * len(parts) * place for place, name in enumerate(weights)}
        own = weights[""]
        for layer, pair in zip(itertools.chain(*weights.values()), itertools.cycle(parts)):
            for part, inner in zip(pair, (layer.output.inputs, layer.down.inputs), strict=True):
                (first, weight), (second, then) = pair_of = next(products), next(products)
                norm = self._norms[len(self._sublayers) % (2 * len(parts))].data_ptr()
                scale = part.scale if isinstance(part, AttentionParts) else 1.0
                both = None if isinstance(part, AttentionParts) else native_mlp(*pair_of)
                numbers = norm, None, inner, part.norm.variance_epsilon, scale
                self._sublayers.append(_Sublayer(first, second, weight, then, both, *numbers))
        self._width = like.shape[0]
        self._widest = max(w.outputs for layer in own for w in (layer.qkv, layer.gate_up))
        inner = max(w.inputs for layer in own for w in (layer.output, layer.down))
        self.most = most_rows(kernel_of(like) or "", max(self._width, inner))
        """Rows of a pass, at most."""
        names = "rms_norm", "silu_times", "rotate", "attend"
        self._model = _Model(
            *(address(function_of(like, name)) for name in names),
            *(like.element_size(), self._width, cache.kv_heads, cache.head_dim, self._widest),
        )
        self._function = library(AVX2).run_sublayers
        self._function.argtypes = [POINTER] * 3 + [LONG] + [POINTER] * 2 + [LONG, POINTER]
        self._function.restype = None
        self._kept: dict[tuple[int, KVCache], tuple[Chosen, Any]] = {}
        self._over: dict[KVCache, tuple[int, list[_Sublayer]]] = {}
        """The sub-layers over each cache, and its capacity as they know it."""

    def __call__(
        self,
        hidden: Tensor,
        metadata: AttentionMetadata,
        chosen: Chosen,
        states: list[Tensor] | None,
    ) -> Tensor:
        """As `Engine.at_once`."""
        if not chosen:
            return hidden
        (rows, width), hidden = hidden.shape, hidden.contiguous()
        slots = 2 if states is None else len(chosen)
        written = hidden.new_empty((slots, rows, width))
        temp = hidden.new_empty(rows * (width + 3 * self._widest))
        (cos, sin), parents = metadata.rope, metadata.parents
        queries = self._room_for_queries(metadata, chosen)
        made = _Pass(
            *(None if parents is None else parents.data_ptr(), cos.data_ptr(), sin.data_ptr()),
            queries,
            *(rows, metadata.token_rows.context_len, metadata.start, metadata.draft_window or 0),
        )
        addresses = self._addresses(chosen, metadata.side or self._cache)
        at = ctypes.addressof(self._model), ctypes.addressof(made), addresses
        self._function(
            *(*at, len(chosen)),
            *(hidden.data_ptr(), written.data_ptr(), slots, temp.data_ptr()),
        )
        if states is not None:
            states.extend(written.unbind())
        return written[(len(chosen) - 1) % slots]

    def _room_for_queries(self, metadata: AttentionMetadata, chosen: Chosen) -> int | None:
        """Of every attention [T, H, d], entered in the metadata that asks for them."""
        if metadata.queries is None:
            return None
        layers, (_, _, d) = [s // 2 for s, _ in chosen if s % 2 == 0], self._cache.rows[0].shape
        heads = self._sublayers[0].inner // d
        made = self._norms[0].new_empty((len(layers), metadata.rows, heads, d))
        metadata.queries.update(zip(layers, made[:, -QUERIES:], strict=True))
        at: int = made.data_ptr()
        return at

    def _addresses(self, chosen: Chosen, cache: KVCache) -> Any:
        """Pointers to the described sub-layers; a list of them is not changed by its owner."""
        sublayers, key = self._placed(cache), (id(chosen), cache)
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            which = (sublayers[self._first[variant] + s] for s, variant in chosen)
            addresses = (ctypes.c_void_p * len(chosen))(*map(ctypes.addressof, which))
            self._kept[key] = chosen, addresses
        return ctypes.addressof(self._kept[key][1])

    def _placed(self, cache: KVCache) -> list[_Sublayer]:
        """All sub-layers over the rows of a cache, which lie elsewhere after it grew."""
        capacity, sublayers = self._over.get(cache, (0, []))
        sublayers = sublayers or [_Sublayer.from_buffer_copy(one) for one in self._sublayers]
        if capacity != cache.capacity:
            for index, sublayer in enumerate(sublayers[::2]):
                sublayer.cache = cache.rows[index % len(cache.rows)].data_ptr()
            self._over[cache] = cache.capacity, sublayers
        return sublayers
