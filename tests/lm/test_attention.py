"""Attention over splits of a fixed size (`cuda_graphs.attention`): near float32 attention by torch,
and for a row of a pass the bits that the row gets alone. Both for the kernels, in Triton's
interpreter or on a GPU, and for their form in plain torch (`cuda_graphs.on_cpu`).
"""

import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from interpreted import DEVICE, interpreter, kernel
from torch import Tensor

from skipbench.lm.cuda_graphs import attention, on_cpu
from skipbench.lm.cuda_graphs.attention import LONGEST
from skipbench.lm.rows import TokenRows

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest norm of a difference from float32 arithmetic, as a share."""
SCALE = 0.3
Place = tuple[Tensor, Tensor, Tensor]  # bounds, depth, tree mask
LAUNCHED = SimpleNamespace(**{name: kernel(attention, name) for name in ("place", "attend_splits")})
KERNELS = pytest.mark.parametrize("of", [LAUNCHED, on_cpu], ids=["kernels", "torch"])


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if DEVICE.type == "cuda" and "torch" in request.node.name:
        pytest.skip("is for the host")


class Pass(NamedTuple):
    """A pass and its numbers."""

    rows: TokenRows
    query: Tensor  # [R, H, d]
    cache: Tensor  # [_, 2 KV, d]
    size: int
    window: int = LONGEST

    def place(self) -> Place:
        rows = self.rows
        bounds = torch.tensor([rows.start, rows.context_len, rows.start])
        depth = torch.tensor([p - rows.context_len for p in rows.positions])
        mask = torch.from_numpy(rows.tree_mask()).clone()
        return bounds.to(DEVICE), depth.to(DEVICE), mask.to(DEVICE)

    def sees(self) -> Tensor:
        """What each row sees of the cache, from the rows themselves: [R, cache rows]."""
        rows = self.rows
        sees = torch.zeros(rows.rows, len(self.cache), dtype=torch.bool)
        for row, path in enumerate(rows.paths()):
            places = {p: p for p in range(rows.context_len)}  # position: cache row
            places |= {rows.positions[other]: rows.start + other for other in path}
            for position, at in places.items():
                sees[row, at] = rows.positions[row] - position < self.window
        return sees


def attended(of: Any, one: Pass) -> Tensor:
    """[R, H, d] by the operators of a module."""
    bounds, depth, mask = one.place()
    rows, _, d = one.query.shape
    table = torch.zeros(one.size, 1, d, device=DEVICE, dtype=one.query.dtype)
    out = [table.new_empty(rows, 1, d) for _ in range(2)]
    target = torch.empty(rows, dtype=torch.int64, device=DEVICE)
    paths = torch.empty(rows, attention.PATH, dtype=torch.int32, device=DEVICE)
    split = attention.split_size(one.query.dtype, d)
    of.place(bounds, depth, mask, table, table, target, *out, paths, split)
    given = one.query, one.cache, bounds, depth, paths, one.size, one.window, SCALE
    return of.attend_splits(*given).view(one.query.shape)  # type: ignore[no-any-return]  # of either module


def by_torch(one: Pass) -> Tensor:
    """float32 attention over all rows that are seen at once."""
    group = one.query.shape[1] * 2 // one.cache.shape[1]
    keys, values = one.cache.float().nan_to_num(0.0).repeat_interleave(group, 1).chunk(2, 1)
    score = torch.einsum("rhd,chd->rhc", one.query.float(), keys) * SCALE
    score = score.masked_fill(~one.sees().to(DEVICE)[:, None], float("-inf"))
    return torch.einsum("rhc,chd->rhd", score.softmax(-1), values)


def drawn_rows(draw: random.Random, most: int, border: int) -> TokenRows:
    """A chain, tree or branches whose context ends near a border of splits, or anywhere."""
    near = border * draw.randint(1, 2) + draw.randint(-most, most)
    context_len = draw.choice((near, near, draw.randint(1, 2 * border)))
    count = draw.randint(1, most)
    kind = draw.choice(("chain", "tree", "tree", "branches"))
    if kind == "chain":
        return TokenRows.chain(context_len, count)
    if kind == "tree":
        return TokenRows.tree(context_len, drawn_tree(draw, count))
    start = context_len + draw.choice((0, 3, 9))
    return TokenRows.branches(start, context_len, -(-count // 2), draw.randint(1, 2))


def drawn_tree(draw: random.Random, count: int) -> tuple[int, ...]:
    """Wide and deep ones, of one or more roots."""
    reach = draw.choice((1, 2, count))
    return tuple(draw.randint(max(-1, row - reach), row - 1) for row in range(count))


def drawn_pass(seed: int) -> Pass:
    """Rows that nobody sees hold no number."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = draw.choice(list(TOLERANCES))
    d, kv = draw.choice((8, 16, 20, 40, 130)), draw.choice((1, 1, 2))
    group = draw.choice((1, 2, 3, 17 if d == 8 else 4))
    border = attention.split_size(dtype, d)
    rows = drawn_rows(draw, 6, border)
    window = draw.choice((LONGEST, LONGEST, 1, 7, border, border + 5))
    size = rows.end + draw.choice((0, 1, border))
    query = torch.randn(rows.rows, kv * group, d).to(DEVICE, dtype)
    one = Pass(rows, query, torch.randn(size, 2 * kv, d).to(DEVICE, dtype), size, window)
    one.cache[~one.sees().any(0).to(DEVICE)] = torch.nan
    return one


def alone(one: Pass, row: int, more: int) -> Pass:
    """A row as that of a chain of 1 behind its committed ancestors, in a bucket of another size."""
    start, path = one.rows.context_len, one.rows.paths()[row]
    cache = torch.full_like(one.cache[:1], torch.nan).repeat(len(one.cache) + more, 1, 1)
    cache[:start] = one.cache[:start]
    cache[start : start + len(path)] = one.cache[[one.rows.start + other for other in path]]
    chain = TokenRows.chain(start + len(path) - 1, 1)
    return Pass(chain, one.query[row : row + 1], cache, one.size + more, one.window)


def differing(of: Any, one: Pass) -> int:
    """Rows with other bits than alone."""
    together, differ = attended(of, one), 0
    for row in range(one.rows.rows):
        by_itself = alone(one, row, 64 * (row % 3))
        differ += not torch.equal(attended(of, by_itself)[0], together[row])
    return differ


def exact_pass(rows: TokenRows, dtype: torch.dtype, heads: int = 2, d: int = 16) -> Pass:
    """Padding may lie behind what is read."""
    torch.manual_seed(rows.end)
    cache, size = torch.randn(rows.end, 2, d).to(DEVICE, dtype), rows.end - rows.padding
    return Pass(rows, torch.randn(rows.rows, heads, d).to(DEVICE, dtype), cache, size)


MANY = pytest.param(LAUNCHED, range(3, 200), marks=pytest.mark.slow)


@pytest.mark.parametrize(("of", "seeds"), [(LAUNCHED, range(3)), (on_cpu, range(60)), MANY])
def test_near_attention_of_torch(of: Any, seeds: range) -> None:
    if of is on_cpu and DEVICE.type == "cuda":
        pytest.skip("is for the host")
    for seed in seeds:
        one = drawn_pass(seed)
        found, wanted = attended(of, one).float(), by_torch(one)
        error = float((found - wanted).norm() / wanted.norm())
        assert error < TOLERANCES[one.query.dtype], (seed, error, one.rows)


@KERNELS
@pytest.mark.parametrize("at", [3, 66], ids=["shared", "own"])
@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's
def test_what_is_no_number_is_not_hidden(of: Any, at: int) -> None:
    one = exact_pass(TokenRows.chain(66, 2), torch.float32)
    for heads in (slice(0, 1), slice(1, 2)):  # a key, a value
        cache = one.cache.clone()
        cache[at, heads] = torch.nan
        assert bool(attended(of, one._replace(cache=cache)).isnan().all())


@KERNELS
def test_place(of: Any) -> None:
    draw = random.Random(0)
    for border in (64, 128) * (20 if of is on_cpu else 2):
        rows = drawn_rows(draw, 20, border)
        one = Pass(rows, torch.empty(0), torch.empty(0), 0)
        tables = [torch.randn(rows.context_len + 2, 1, 6).to(DEVICE) for _ in range(2)]
        made = [torch.empty(rows.rows, 1, 6, device=DEVICE) for _ in range(2)]
        target = torch.empty(rows.rows, dtype=torch.int64, device=DEVICE)
        paths = torch.empty(rows.rows, attention.PATH, dtype=torch.int32, device=DEVICE)
        of.place(*one.place(), *tables, target, *made, paths, border)
        assert target.tolist() == list(range(rows.start, rows.end))
        last = [min(p, rows.context_len + 1) for p in rows.positions]
        assert all(torch.equal(m, t[last]) for m, t in zip(made, tables, strict=True))
        base = rows.context_len // border * border
        for row, path in enumerate(rows.paths()):
            wanted = list(range(base, rows.context_len))
            wanted += [rows.start + other for other in path]
            assert paths[row].tolist() == wanted + [-1] * (attention.PATH - len(wanted))


def chains(dtype: torch.dtype, counts: range) -> list[Pass]:
    """A third each across a border after the first row, before the last, and across none."""
    border, made = attention.split_size(dtype, 16), []
    for count in counts:
        start = (border - 1, border + 1 - count, 9)[count % 3]
        made.append(exact_pass(TokenRows.chain(start, count), dtype))
    return made


def trees(seed: int, count: int) -> list[Pass]:
    """Most across a border of attention."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        dtype = draw.choice((torch.float32, torch.bfloat16))
        border, size = attention.split_size(dtype, 16), draw.randint(2, 8)
        start = border * draw.randint(1, 2) - draw.randint(0, size)
        rows = TokenRows.tree(start, drawn_tree(draw, size))
        if draw.random() < 0.4:
            branches = TokenRows.branches(start + 3, start, 2, 2)
            rows = draw.choice((branches, rows.verified().padded(4)))
        made.append(exact_pass(rows, dtype, draw.choice((1, 2, 3))))
    return made


@KERNELS
def test_a_row_has_the_bits_that_it_has_alone(of: Any) -> None:
    kernels = of is LAUNCHED
    passes = [*chains(torch.float32, range(4, 5) if kernels else range(2, 17))]
    passes += trees(0, 2 if kernels else 60)
    assert [differing(of, one) for one in passes] == [0] * len(passes)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_a_row_of_any_chain_or_tree_has_the_bits_that_it_has_alone(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE.type == "cpu":  # a third of the time goes into this check, which the others make
        unchecked = interpreter.InterpreterOptions(sanitize_overflow=False)
        monkeypatch.setattr(interpreter.interpreter_builder, "options", unchecked)
    dtype = (torch.float32, torch.bfloat16, torch.float16)[part % 3]
    passes = [*(chains(dtype, range(2, 17)) if part < 3 else []), *trees(1 + part, 100)]
    assert [differing(LAUNCHED, one) for one in passes] == [0] * len(passes)
