"""Strict as on a GPU, where passes run at 16 rows: tokens stay what they are, every row has its own
bits, and the probe finds a row that depends on how many share its pass.
"""

from typing import Any

import contract
import pytest
import torch
from conftest import make_method, random_model
from fake_cuda import cpu_behind_cuda, fake_cuda, moved
from test_strict import same_bits

from skipbench.config.extensions import registered
from skipbench.decode.loop import generate
from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.bit_exact import MOST
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.fused.weights import Weight
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows

PROMPT = [41, 22, 24, 53, 42, 16, 9, 35, 44, 0, 29, 47]
LENGTH = 24


def padded(monkeypatch: pytest.MonkeyPatch, family: str = "llama") -> LM:
    """A strict model whose passes are padded on this CPU, too."""
    if "cpu" not in registered("engine"):
        pytest.skip("torch's attention of a CPU gives padded rows other bits, too")
    monkeypatch.setattr(FusedEngine, "pads", True)
    lm = LM(random_model(family), strict=True)
    lm.allocate(160)
    return lm


@pytest.mark.parametrize(
    ("family", "name", "overrides"),
    [
        ("llama", "uniform", ("method.ratio=0.3", "method.stop.threshold=0")),
        ("mistral", "swift", ("method.tree=[4,3,2,1]", "method.window=4", "method.beta=3")),
        ("llama", "layerskip", ("method.exit_layer=2", "method.stop.threshold=0")),
        ("llama", "recycling", ("method.nodes=40",)),  # more rows than a product takes at once
        ("llama", "clasp", ("method.interval=2", "method.stop.threshold=0")),
    ],
)
def test_padded_passes_give_vanillas_tokens_and_bits(
    family: str, name: str, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        lm = padded(monkeypatch, family)
    except NotStrictError as error:
        if family != "mistral":
            raise
        pytest.skip(f"a window takes torch's attention, and on this CPU: {error}")
    method = make_method(name, *overrides, layers=lm.layers)
    same_bits(lm, method, PROMPT, LENGTH)
    assert lm.cache.length == len(PROMPT) + LENGTH - 1
    out = contract.plain_greedy(lm.model, PROMPT, LENGTH)
    assert generate(lm, make_method("vanilla"), PROMPT, LENGTH).tokens == out


def test_padding_keeps_what_a_row_sees() -> None:
    chain = TokenRows.chain(30, 3).padded(16)
    assert (chain.rows, chain.padding, chain.contiguous_chain) == (16, 13, True)
    assert TokenRows.chain(30, 16).padded(16).padding == 0
    tree = TokenRows.tree(30, (-1, 0, 0)).verified().padded(4)
    assert tree.parent == (-1, 0, 0, -1) and tree.positions == (30, 31, 31, 30)
    other = TokenRows.chain(30, 2, context_len=20).verified().padded(4)  # not behind its context
    assert other.parent == (-1, 0, -1, -1) and other.positions == (20, 21, 20, 20)


def test_a_full_cache_holds_the_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that stand for no token need no room in the cache."""
    lm = padded(monkeypatch)
    last = lm.cache.capacity - 1
    lm.prefill([3] * last)
    assert lm.logits([5], TokenRows.chain(last, 1).verified()).shape[0] == 1
    with pytest.raises(SkipbenchError, match="a pass needs 161"):
        lm.logits([5, 6], TokenRows.chain(last, 2).verified())


def by_rows(method: Any) -> Any:
    """The planted fault: a product whose bits depend on its number of rows, as those of libraries
    that choose a kernel by it.
    """

    def product(self: Weight, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        out: torch.Tensor = method(self, x, *rest)
        return out * (1 + 1e-5 * (len(x) == 1))

    return product


def test_the_probe_finds_rows_that_depend_on_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Weight, "__call__", by_rows(Weight.__call__))
    found = compare_rows(LM(random_model("llama")), 60)
    assert found.compared >= 60 and found.differing > 30 and found.gap > 0
    assert "rows after" in found.first
    alike = compare_rows(padded(monkeypatch), 60)  # no product of one row is left
    assert alike.compared >= 60 and (alike.differing, alike.first, alike.gap) == (0, "", 0.0)


def test_a_device_whose_rows_differ_even_so_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that depends on which rows are beside one cannot be mended by padding."""
    call = Weight.__call__

    def mixed(self: Weight, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return call(self, x, *rest) + 1e-4 * x.abs().sum()

    monkeypatch.setattr(Weight, "__call__", mixed)
    with pytest.raises(SkipbenchError) as refused:
        padded(monkeypatch)
    assert "rows that were verified together" in str(refused.value)


def test_rows_that_differ_in_a_longer_context_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a kernel splits the keys of long contexts."""
    attend = TokenRows.padded

    def unpadded_there(self: TokenRows, step: int) -> TokenRows:
        return self if self.start > 50 else attend(self, step)

    monkeypatch.setattr(TokenRows, "padded", unpadded_there)
    monkeypatch.setattr(Weight, "__call__", by_rows(Weight.__call__))
    said = r"on cpu in float32: \d+ of 1\d\d rows .*, the first row .* after 57 tokens"
    with pytest.raises(SkipbenchError, match=said):
        padded(monkeypatch)


TREES = ("uniform", "method.tree=[4,3,2,1]", "method.stop.threshold=0")
CHAINS = ("uniform", "method.stop.threshold=0")


def unproven(model: Any, family: Any, cache: Any, **_: Any) -> FusedEngine:
    """The strict engine without its proof, which takes these tiers long."""
    return FusedEngine(model, family, cache, True)


def test_on_a_gpu_strict_pads_by_itself_and_gives_vanillas_tokens() -> None:
    """On tensors that say `cuda` and compute on a CPU."""
    wanted = contract.plain_greedy(random_model("llama"), PROMPT, 6)
    with cpu_behind_cuda():
        lm = LM(moved(random_model("llama"), lambda _: "cuda:0"), unproven)
        lm.allocate(400)
        assert lm.engine.padded_rows == MOST
        for name, *overrides in (CHAINS, TREES):
            assert generate(lm, make_method(name, *overrides), PROMPT, 6).tokens == wanted, name


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_padded_passes_wait_for_nothing_and_take_one_kernel() -> None:
    """On FakeTensors of a GPU in bfloat16: flash in the prompt, the efficient kernel elsewhere."""
    methods = [make_method(name, *overrides) for name, *overrides in (CHAINS, TREES)]
    with fake_cuda() as journal:
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                model = random_model("llama")
        finally:
            torch.set_default_dtype(torch.float32)
        lm = LM(model, unproven)
        lm.allocate(400)
        journal.clear()
        for method in methods:
            generate(lm, method, PROMPT, 6)
        journal.mark("")
    assert not journal.lines("device", "kernel", "pageable")
    assert journal.kernels.keys() == {"flash", "efficient"}
    assert journal.kernels["flash"] == lm.layers * len(methods)
