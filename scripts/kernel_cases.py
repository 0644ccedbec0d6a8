"""Cases of `kernel_fuzz.py`: one call of a C function with random sizes and values, and what its
result must be: each row has the bits that it has alone, whatever the values (NaN and infinities
among them), and ordinary values give what float64 gives.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Put = Callable[[Array], Array]
FLOAT, LONG, POINTER = ctypes.c_float, ctypes.c_long, ctypes.c_void_p
SINKS = 4  # as draft_plan.py's
STEP = 64  # inputs of an output are filled up to a multiple


def at(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def wide(numbers: Array) -> Array:
    """float32, or bfloat16 as 16 bits, in float64."""
    if numbers.dtype == np.uint16:
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float64)


def narrow(values: Array) -> Array:
    """bfloat16, rounded to the nearest, as 16 bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def values(rng: np.random.Generator, shape: Any, odd: bool, bf16: bool = True) -> Array:
    """bfloat16, or float32: ordinary, or any bits."""
    if odd:
        bits = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
        return bits if bf16 else (bits.astype(np.uint32) << 16).view(np.float32)
    numbers = rng.standard_normal(shape).astype(np.float32)
    return narrow(numbers) if bf16 else numbers


def bits(row: Array) -> bytes:
    """Of a row, where every NaN is one."""
    return np.where(np.isnan(wide(row)), row.dtype.type(0x7FC0), row).tobytes()


def check_rows(whole: Array, one: Callable[[int], Array]) -> None:
    for row in range(len(whole)):
        assert bits(one(row)) == bits(whole[row]), f"row {row} has other bits alone"


def check_close(result: Array, wanted: Array, scale: Any) -> None:
    assert np.all(np.abs(result - wanted) <= np.abs(wanted) / 100 + 2e-4 * scale + 1e-30)


class Int8(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("w", "sums", "scale", "bias")),
        *((name, LONG) for name in ("inputs", "outputs", "most")),
        ("bf16", ctypes.c_int),
    )


class Weight(ctypes.Structure):
    _fields_ = (("w", POINTER), ("bias", POINTER), ("inputs", LONG), ("outputs", LONG))


def shape_of(rng: np.random.Generator) -> tuple[int, int, int]:
    """Inputs, outputs, rows."""
    return int(rng.integers(1, 330)), int(rng.integers(1, 90)), int(rng.integers(1, 40))


def int8(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    inputs, outputs, rows = shape_of(rng)
    odd, bf16 = rng.random() < 0.4, bool(rng.integers(2))
    w = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    padded = put(np.pad(w, ((0, 0), (0, -inputs % STEP))))
    scale = put((rng.random(outputs) / 100 + 1e-4).astype(np.float32))
    bias = put(rng.standard_normal(outputs).astype(np.float32)) if rng.random() < 0.5 else None
    largest = int(np.abs(w.astype(np.int64)).sum(1).max())
    most = min((1 << 15) - 1, ((1 << 31) - 1) // max(largest, 1))
    sums = put(w.sum(1, dtype=np.int32))
    read = at(padded), at(sums), at(scale), at(bias)
    made = Int8(*read, inputs, outputs, most, bf16)
    x = put(values(rng, (rows, inputs), odd, bf16))
    multiplied(function, rng, put, made, x, w * scale[:, None].astype(np.float64), bias, odd)


def quantize(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    inputs, outputs, _ = shape_of(rng)
    odd, bf16 = rng.random() < 0.4, bool(rng.integers(2))
    w, width = put(values(rng, (outputs, inputs), odd, bf16)), -(-inputs // STEP) * STEP
    to = put(np.ones((outputs, width), np.int8))
    scale, sums = put(np.zeros(outputs, np.float32)), put(np.zeros(outputs, np.int32))
    most = function(*map(at, (to, scale, sums, w)), inputs, outputs, bf16)
    assert not to[:, inputs:].any() and [*sums] == [*to.sum(1, dtype=np.int32)]
    assert most == np.abs(to.astype(np.int64)).sum(1).max()
    if not odd:
        off = np.abs(to[:, :inputs] * scale[:, None] - wide(w))
        assert np.all(off <= 0.501 * scale[:, None])


def product(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    inputs, outputs, rows = shape_of(rng)
    odd = rng.random() < 0.4
    w, x = (put(values(rng, (n, inputs), odd, bf16)) for n in (outputs, rows))
    bias = put(values(rng, outputs, odd, bf16)) if rng.random() < 0.5 else None
    made = Weight(at(w), at(bias), inputs, outputs)
    multiplied(function, rng, put, made, x, wide(w), None if bias is None else wide(bias), odd)


def multiplied(
    function: Any, rng: np.random.Generator, put: Put, made: Any, x: Array, *added: Any
) -> None:
    """x w^T + bias, and half the time + residual, together and one by one."""
    w, bias, odd = added
    shape, bf16 = (len(x), len(w)), x.dtype == np.uint16
    before = put(values(rng, shape, odd, bf16)) if rng.random() < 0.5 else None
    y = put(np.zeros(shape, x.dtype))
    function(ctypes.addressof(made), at(y), at(before), at(x), len(x))

    def one(row: int) -> Array:
        own = put(y[row])
        part = None if before is None else put(before[row])
        function(ctypes.addressof(made), at(own), at(part), at(put(x[row])), 1)
        return own

    check_rows(y, one)
    if not odd:
        more = sum(v for v in (bias, None if before is None else wide(before)) if v is not None)
        scale = np.abs(wide(x)).max(1, keepdims=True) * np.abs(w).sum(1) + 1
        check_close(wide(y), wide(x) @ w.T + more, scale)


def norm(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    width, _, rows = shape_of(rng)
    odd, eps = rng.random() < 0.4, 1e-5
    x, w = put(values(rng, (rows, width), odd, bf16)), put(values(rng, width, odd, bf16))
    y = put(np.zeros_like(x))

    def run(y: Array, x: Array, rows: int) -> Array:
        function(at(y), at(x), at(w), eps, rows, width)
        return y

    run(y, x, rows)
    check_rows(y, lambda row: run(put(y[row]), put(x[row]), 1))
    if not odd:
        share = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + eps)
        check_close(wide(y), wide(x) / share * wide(w), 1)


def silu(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    width, _, rows = shape_of(rng)
    odd = rng.random() < 0.4
    x = put(values(rng, (rows, 2 * width), odd, bf16))
    y = put(np.zeros((rows, width), x.dtype))

    def run(y: Array, x: Array, rows: int) -> Array:
        function(at(y), at(x), rows, width)
        return y

    run(y, x, rows)
    check_rows(y, lambda row: run(put(y[row]), put(x[row]), 1))
    if not odd:
        gate, up = wide(x[:, :width]), wide(x[:, width:])
        check_close(wide(y), gate / (1 + np.exp(-gate)) * up, 1)


def mlp(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    """Both products of an MLP; a row has the bits that it has before another one."""
    (width, _, rows), inner, odd = shape_of(rng), 32 * int(rng.integers(1, 6)), rng.random() < 0.4
    rows += 1
    x, before = (put(values(rng, (rows, width), odd)) for _ in range(2))
    up, down = (put(values(rng, shape, odd)) for shape in ((2 * inner, width), (width, inner)))
    weights = [Weight(at(w), None, w.shape[1], w.shape[0]) for w in (up, down)]

    def run(before: Array, x: Array) -> Array:
        y = put(np.zeros_like(x))
        function(*map(ctypes.addressof, weights), at(y), at(before), at(x), len(x))
        return y

    y = run(before, x)
    check_rows(y, lambda row: run(*(put(of[[row, 0]]) for of in (before, x)))[0])
    if not odd:
        gate_up = wide(x) @ wide(up).T
        gate, up_of = gate_up[:, :inner], gate_up[:, inner:]
        mixed = gate / (1 + np.exp(-gate)) * up_of
        scale = 60 * np.abs(mixed) @ np.abs(wide(down)).T + 60
        check_close(wide(y), wide(before) + mixed @ wide(down).T, scale)


def rotate(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    """Queries, and keys with values, as two outputs side by side."""
    half, kv, group = int(rng.integers(1, 140)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    d, heads, rows, odd = 2 * half, kv * group, int(rng.integers(1, 20)), rng.random() < 0.4
    qkv = put(values(rng, (rows, heads + 2 * kv, d), odd, bf16))
    cos, sin = (put(values(rng, (rows, d), odd, bf16)) for _ in range(2))
    query = put(np.zeros((rows, heads, d), qkv.dtype))
    cache = put(np.zeros((rows, 2 * kv, d), qkv.dtype))
    function(*map(at, (query, cache, qkv, cos, sin)), rows, heads, kv, d)

    def one(row: int) -> Array:
        own = [put(part[row]) for part in (query, cache, qkv, cos, sin)]
        function(*map(at, own), 1, heads, kv, d)
        return np.concatenate(own[:2])

    check_rows(np.concatenate((query, cache), 1), one)
    assert cache[:, kv:].tobytes() == qkv[:, heads + kv :].tobytes()
    if not odd:
        x = wide(qkv[:, : heads + kv])
        turned = np.concatenate((x[..., half:], x[..., :half]), 2) * wide(sin)[:, None]
        wanted = x * wide(cos)[:, None] + turned
        check_close(wide(query), wanted[:, :heads], 100)
        check_close(wide(cache[:, :kv]), wanted[:, heads:], 100)


def in_order(x: Array) -> Array:
    """Indices of every row of bfloat16, the largest first, of equal ones the first; a NaN lies
    above or below all numbers.
    """
    signed = np.where(x & 0x7FFF, x, 0).astype(np.uint16).view(np.int16).astype(np.int32)
    return np.argsort(-np.where(signed < 0, signed ^ 0x7FFF, signed), axis=1, kind="stable")


def top_k(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    width, rows, odd = int(rng.integers(1, 700)), int(rng.integers(1, 9)), rng.random() < 0.4
    k = int(rng.integers(0, min(width, 20) + 1))
    x = put(values(rng, (rows, width), odd) & np.uint16(0xFFFF if odd else 0xFF80))  # with ties
    index = put(np.zeros((rows, 1 + k), np.int32))
    function(at(index), at(x), rows, width, k)
    order = in_order(x)
    for row, numbers in enumerate(wide(x)):
        finite = np.isfinite(numbers.max())  # NaN where there is one
        assert index[row, 0] == (order[row, 0] if finite else -1)
        assert [*index[row, 1:]] == [*order[row, :k]]


def two_best(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    width, rows, odd = int(rng.integers(2, 700)), int(rng.integers(1, 9)), rng.random() < 0.4
    x = put(values(rng, (rows, width), odd))
    found = put(np.zeros((rows, 3), np.float32))
    function(at(found), at(x), rows, width)
    best = in_order(x)[:, :2]
    assert np.array_equal(found[:, 0], best[:, 0])
    numbers = np.take_along_axis(wide(x), best, 1)
    assert np.array_equal(found[:, 1:], numbers, equal_nan=True)


def attention(attend: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    """Rows of a chain or a tree behind committed rows; stale rows between them hold NaN, and at
    times a row of the pass does, which those that are no part of its path do not see.
    """
    d, kv, group = 8 * int(rng.integers(1, 33)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    heads, rows, committed = kv * group, int(rng.integers(1, 20)), int(rng.integers(0, 300))
    tree = rng.random() < 0.5
    start = committed + (int(rng.integers(0, 40)) if tree else 0)
    parents = [int(rng.integers(max(-1, row - 4), row)) for row in range(rows)]
    parents = parents if tree else [row - 1 for row in range(rows)]
    query = put(values(rng, (rows, heads, d), False, bf16))
    cache = values(rng, (start + rows, 2 * kv, d), False, bf16)
    nan = 0x7FC0 if bf16 else np.nan
    cache[committed:start] = nan
    if rng.random() < 0.3:
        cache[start + int(rng.integers(rows))] = nan
    cache, out = put(cache), put(np.zeros_like(query))
    parent = put(np.array(parents, np.int32)) if tree else None
    scale = float(d**-0.5)
    sizes = rows, committed, start, heads, kv, d, 0
    attend(at(out), at(query), at(cache), at(parent), scale, *sizes)
    seen: list[list[int]] = []
    for row, above in enumerate(parents):
        seen.append([*(seen[above] if above >= 0 else ()), start + row])

    def one(row: int) -> Array:
        own = put(out[row])
        path = put(np.concatenate((cache[:committed], cache[seen[row]])))
        length = len(path) - 1
        attend(
            at(own), at(put(query[row])), at(path), None, scale, 1, length, length, heads, kv, d, 0
        )
        path64, query64 = wide(path), wide(query[row]).reshape(kv, group, d)
        scores = np.einsum("kgd,tkd->kgt", query64, path64[:, :kv]) * scale
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        v64 = path64[:, kv:]
        wanted, size = (np.einsum("kgt,tkd->kgd", chances, v) for v in (v64, np.abs(v64)))
        if np.isfinite(wanted).all():
            check_close(wide(own), wanted.reshape(heads, d), 10 * size.reshape(heads, d))
        return own

    check_rows(out, one)
    if start == committed > SINKS:  # the first row, as a draft's window lets it see
        hidden = int(rng.integers(committed - SINKS + 1))
        length = start - hidden
        seen_rows = put(np.delete(cache[: start + 1], slice(SINKS, SINKS + hidden), 0))
        cache[SINKS : SINKS + hidden] = nan
        both = [put(np.zeros_like(out[0])) for _ in range(2)]
        for to, of, hides in zip(both, (cache, seen_rows), (hidden, 0), strict=True):
            sizes = 1, length, length, heads, kv, d, hides
            attend(at(to), at(query[0]), at(of), None, scale, *sizes)
        assert bits(both[0]) == bits(both[1]), "a window has other bits than what it sees"


class Sublayer(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("first", "second", "first_weight", "second_weight")),
        *((name, POINTER) for name in ("both", "norm", "cache")),
        *(("inner", LONG), ("eps", FLOAT), ("scale", FLOAT)),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("norm", "silu", "rotate", "attend")),
        *((name, LONG) for name in ("size", "width", "kv", "d", "widest")),
    )


class Pass(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("parent", "cos", "sin")),
        *((name, LONG) for name in ("rows", "committed", "start", "window")),
    )


def whole_pass(native: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    """Some sub-layers in one call, with the bits of a call for each."""
    kv, group, d = int(rng.integers(1, 4)), int(rng.integers(1, 4)), 8 * int(rng.integers(1, 9))
    rows, committed, heads = int(rng.integers(1, 9)), int(rng.integers(0, 60)), kv * group
    (width, *inner), kind = rng.integers(1, 120, 4).tolist(), "bfloat16" if bf16 else "float32"
    names = {case: f"{name}_{kind}" for name, case in CASES.items() if name in PARTS}
    parts = {case: getattr(native, name) for case, name in names.items()}
    parts[product] = getattr(native, f"multiply_{kind}")
    for case, function in parts.items():
        function.argtypes, function.restype = TYPES[case], None
    where = {case: ctypes.cast(function, POINTER).value for case, function in parts.items()}
    widest, start = max((heads + 2 * kv) * d, *(2 * n for n in inner)), committed + 3
    cos, sin = (put(values(rng, (rows, d), False, bf16)) for _ in range(2))
    parent = put(np.array([max(-1, row - 2) for row in range(rows)], np.int32))
    kept, made, caches, scale, eps = list[Any](), list[Sublayer](), list[Array](), 0.1, 1e-5
    x = put(values(rng, (rows, width), False, bf16))
    for size in inner:
        attends, own = bool(rng.integers(2)), put(values(rng, width, False, bf16))
        size = heads * d if attends else size
        shapes = (((heads + 2 * kv) * d if attends else 2 * size, width), (width, size))
        weights = [put(values(rng, shape, False, bf16)) for shape in shapes]
        described = [Weight(at(w), None, w.shape[1], w.shape[0]) for w in weights]
        rows_of = values(rng, (start + rows, 2 * kv, d), False, bf16)
        caches.append(put(rows_of))
        kept += [own, weights, described]
        addresses = map(ctypes.addressof, described)
        cache = at(caches[-1]) if attends else None
        pointers = *addresses, None, at(own), cache
        made.append(Sublayer(*[where[product]] * 2, *pointers, size, eps, scale))
    states = [put(np.zeros((len(made), rows, width), x.dtype)) for _ in range(2)]
    temp = put(np.zeros(rows * (width + 3 * widest), x.dtype))
    model = Model(*(where[case] for case in (norm, silu, rotate, attention)), x.itemsize)
    model.width, model.kv, model.d, model.widest = width, kv, d, widest
    passed = Pass(at(parent), at(cos), at(sin), rows, committed, start)
    chosen = (POINTER * len(made))(*map(ctypes.addressof, made))
    before = [cache.copy() for cache in caches]
    native.run_sublayers.argtypes = [*[POINTER] * 3, LONG, POINTER, POINTER, LONG, POINTER]
    of = ctypes.addressof(model), ctypes.addressof(passed), ctypes.addressof(chosen), len(made)
    native.run_sublayers(*of, at(x), at(states[0]), len(made), at(temp))
    after = [cache.copy() for cache in caches]
    for i, (s, cache) in enumerate(zip(made, caches, strict=True)):
        cache[:] = before[i]
        y, normed = states[1][i], put(np.zeros_like(x))
        wide_of = heads + 2 * kv if s.cache else 2
        first = put(np.zeros((rows, wide_of * (d if s.cache else s.inner)), x.dtype))
        query, mixed = (put(np.zeros((rows, s.inner), x.dtype)) for _ in range(2))
        parts[norm](at(normed), at(x), s.norm, eps, rows, width)
        parts[product](s.first_weight, at(first), None, at(normed), rows)
        if s.cache:
            written = at(cache[start:])
            parts[rotate](at(query), written, at(first), at(cos), at(sin), rows, heads, kv, d)
            sizes = rows, committed, start, heads, kv, d, 0
            parts[attention](at(mixed), at(query), s.cache, at(parent), scale, *sizes)
        else:
            parts[silu](at(mixed), at(first), rows, s.inner)
        parts[product](s.second_weight, at(y), at(x), at(mixed), rows)
        assert bits(cache) == bits(after[i])
        x = y
    assert bits(states[0]) == bits(states[1])


PARTS = ("rms_norm", "silu_times", "rotate", "attend")
CASES: dict[str, Any] = {"int8": int8, "rms_norm": norm, "silu_times": silu, "rotate": rotate}
CASES |= {
    "quantize_weight": quantize,
    "top_k": top_k,
    "two_best": two_best,
    "mlp": mlp,
    "attend": attention,
}
"""By the beginning of a function's name; another one is a `product`."""
TYPES = {
    int8: [*[POINTER] * 4, LONG],
    quantize: [*[POINTER] * 4, LONG, LONG, ctypes.c_int],
    product: [*[POINTER] * 4, LONG],
    norm: [*[POINTER] * 3, FLOAT, LONG, LONG],
    silu: [POINTER, POINTER, LONG, LONG],
    rotate: [*[POINTER] * 5, *[LONG] * 4],
    top_k: [POINTER, POINTER, LONG, LONG, LONG],
    two_best: [POINTER, POINTER, LONG, LONG],
    mlp: [*[POINTER] * 5, LONG],
    attention: [*[POINTER] * 4, FLOAT, *[LONG] * 7],
}
