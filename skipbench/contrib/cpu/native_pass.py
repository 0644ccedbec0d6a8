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
from skipbench.lm.layer import AttentionModules, MlpModules
from skipbench.lm.metadata import AttentionMetadata

Layers = Sequence[tuple[AttentionModules, MlpModules]]
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
        *((name, POINTER) for name in ("parent", "cos", "sin")),
        *((name, LONG) for name in ("rows", "committed", "start")),
    )


def native_pass(
    modules: Layers, cache: KVCache, weights: Mapping[str, Sequence[LayerWeights]]
) -> "NativePass | None":
    """`None` where a part of a pass has no C function."""
    plain = all(attention.qk_norms is None for attention, _ in modules)
    if not plain or kernel_of(modules[0][0].norm.weight) is None or cache.head_dim % 8:
        return None
    native = [getattr(w, "native", None) for of in weights.values() for layer in of for w in layer]
    known = [one for one in native if one is not None]
    return NativePass(modules, cache, weights, known) if len(known) == len(native) else None


class NativePass:
    """Runs sub-layers in one call."""

    def __init__(
        self,
        modules: Layers,
        cache: KVCache,
        weights: Mapping[str, Sequence[LayerWeights]],
        native: Sequence[Native],
    ) -> None:
        """
        Args:
            weights: those of every layer by their variant, empty for the model's own.
            native: of all of these weights.
        """
        like, self._cache = modules[0][0].norm.weight, cache
        self._norms = [part.norm.weight.data.contiguous() for pair in modules for part in pair]
        products, self._sublayers = iter(native), list[_Sublayer]()
        self._used = weights  # the C function reads their memory
        self._first = {name: 2 * len(modules) * place for place, name in enumerate(weights)}
        own = weights[""]
        for layer, pair in zip(itertools.chain(*weights.values()), itertools.cycle(modules)):
            for part, inner in zip(pair, (layer.output.inputs, layer.down.inputs), strict=True):
                (first, weight), (second, then) = pair_of = next(products), next(products)
                norm = self._norms[len(self._sublayers) % (2 * len(modules))].data_ptr()
                scale = part.scale if isinstance(part, AttentionModules) else 1.0
                both = None if isinstance(part, AttentionModules) else native_mlp(*pair_of)
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
        self._kept: dict[int, tuple[Chosen, Any]] = {}
        self._capacity = 0

    def __call__(
        self,
        hidden: Tensor,
        metadata: AttentionMetadata,
        chosen: Chosen,
        states: list[Tensor] | None,
    ) -> Tensor:
        """As `Engine.run`, without the state before the first sub-layer."""
        if not chosen[0]:
            return hidden
        (rows, width), hidden = hidden.shape, hidden.contiguous()
        slots = 2 if states is None else len(chosen[0])
        written = hidden.new_empty((slots, rows, width))
        temp = hidden.new_empty(rows * (width + 3 * self._widest))
        (cos, sin), parents = metadata.rope, metadata.parents
        made = _Pass(
            *(None if parents is None else parents.data_ptr(), cos.data_ptr(), sin.data_ptr()),
            *(rows, metadata.token_rows.context_len, metadata.start),
        )
        addresses, count = self._addresses(chosen), len(chosen[0])
        at = ctypes.addressof(self._model), ctypes.addressof(made), addresses
        tensors = hidden.data_ptr(), written.data_ptr(), slots, temp.data_ptr()
        self._function(*at, count, *tensors)
        if states is not None:
            states.extend(written.unbind())
        return written[(count - 1) % slots]

    def _addresses(self, chosen: Chosen) -> Any:
        """Pointers to the described sub-layers; a list of them is not changed by its owner."""
        numbers, variant = chosen
        if self._cache.capacity != self._capacity:  # its rows lie elsewhere after it grew
            self._capacity = self._cache.capacity
            for index, sublayer in enumerate(self._sublayers[::2]):
                sublayer.cache = self._cache.rows[index % len(self._cache.rows)].data_ptr()
        if id(numbers) not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            which = (self._sublayers[self._first[variant] + s] for s in numbers)
            addresses = (ctypes.c_void_p * len(numbers))(*map(ctypes.addressof, which))
            self._kept[id(numbers)] = chosen, addresses
        return ctypes.addressof(self._kept[id(numbers)][1])
