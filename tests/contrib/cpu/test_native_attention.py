"""Our attention of a few rows: it is attention, and rows have the bits of a row alone."""

import itertools

import pytest
import torch
from test_few_rows import KERNELS, kernel_or_skip
from torch import Tensor

from skipbench.contrib.cpu import elementwise
from skipbench.contrib.cpu.elementwise import Attention, native_attention
from skipbench.lm.cache import KVCache
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.rows import TokenRows

ROWS = 16
HEADS = [(9, 3, 64), (4, 4, 80), (8, 2, 128), (4, 2, 8), (34, 2, 40)]  # heads, key heads, size
CONTEXTS = [1, 16, 31, 32, 1500]
CHAIN = tuple(range(-1, ROWS - 1))
TREES = [
    (-1, 0, 0, 1, 1, 1, 3, 3, 2, 8),
    (-1, -1, 0, 0, 1, 4, 2, 6, 6, 8, 3, 10, 11, 11, 13, 4),
    tuple(max(-1, row - 2) for row in range(40)),
]


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Each kernel in turn; gives its dtype."""
    name, dtype = kernel_or_skip(*request.param), request.param[1]
    monkeypatch.setattr(
        elementwise, "few_rows_kernel", lambda like: (name if like == dtype else None, None)
    )
    return dtype


class Case:
    """A random cache behind `context` committed rows, and `rows` queries."""

    def __init__(
        self, dtype: torch.dtype, heads: int, kv: int, d: int, context: int, rows: int
    ) -> None:
        generator = torch.Generator().manual_seed(context)
        self.cache = KVCache([torch.device("cpu")], kv, d, dtype)
        self.cache.allocate(context + rows)
        self.rows = self.cache.rows[0]
        self.rows.copy_(torch.randn(self.rows.shape, generator=generator) * 2)
        self.query = (torch.randn(rows, heads, d, generator=generator) * 2).to(dtype)
        found = native_attention(self.cache, 0, d**-0.5, self.query)
        assert found is not None
        self.attend: Attention = found

    def alone(self, row: int, context: int, path: list[int]) -> Tensor:
        """One row decoded by itself, with its ancestors where the text has them."""
        kept = self.rows.clone()
        self.rows[context : context + len(path)] = kept[[context + node for node in path]]
        chain = TokenRows.chain(context + len(path) - 1, 1)
        out = self.attend(self.query[row : row + 1], metadata(chain))
        self.rows.copy_(kept)
        return out


def metadata(token_rows: TokenRows) -> AttentionMetadata:
    return AttentionMetadata(token_rows, RotaryCache({}, torch.bfloat16, torch.device("cpu"), 2048))


def path_of(row: int, parent: tuple[int, ...]) -> list[int]:
    return [*(path_of(parent[row], parent) if parent[row] >= 0 else []), row]


@pytest.mark.parametrize("heads", HEADS)
def test_it_is_attention_rounded_once(heads: tuple[int, int, int], kernel: torch.dtype) -> None:
    for context in CONTEXTS:
        case, parent = Case(kernel, *heads, context, 10), TREES[0]
        assert native_attention(case.cache, 0, 1.0, case.query.double()) is None
        count, kv, d = heads
        query = case.query.double().view(10, kv, count // kv, d).permute(1, 2, 0, 3)
        scores = query @ case.rows[:, :kv].double().permute(1, 2, 0)[:, None] * d**-0.5
        tree = TokenRows.tree(context, parent)
        hidden = torch.from_numpy(~tree.tree_mask())
        scores[..., context:].masked_fill_(hidden, float("-inf"))
        wanted = scores.softmax(-1) @ case.rows[:, kv:].double().transpose(0, 1)[:, None]
        wanted = wanted.permute(2, 0, 1, 3).reshape(10, -1)
        found = case.attend(case.query, metadata(tree)).double()
        assert ((found - wanted).abs() <= wanted.abs() * torch.finfo(kernel).eps + 2e-5).all()


@pytest.mark.parametrize("heads", HEADS)
def test_a_row_has_the_bits_that_it_has_alone(
    heads: tuple[int, int, int], kernel: torch.dtype
) -> None:
    for context, parent in itertools.product(CONTEXTS, (CHAIN[:3], CHAIN, *TREES)):
        case, tree = Case(kernel, *heads, context, len(parent)), TokenRows.tree(context, parent)
        rows = TokenRows.chain(context, len(parent)) if parent[:3] == CHAIN[:3] else tree
        torch.set_num_threads(1 + context % 2)
        together = case.attend(case.query, metadata(rows))
        torch.set_num_threads(1)
        for row, found in enumerate(together.split(1)):
            assert torch.equal(found, case.alone(row, context, path_of(row, parent))), row


@pytest.mark.parametrize("heads", HEADS[::2])
def test_a_row_that_is_not_finite_reaches_none_that_does_not_see_it(
    heads: tuple[int, int, int], kernel: torch.dtype
) -> None:
    for context, value in itertools.product(CONTEXTS, (float("nan"), float("inf"))):
        case = Case(kernel, *heads, context, ROWS)
        for rows in (TokenRows.chain(context, ROWS), TokenRows.tree(context, TREES[1])):
            kept, wanted = case.rows.clone(), case.attend(case.query, metadata(rows))
            case.rows[context + 4] = value
            found, sees = case.attend(case.query, metadata(rows)), rows.tree_mask()[:, 4]
            assert torch.equal(found[~sees], wanted[~sees]) and not found[sees].isfinite().any()
            case.rows.copy_(kept)


def test_rows_behind_scratch_see_what_is_committed(kernel: torch.dtype) -> None:
    """Rows kept at 90, with 70 committed ones before them: what lies between stays unseen."""
    case = Case(kernel, 9, 3, 64, 90, 6)
    branches = case.attend(case.query, metadata(TokenRows.branches(90, 70, 2, 3)))
    chain = case.attend(case.query[:3], metadata(TokenRows.chain(90, 3, 70)))
    case.rows[70:76] = case.rows[90:96].clone()
    assert torch.equal(branches[:3], case.attend(case.query[:3], metadata(TokenRows.chain(70, 3))))
    assert torch.equal(chain, branches[:3])
    case.rows[70:73] = case.rows[73:76].clone()
    assert torch.equal(branches[3:], case.attend(case.query[3:], metadata(TokenRows.chain(70, 3))))
