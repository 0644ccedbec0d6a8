"""Planted faults: each must make a check of the contract fail, or the contract would prove
nothing.
"""

from collections.abc import Callable
from typing import Any

import contract
import pytest
import torch
from conftest import EVERY_ENGINE, make_method, random_lm, rest_slow

from skipbench.decode import rounds, verify
from skipbench.decode.draft import Draft, State
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.method import Method
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla

Patch = pytest.MonkeyPatch


def wrong_position(patch: Patch) -> None:
    """A drafted or verified row stands one position further than it should."""
    chain = vars(TokenRows)["chain"].__func__

    def shifted(cls: type, start: int, rows: int, visible: int | None = None) -> TokenRows:
        token_rows: TokenRows = chain(cls, start, rows, visible)
        return (
            token_rows
            if start == 0
            else TokenRows(
                token_rows.start,
                token_rows.context_len,
                range(token_rows.context_len + 1, token_rows.context_len + 1 + rows),
            )
        )

    patch.setattr(TokenRows, "chain", classmethod(shifted))


def wrong_mask(patch: Patch) -> None:
    """Rows see what stands behind them."""
    make = AttentionMetadata._make_mask

    def open_mask(self: AttentionMetadata, window: int | None) -> Any:
        mask = make(self, window)
        return None if mask is None else torch.zeros_like(mask)

    patch.setattr(AttentionMetadata, "_make_mask", open_mask)
    load = GraphBuffers.load

    def open_family(self: GraphBuffers, token_rows: TokenRows, hidden: int = 0) -> None:
        load(self, token_rows, hidden)
        self.tree_mask.fill_(True)
        self._shape = "open"

    patch.setattr(GraphBuffers, "load", open_family)


def row_not_kept(patch: Patch) -> None:
    """The accepted nodes of a tree stay where they were drafted."""

    def keep(self: KVCache, rows: list[int]) -> None:
        self.length += len(rows)

    patch.setattr(KVCache, "keep", keep)


def one_row_too_many(patch: Patch) -> None:
    """The cache takes in the row of a rejected token."""
    keep = KVCache.keep

    def more(self: KVCache, rows: list[int]) -> None:
        keep(self, rows)
        self.length += 1

    patch.setattr(KVCache, "keep", more)


def always_accept(patch: Patch) -> None:
    """Every proposed chain is accepted."""

    def accept(draft: Draft, choice: list[int]) -> tuple[list[int], int]:
        return list(range(len(draft.tokens))), choice[-1]

    patch.setattr(rounds, "verify_greedy", accept)


def early_states_mixed_up(patch: Patch) -> None:
    """Verification goes on from the early states of the wrong drafted token."""
    propose = SkipMethod.propose

    def mixed(self: SkipMethod, *arguments: Any) -> Draft:
        draft = propose(self, *arguments)
        draft.early_exit_states.reverse()
        return draft

    patch.setattr(SkipMethod, "propose", mixed)


def branches_over_a_committed_row(patch: Patch) -> None:
    """The alternatives of a dynamic programme overwrite the last committed row."""
    branches = vars(TokenRows)["branches"].__func__

    def lower(cls: type, start: int, *arguments: int) -> TokenRows:
        token_rows: TokenRows = branches(cls, start - 1, *arguments)
        return token_rows

    patch.setattr(TokenRows, "branches", classmethod(lower))


def check_all(engine: str) -> None:
    lm = random_lm("llama", engine)
    chain = make_method("uniform", "method.stop.max_steps=5")
    tree = make_method("uniform", "method.tree=[4,3,2,1]")
    contract.check_greedy(lm, chain)
    contract.check_greedy(lm, tree)
    contract.check_greedy(lm, contract.Guesser(61, tree=True))
    contract.check_greedy(lm, make_method("layerskip"))
    contract.check_greedy(lm, make_method("clasp"))
    contract.check_draft_logits(lm, DraftPlan.parse("attn:1;mlp:2", lm.layers))
    contract.check_greedy(lm, FixedSet("empty", DraftPlan.of(lm.layers), Fixed(5), (4, 3, 2, 1)))
    contract.check_empty_set(lm, (4, 3, 2, 1))
    contract.check_empty_set(lm)


FAULTS = [
    wrong_position, wrong_mask, row_not_kept, one_row_too_many, always_accept,
    early_states_mixed_up, branches_over_a_committed_row,
]  # fmt: skip


@pytest.mark.parametrize("engine", rest_slow(EVERY_ENGINE, "fused".__eq__))
def test_no_fault_no_failure(engine: str) -> None:
    check_all(engine)


@pytest.mark.parametrize("engine", rest_slow(EVERY_ENGINE, "fused".__eq__))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    fault: Callable[[Patch], None], engine: str, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_all(engine)


class Accepted(FixedSet):
    """Says that every token was drawn with hardly any chance, so that all are accepted."""

    def propose(self, state: State, budget: int) -> Draft:
        draft = super().propose(state, budget)
        for q in draft.q.values():
            q.mul_(1e-6)
        return draft


class Copied(contract.Guesser):
    """The same of guesses that cost no pass: the pending token once more."""

    def propose(self, state: State, budget: int) -> Draft:
        unlikely = torch.full((self.vocab,), 1e-6)
        return Draft([state.pending][:budget], q={-1: unlikely}, steps=min(1, budget))


def fixed(widths: tuple[int, ...] = (), kind: type[FixedSet] = FixedSet) -> FixedSet:
    return kind("fixed", DraftPlan.parse("attn:1,2;mlp:2", 4), Fixed(5), widths)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [fixed(kind=Accepted), Copied(7, False)], ids=["chain", "guesses"]
)
def test_a_method_that_always_accepts_is_caught(method: Method) -> None:
    lm = random_lm("llama", "fused", vocab=7)
    with pytest.raises(AssertionError, match="adds up to"):
        contract.check_sampling(lm, method)


def test_a_method_that_never_drafts_is_caught() -> None:
    with pytest.raises(AssertionError, match="no token was drafted"):
        contract.check_greedy(random_lm("llama", "fused"), Vanilla())
    with pytest.raises(AssertionError, match="no token was drafted"):
        contract.check_sampling(random_lm("llama", "fused", vocab=7), Vanilla(), runs=2)


@pytest.mark.slow
def test_a_bonus_drawn_from_the_wrong_distribution_is_caught(monkeypatch: Patch) -> None:
    """Rejection without the residual: SWIFT's published sampling error is of this kind."""
    monkeypatch.setattr(verify, "_after_rejection", lambda p, q, token: (p, q))
    with pytest.raises(AssertionError, match="from what the model says"):
        contract.check_sampling(random_lm("llama", "fused", vocab=7), fixed())
