"""Strict mode: the bits of speculative output are vanilla's in bfloat16, and the probe refuses
where they are not.
"""

import functools
from typing import Any

import pytest
import torch
from conftest import here, make_method, random_model

from skipbench.bench.load import load_model
from skipbench.config.catalog import shape_of
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.draft_plan import DraftPlan
from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.bit_exact import steps
from skipbench.lm.families import FAMILIES
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.methods.vanilla import Vanilla
from skipbench.models.random_weights import planted_model

PROMPTS = ["Once there was a dog and", "Lily and Tom went to the", "The dog had a red ball, and"]


def strict_or_skip(*overrides: str) -> tuple[LM, Any]:
    """The model under strict; skips the test on a machine where bfloat16 products depend on the
    rows.
    """
    config = compose(["model.dtype=bfloat16", "engine.strict=true", *overrides])
    try:
        lm, tokenizer = load_model(config.model, config.engine)
    except SkipbenchError as error:
        if "cannot be kept" not in str(error):
            raise
        pytest.skip(str(error))
    lm.allocate(480)
    return lm, tokenizer


@functools.cache
def tiny() -> tuple[LM, Any]:
    return strict_or_skip()


def same_bits(lm: LM, method: Method, prompt: list[int], length: int) -> int:
    """Tokens, and every committed key and value of every layer, are those of vanilla.

    Returns the accepted drafts.
    """
    wanted = generate(lm, Vanilla(), prompt, length).tokens
    committed = len(prompt) + length - 1
    cache = [rows[:committed].clone() for rows in lm.cache.rows]
    out = generate(lm, method, prompt, length)
    assert out.tokens == wanted
    assert max(r.nodes for r in out.rounds) > 1, "nothing was verified in several rows"
    for found, alone in zip(lm.cache.rows, cache, strict=True):
        assert torch.equal(found[:committed], alone)
    return sum(r.accepted for r in out.rounds)


@pytest.mark.parametrize(
    ("name", "overrides"),
    here(
        [
            pytest.param("uniform", ("method.ratio=0.3",), marks=pytest.mark.slow),
            pytest.param("clasp", ("method.interval=2",), marks=pytest.mark.slow),
            ("swift", ("method.tree=[10,5,3,1]", "method.window=4", "method.beta=3")),
            pytest.param("prompt-lookup", ("method.ngram=1",), marks=pytest.mark.slow),
            ("auto", ()),
            ("recycling", ("method.nodes=80",)),  # more rows than a product takes at once
            pytest.param("lookahead", (), marks=pytest.mark.slow),
            pytest.param("layerskip", ("method.exit_layer=10",), marks=pytest.mark.slow),
        ]
    ),
)
def test_tiny_has_vanillas_bits(name: str, overrides: tuple[str, ...]) -> None:
    lm, tokenizer = tiny()
    method = make_method(name, *overrides, layers=lm.layers)
    assert same_bits(lm, method, tokenizer(PROMPTS[0]).input_ids * 2, 24) > 0


@pytest.mark.slow
def test_planted_has_vanillas_bits() -> None:
    lm, tokenizer = strict_or_skip("model=planted", "model.shape=12x768")
    config = compose(["model=planted", "model.shape=12x768"])
    skip = config.model.sets["self-sd"]
    method = make_method("fixed", f'method.skip="{skip}"', layers=lm.layers)
    assert sum(same_bits(lm, method, tokenizer(prompt).input_ids, 16) for prompt in PROMPTS[:2]) > 0
    tree = make_method("fixed", f'method.skip="{skip}"', "method.tree=[4,3,2,1]", layers=lm.layers)
    same_bits(lm, tree, tokenizer(PROMPTS[2]).input_ids, 16)


@pytest.mark.slow  # tunes large products, minutes where nothing is kept
def test_more_rows_than_a_product_takes_at_once_have_the_bits_of_one() -> None:
    """On a CPU with AMX the products of these shapes add in another order from 33 rows on."""
    lm, _ = strict_or_skip("model=planted", "model.shape=4x576")
    tokens = torch.randint(900, (72,), generator=torch.Generator().manual_seed(0)).tolist()
    start, rest = 24, tokens[24:]
    with torch.inference_mode():
        lm.prefill(tokens[:start])
        alone = [
            lm.logits([t], TokenRows.chain(start + n, 1))[0].clone() for n, t in enumerate(rest)
        ]
        lm.prefill(tokens[:start])
        together = lm.logits(rest, TokenRows.chain(start, len(rest)).verified())
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_row_of_a_tree_sees_what_a_chain_would(family: str) -> None:
    """In float64, where the order of additions is far below the bound: strict rows against the
    tree's mask, windows included.
    """
    logits, cached = [], []
    for strict in (False, True):
        model = random_model(family).to(torch.float64)
        lm = LM(model)
        if strict:  # behind the probe's back, which float64 would not pass
            lm.engine = FusedEngine(
                random_model(family).to(torch.float64), FAMILIES[family], lm.cache, True
            )
        lm.allocate(64)
        tokens = list(range(3, 25))
        with torch.inference_mode():
            lm.prefill(tokens)
            tree = TokenRows.tree(len(tokens), (-1, 0, 0, 2, 1, 4, 2, 3)).verified()
            logits.append(lm.logits([5, 6, 7, 8, 9, 10, 11, 12], tree))
            cached.append(lm.cache.rows[1][: tree.end].clone())
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cached[1], cached[0], rtol=1e-9, atol=1e-9)


def test_rows_of_a_chain_need_nothing_laid_out() -> None:
    lm, _ = tiny()
    tables = lm._tables[lm.devices[0]]
    chain = steps(AttentionMetadata(TokenRows.chain(30, 5), tables))
    assert [s.source for s in chain] == [None] * 5 and [s.alone.end for s in chain] == [
        31,
        32,
        33,
        34,
        35,
    ]
    leaves = steps(AttentionMetadata(TokenRows.tree(30, (-1, 0, 0, 0, 3)), tables))
    laid = [None if s.source is None else (s.at, s.source.tolist()) for s in leaves]
    assert laid == [None, None, (31, [2]), (31, [3]), (32, [4])]


def test_float32_by_torchs_attention_and_the_reference_engine_refuse() -> None:
    config = compose([])
    lm, _ = load_model(config.model, config.engine)
    for engine in (FusedEngine, "reference"):
        with pytest.raises(
            SkipbenchError,
            match=r"cpu in float32.*use engine\.strict=false",
        ):
            LM(lm.model, engine, strict=True)


def test_float32_that_passes_the_short_proof_is_probed_after_longer_contexts() -> None:
    model = planted_model(shape_of("2x64"), DraftPlan.of(2), 0, torch.float32, "cpu", 64)
    try:
        lm = LM(model, strict=True)
    except NotStrictError as error:
        assert "one by one" in str(error)
    else:  # a machine on which it holds
        assert compare_rows(lm, 60, seed=1).differing == 0


def test_the_model_loads_as_bfloat16() -> None:
    lm, _ = tiny()
    assert lm.dtype == torch.bfloat16 and lm.strict


def test_a_tree_without_a_draft_is_a_row_alone() -> None:
    """At the end of an output there may be no room for a draft: the one row must pass attention as
    vanilla's does.
    """
    lm, tokenizer = tiny()
    ids = tokenizer(" ".join(PROMPTS)).input_ids
    with torch.inference_mode():
        lm.prefill(ids[:-1])
        alone = lm.logits(ids[-1:], TokenRows.chain(len(ids) - 1, 1))
        assert torch.equal(
            lm.logits(ids[-1:], TokenRows.tree(len(ids) - 1, (-1,)).verified()), alone
        )
    assert (
        TokenRows.tree(5, (-1,)).contiguous_chain
        and not TokenRows.tree(5, (-1, 0)).contiguous_chain
    )
    assert not TokenRows.branches(9, 5, 1).contiguous_chain
