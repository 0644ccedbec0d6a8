"""Rows that are not finite: only those that output comes from count, and no other row sees them."""

import contextlib
import functools
from functools import partial
from typing import Any

import pytest
import torch
from conftest import EVERY_ENGINE, make_method, random_model, rest_slow

from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.rounds import NotFinite
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.fused.sublayers import RMSNorm
from skipbench.lm.model import LM

GRAPHS = "cuda_graphs"
PROMPT, TOKENS = [3, 1, 4, 1, 5, 9, 2, 6], 24


@functools.cache
def poisoned(engine: str, token: int | None) -> LM:
    """The random model under an engine, with NaN as the embedding of one token."""
    model = random_model("llama")
    if token is not None:
        model.model.embed_tokens.weight[token] = float("nan")
    graphs: Any = partial(CudaGraphsEngine, capture=EagerCapture)
    lm = LM(model, graphs if engine == GRAPHS else engine)
    lm.allocate(120)
    return lm


class Spoiled(Method):
    """Proposes the next three tokens of `text`, with `token` beside or behind them."""

    needs_hidden_states = True

    def __init__(self, text: list[int], token: int, parent: list[int] | None) -> None:
        super().__init__(name="spoiled")
        self.text, self.token, self.parent = text, token, parent
        self.finite: list[bool] = []

    def propose(self, state: State, budget: int) -> Draft:
        at = len(state.tokens)
        right = self.text[at : at + min(3, budget - 1)]
        parent = self.parent if len(right) == 3 else None
        return Draft([*right, self.token][: 4 if budget else 0], parent, steps=1)

    def adapt(self, state: State, verification: Verification) -> None:
        path = [0, *(node + 1 for node in verification.accepted)]
        self.finite.append(all(bool(x[path].isfinite().all()) for x in verification.hidden_states))


@pytest.mark.parametrize("parent", [None, [-1, 0, 1, -1]])
@pytest.mark.parametrize("engine", rest_slow(EVERY_ENGINE, GRAPHS.__eq__))
def test_a_rejected_row_changes_no_token(engine: str, parent: list[int] | None) -> None:
    """A text ends where torch's attention, which multiplies what it masks by 0, has let it reach
    others; our kernels do not, and go on.
    """
    wanted = generate(poisoned(engine, None), make_method("vanilla"), PROMPT, TOKENS)
    text = PROMPT + wanted.tokens
    never = next(t for t in range(61) if t not in text)
    lm, method = poisoned(engine, never), Spoiled(text, never, parent)
    for name in (None, "vanilla", None):  # what a prompt leaves in the cache reaches no other
        given = method if name is None else make_method(name)
        with contextlib.suppress(*[NotFinite] * (name is None and engine != GRAPHS)):
            assert generate(lm, given, PROMPT, TOKENS).tokens == wanted.tokens
    assert all(method.finite)


@pytest.mark.parametrize("engine", rest_slow(EVERY_ENGINE, GRAPHS.__eq__))
def test_a_row_that_is_accepted_must_be_finite(engine: str) -> None:
    wanted = generate(poisoned(engine, None), make_method("vanilla"), PROMPT, TOKENS)
    text = PROMPT + wanted.tokens
    at = next(i for i in range(12, len(text)) if text[i] not in text[:i])
    lm = poisoned(engine, text[at])
    for method, after in ((make_method("vanilla"), at + 1), (Spoiled(text, text[at], None), "")):
        with pytest.raises(NotFinite, match=f"after token {after}.*embed_tokens.* holds NaN"):
            generate(lm, method, PROMPT, TOKENS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_norm_of_small_rows_is_torchs_and_that_of_zeros_is_zero(
    rows: int, dtype: torch.dtype
) -> None:
    """Without kernels of our own: rows beside which the constant of a norm counts."""
    module = torch.nn.Module()
    module.weight, module.variance_epsilon = torch.nn.Parameter(torch.rand(24).to(dtype)), 1e-5
    norm = RMSNorm(module)
    x = (1e-3 * torch.randn(rows, 24, generator=torch.Generator().manual_seed(0))).to(dtype)
    wanted = torch.nn.functional.rms_norm(x, (24,), module.weight.data, 1e-5)
    torch.testing.assert_close(norm(x), wanted)
    assert not norm(0 * x).any()
