"""`check`: planted cheats and honest errors each break their property, and the command says so."""

from functools import partial
from typing import ClassVar

import pytest
import torch

from skipbench.bench.contract import PROPERTIES, check_contract, small_lm
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method
from skipbench.lm.rows import TokenRows


class Repeat(Method):
    """Proposes the last tokens of the text once more."""

    length: int = 4

    def propose(self, state: State, budget: int) -> Draft:
        tokens = state.tokens[-self.length :][:budget]
        return Draft(tokens, steps=len(tokens))


class MadeUp(Repeat):
    """Says that its tokens were drawn with hardly any chance, so that all are accepted."""

    def propose(self, state: State, budget: int) -> Draft:
        draft = super().propose(state, budget)
        unlikely = torch.full((state.lm.vocabulary,), 1e-9)
        return Draft(draft.tokens, q={n - 1: unlikely for n in range(budget)}, steps=draft.steps)


class Late(Repeat):
    """After 40 tokens it makes its own draft the target's choice."""

    def propose(self, state: State, budget: int) -> Draft:
        draft = super().propose(state, budget)

        def process(tokens: list[int], of: Draft, logits: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor([*of.tokens, 0])[:, None]
            return logits.scatter(1, ids, 1e4)

        state.process = process if len(state.output) > 40 else None
        return draft


class Overwrites(Repeat):
    """Runs a pass over the last committed row."""

    def propose(self, state: State, budget: int) -> Draft:
        state.lm.logits([1], TokenRows.chain(state.lm.cache.length - 1, 1))
        return super().propose(state, budget)


class Lasting(Repeat):
    """Learns a length that `carried` does not name."""

    def adapt(self, state: State, verification: Verification) -> None:
        self.length = 1 + len(verification.accepted) % 4


class Shared(Repeat):
    """Counts its drafts where every object of the class reads it, and drafts so many tokens."""

    drafts: ClassVar[list[Draft]] = []

    def propose(self, state: State, budget: int) -> Draft:
        self.drafts.append(super().propose(state, min(budget, len(self.drafts) + 1)))
        return self.drafts[-1]


class Free(Repeat):
    """Counts no steps."""

    def propose(self, state: State, budget: int) -> Draft:
        return Draft(super().propose(state, budget).tokens)


class Deep(Repeat):
    """Drafts more than it was asked for."""

    def propose(self, state: State, budget: int) -> Draft:
        return super().propose(state, 4)


class Broken(Repeat):
    """Divides by zero."""

    def propose(self, state: State, budget: int) -> Draft:
        return Draft([1 // (len(state.output) - len(state.output))])


FAULTS = [
    (MadeUp, "drafts", "q[-1] adds up to 6.1e-08 in place of 1"),
    (Late, "greedy output", "the model's own is"),
    (Overwrites, "greedy output", "is not that of a plain prefix"),
    (Lasting, "state between prompts", "the next prompt has other rounds"),
    (Shared, "state between prompts", "a new object does not decode as the first"),
    (Free, "greedy output", "tokens with steps=0"),
    (Deep, "drafts", "where 3 were asked for"),
]


@pytest.mark.parametrize(("kind", "name", "says"), FAULTS)
def test_a_fault_breaks_its_property(kind: type[Method], name: str, says: str) -> None:
    lm = small_lm("mistral", 61)
    with pytest.raises(AssertionError) as told:
        PROPERTIES[name](lm, kind(name="mine", layers=lm.layers))
    assert says in str(told.value)


def test_an_error_of_the_method_is_told_with_its_line() -> None:
    _, fault = next(check_contract(partial(Broken, name="mine")))
    assert fault is not None and "ZeroDivisionError: " in fault and "test_check.py:" in fault


@pytest.mark.slow
def test_an_honest_method_keeps_all() -> None:
    found = dict(check_contract(partial(Repeat, name="mine")))
    assert [*found] == [*PROPERTIES] and {*found.values()} == {None}
