"""Cases of `kernel_fuzz.py`: a call of a C function with random sizes and values. Each row has the
bits that it has alone, whatever the values (NaN, too), and ordinary values give what float64 gives.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Put = Callable[[Array], Array]
FLOAT, LONG, POINTER = ctypes.c_float, ctypes.c_long, ctypes.c_void_p
STEP = 64  # inputs of an output are filled up to a multiple


def at(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def wide(numbers: Array) -> Array:
    """float32, or bfloat16 as 16 bits, in float64."""
    half = numbers.dtype == np.uint16
    return ((numbers.astype(np.uint32) << 16).view(np.float32) if half else numbers).astype(float)


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


def rows_alone(put: Put, run: Callable[..., object], y: Array, *inputs: Array | None) -> None:
    """Calls `run(y, *inputs, rows)` for all rows of `y`, and for each alone."""
    run(y, *inputs, len(y))

    def one(row: int) -> Array:
        own = put(y[row])
        run(own, *(None if x is None else put(x[row]) for x in inputs), 1)
        return own

    check_rows(y, one)


def fields(pointers: str, longs: str) -> list[tuple[str, Any]]:
    return [(n, POINTER) for n in pointers.split()] + [(n, LONG) for n in longs.split()]


class Int8(ctypes.Structure):
    _fields_ = (*fields("w sums scale bias", "inputs outputs most"), ("bf16", ctypes.c_int))


class Weight(ctypes.Structure):
    _fields_ = fields("w bias", "inputs outputs")


def shape_of(rng: np.random.Generator) -> tuple[int, int, int, bool]:
    """Inputs, outputs, rows, and whether values are odd."""
    inputs, outputs, rows = (int(rng.integers(1, end)) for end in (330, 90, 40))
    return inputs, outputs, rows, rng.random() < 0.4


def int8(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    (inputs, outputs, rows, odd), bf16 = shape_of(rng), bool(rng.integers(2))
    w = rng.integers(-127, 128, (outputs, inputs), np.int8)
    padded = put(np.pad(w, ((0, 0), (0, -inputs % STEP))))
    scale = put((rng.random(outputs) / 100 + 1e-4).astype(np.float32))
    bias = put(rng.standard_normal(outputs).astype(np.float32)) if rng.random() < 0.5 else None
    largest = max(1, int(np.abs(w.astype(np.int64)).sum(1).max()))
    most = min((1 << 15) - 1, ((1 << 31) - 1) // largest)
    sums = put(w.sum(1, dtype=np.int32))
    made = Int8(*map(at, (padded, sums, scale, bias)), inputs, outputs, most, bf16)
    x = put(values(rng, (rows, inputs), odd, bf16))
    multiplied(function, rng, put, made, x, w * scale[:, None].astype(np.float64), bias, odd)


def quantize(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    (inputs, outputs, _, odd), bf16 = shape_of(rng), bool(rng.integers(2))
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
    inputs, outputs, rows, odd = shape_of(rng)
    w, x = (put(values(rng, (n, inputs), odd, bf16)) for n in (outputs, rows))
    bias = put(values(rng, outputs, odd, bf16)) if rng.random() < 0.5 else None
    made = Weight(at(w), at(bias), inputs, outputs)
    multiplied(function, rng, put, made, x, wide(w), None if bias is None else wide(bias), odd)


def multiplied(
    function: Any, rng: np.random.Generator, put: Put, made: Any, x: Array, *added: Any
) -> None:
    """x w^T + bias, and half the time + residual, together and one by one."""
    w, bias, odd = added
    shape = len(x), len(w)
    before = put(values(rng, shape, odd, x.dtype == np.uint16)) if rng.random() < 0.5 else None
    y = put(np.zeros(shape, x.dtype))
    own = ctypes.addressof(made)
    rows_alone(put, lambda *of: function(own, *map(at, of[:3]), of[3]), y, before, x)
    if not odd:
        more = sum(v for v in (bias, None if before is None else wide(before)) if v is not None)
        scale = np.abs(wide(x)).max(1, keepdims=True) * np.abs(w).sum(1) + 1
        check_close(wide(y), wide(x) @ w.T + more, scale)


def norm(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    (width, _, rows, odd), eps = shape_of(rng), 1e-5
    x, w = put(values(rng, (rows, width), odd, bf16)), put(values(rng, width, odd, bf16))
    y = put(np.zeros_like(x))
    rows_alone(put, lambda y, x, n: function(at(y), at(x), at(w), eps, n, width), y, x)
    if not odd:
        root = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + eps)
        check_close(wide(y), wide(x) / root * wide(w), 1)


def gated(gate_up: Array) -> Array:
    gate, up = np.split(gate_up, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


def silu(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    width, _, rows, odd = shape_of(rng)
    x = put(values(rng, (rows, 2 * width), odd, bf16))
    y = put(np.zeros((rows, width), x.dtype))
    rows_alone(put, lambda y, x, n: function(at(y), at(x), n, width), y, x)
    if not odd:
        check_close(wide(y), gated(wide(x)), 1)


def mlp(function: Any, rng: np.random.Generator, put: Put, _: bool) -> None:
    """Both products of an MLP; a row has the bits that it has before another one."""
    (width, _, rows, odd), inner = shape_of(rng), 32 * int(rng.integers(1, 6))
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
        mixed = gated(wide(x) @ wide(up).T)
        scale = 60 * np.abs(mixed) @ np.abs(wide(down)).T + 60
        check_close(wide(y), wide(before) + mixed @ wide(down).T, scale)


def rotate(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    """Queries, and keys with values, as two outputs side by side."""
    half, kv, group = int(rng.integers(1, 140)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    d, heads, rows, odd = 2 * half, kv * group, int(rng.integers(1, 20)), rng.random() < 0.4
    qkv = put(values(rng, (rows, heads + 2 * kv, d), odd, bf16))
    cos, sin = (put(values(rng, (rows, d), odd, bf16)) for _ in range(2))
    query, cache = (put(np.zeros((rows, n, d), qkv.dtype)) for n in (heads, 2 * kv))
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
    """Indices of every row, the largest first, of equal ones the first; a NaN lies above or below
    all numbers.
    """
    whole = x.astype(np.uint32) << 16 if x.dtype == np.uint16 else x.view(np.uint32)
    signed = whole.view(np.int32).astype(np.int64)
    signed[signed == -(2**31)] = 0
    return np.argsort(-np.where(signed < 0, signed ^ 0x7FFFFFFF, signed), axis=1, kind="stable")


def top_k(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    width, rows, odd = int(rng.integers(1, 700)), int(rng.integers(1, 9)), rng.random() < 0.4
    k = int(rng.integers(0, min(width, 20) + 1))
    x = values(rng, (rows, width), odd, bf16)
    if not odd:  # with ties
        x = x & np.uint16(0xFF80) if bf16 else np.round(x, 1)
    index = put(np.zeros((rows, 1 + k), np.int32))
    function(at(index), at(x := put(x)), rows, width, k)
    order = in_order(x)
    best = np.where(np.isfinite(wide(x).max(1)), order[:, 0], -1)  # NaN where there is one
    assert np.array_equal(index, np.column_stack((best, order[:, :k])))


def two_best(function: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    width, rows, odd = int(rng.integers(2, 700)), int(rng.integers(1, 9)), rng.random() < 0.4
    x = put(values(rng, (rows, width), odd, bf16))
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
    back = 4 if tree else 1
    parents = [int(rng.integers(max(-1, row - back), row)) for row in range(rows)]
    query = put(values(rng, (rows, heads, d), False, bf16))
    cache = values(rng, (start + rows, 2 * kv, d), False, bf16)
    cache[committed:start] = nan = 0x7FC0 if bf16 else np.nan
    if rng.random() < 0.3:
        cache[start + int(rng.integers(rows))] = nan
    cache, out = put(cache), put(np.zeros_like(query))
    parent = put(np.array(parents, np.int32)) if tree else None
    scale = float(d**-0.5)

    def run(to: Array, q: Array, of: Array, above: Any, *sizes: int) -> None:
        attend(*map(at, (to, q, of, above)), scale, *sizes, heads, kv, d)

    run(out, query, cache, parent, rows, committed, start)
    seen = {-1: list[int]()}
    for row, above in enumerate(parents):
        seen[row] = [*seen[above], start + row]

    def one(row: int) -> Array:
        own = put(out[row])
        path = put(np.concatenate((cache[:committed], cache[seen[row]])))
        run(own, put(query[row]), path, None, 1, len(path) - 1, len(path) - 1)
        path64, query64 = wide(path), wide(query[row]).reshape(kv, group, d)
        scores = np.einsum("kgd,tkd->kgt", query64, path64[:, :kv]) * scale
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances, v64 = chances / chances.sum(-1, keepdims=True), path64[:, kv:]
        wanted, size = (np.einsum("kgt,tkd->kgd", chances, v) for v in (v64, np.abs(v64)))
        if np.isfinite(wanted).all():
            check_close(wide(own), wanted.reshape(heads, d), 10 * size.reshape(heads, d))
        return own

    check_rows(out, one)


P, L, F = POINTER, LONG, FLOAT
CASES: dict[str, Any] = {
    "int8": int8, "rms_norm": norm, "silu_times": silu, "rotate": rotate, "top_k": top_k,
    "quantize_weight": quantize, "two_best": two_best, "mlp": mlp, "attend": attention,
}  # fmt: skip
"""By the beginning of a function's name; another one is a `product`."""
TYPES = {
    int8: [P, P, P, P, L], quantize: [P, P, P, P, L, L, ctypes.c_int],
    product: [P, P, P, P, L], norm: [P, P, P, F, L, L], silu: [P, P, L, L],
    rotate: [P, P, P, P, P, L, L, L, L], top_k: [P, P, L, L, L], two_best: [P, P, L, L],
    mlp: [P, P, P, P, P, L], attention: [P, P, P, P, F, L, L, L, L, L, L],
}  # fmt: skip
