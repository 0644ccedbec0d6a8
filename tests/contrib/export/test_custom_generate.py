"""`custom_generate` inside Hugging Face's `generate`: its tokens, its arguments, its weights."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import random_model
from test_cli import run_example
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
    TextStreamer,
)

import skipbench
from skipbench.errors import SkipbenchError

SKIP = ["method.skip='attn:1,2;mlp:2'"]
METHODS = {"prompt-lookup": [], "fixed": SKIP, "swift": [], "lookahead": []}
PROMPT = torch.tensor([[5, 9, 2, 7, 5, 9, 2, 7, 5, 9]])


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model("llama")


@pytest.fixture(scope="module")
def tiny() -> skipbench.LanguageModel:
    return skipbench.load("tiny", "vanilla", engine="reference")


@cache
def made(method: str, engine: str = "reference") -> Any:
    return skipbench.custom_generate(method, engine=engine, overrides=METHODS[method])


def both(
    model: Any, method: str = "fixed", engine: str = "reference", **arguments: Any
) -> tuple[list[int], list[int]]:
    """New tokens of `generate` without and with `custom_generate`."""
    fast = made(method, engine)
    arguments = {"max_new_tokens": 16, "do_sample": False} | arguments
    outs = [model.generate(PROMPT, **more, **arguments) for more in ({}, {"custom_generate": fast})]
    return outs[0][0].tolist(), outs[1][0].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_greedy_tokens_are_those_of_generate(model: Any, method: str) -> None:
    for engine in ("reference", "fused") if method == "fixed" else ("reference",):
        of = random_model("llama") if engine == "fused" else model
        plain, fast = both(of, method, engine)
        assert plain == fast and len(fast) == PROMPT.shape[1] + 16


def assigned(model: Any, other: Any) -> None:
    model.load_state_dict(other.state_dict(), assign=True)


def in_place(model: Any, other: Any) -> None:
    for own, its in zip(model.parameters(), other.parameters(), strict=True):
        own.data.copy_(its.data)  # without a word to its version


def with_a_part(model: Any, other: Any) -> None:
    model.model.layers[1] = other.model.layers[1]
    model.model.layers[0].mlp.down_proj = torch.nn.Sequential(other.model.layers[0].mlp.down_proj)


def test_replaced_weights_are_seen_by_every_engine() -> None:
    """By two callables of one model, which share its memory; biases are weights, too."""
    for change in (assigned, in_place, with_a_part):
        model, other = random_model("qwen2"), random_model("qwen2")
        for weight in other.parameters():
            weight.data.mul_(torch.linspace(0.5, 2.0, weight.shape[-1]))
        engines = "reference", "fused", "fused"
        made = [skipbench.custom_generate("prompt-lookup", engine=one) for one in engines]
        given = {"max_new_tokens": 16, "do_sample": False}
        before = [model.generate(PROMPT, custom_generate=one, **given).tolist() for one in made]
        change(model, other)
        plain = model.generate(PROMPT, **given).tolist()
        found = [model.generate(PROMPT, custom_generate=one, **given).tolist() for one in made]
        assert found == [plain] * 3 and plain not in before, change


class Even(LogitsProcessor):  # type: ignore[misc]  # transformers leaves it untyped
    """Allows even ids at even lengths and odd ids at odd ones."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, (input_ids.shape[1] + 1) % 2 :: 2] = float("-inf")
        return scores


def test_arguments_of_generate_are_honoured(model: Any) -> None:
    without = both(model)[0]
    seven = [lambda ids, scores: torch.full((1,), ids.shape[1] == PROMPT.shape[1] + 7)]
    for more in (
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 12, "eos_token_id": without[12], "pad_token_id": 0},
        {"eos_token_id": without[PROMPT.shape[1] + 5], "pad_token_id": 0},
        {"logits_processor": LogitsProcessorList([Even()])},
        {"stopping_criteria": StoppingCriteriaList(seven)},
    ):
        plain, fast = both(model, **more)
        assert plain == fast and plain != without, more
    late = StoppingCriteriaList([MaxTimeCriteria(max_time=0.0)])
    assert len(both(model, stopping_criteria=late)[1]) == PROMPT.shape[1] + 1


def test_settings_of_sampling_are_honoured(model: Any) -> None:
    """Each leaves the most likely token alone; a seed draws the same again."""

    def tokens(**more: Any) -> Any:
        torch.manual_seed(1)
        given = {"max_new_tokens": 16, "custom_generate": made("fixed")}
        return model.generate(PROMPT, **given, **more).tolist()

    greedy = tokens(do_sample=False)
    for more in ({"top_k": 1}, {"temperature": 1e-5}, {"top_p": 1e-6}):
        assert tokens(do_sample=True, **more) == greedy, more
    drawn = [tokens(do_sample=True, temperature=3.0, top_k=0) for _ in range(2)]
    assert drawn[0] == drawn[1] != greedy


def test_text_streamer_prints(
    tiny: skipbench.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tiny.tokenizer("Once upon a time", return_tensors="pt")
    streamer = TextStreamer(tiny.tokenizer, skip_prompt=True)
    before = {name: p.data_ptr() for name, p in tiny.lm.model.named_parameters()}
    fast = skipbench.custom_generate()
    ids = tiny.lm.model.generate(
        input_ids=inputs["input_ids"], max_new_tokens=8, streamer=streamer, custom_generate=fast
    )
    new = tiny.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
    assert capsys.readouterr().out.strip() == new.strip() != ""
    now = {name: p.data_ptr() for name, p in tiny.lm.model.named_parameters()}
    assert now == before, "weights are shared"


def test_stop_strings_end_it(model: Any, tiny: skipbench.LanguageModel) -> None:
    inputs = tiny.tokenizer("Once upon a time", return_tensors="pt")
    given = {"max_new_tokens": 24, "do_sample": False, "input_ids": inputs["input_ids"]}
    whole = tiny.lm.model.generate(**given)
    stop = tiny.tokenizer.decode(whole[0, 10:12])
    read_by = {"tokenizer": tiny.tokenizer}
    plain = tiny.lm.model.generate(**given, stop_strings=stop, **read_by)
    fast = made("prompt-lookup")
    for more in (read_by, {}):  # the model's own
        found = tiny.lm.model.generate(**given, stop_strings=stop, custom_generate=fast, **more)
        assert found.tolist() == plain.tolist() and plain.shape[1] < whole.shape[1]
    with pytest.raises(SkipbenchError, match="stop_strings need tokenizer="):
        model.generate(PROMPT, max_new_tokens=4, stop_strings=stop, custom_generate=fast)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_beams": 2}, "one prompt at a time"),
        ({"return_dict_in_generate": True, "output_scores": True}, "honour output_scores"),
        ({"attention_mask": torch.tensor([[0] + [1] * 9])}, "the prompt is padded"),
    ],
)
def test_what_cannot_be_honoured_is_named(model: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(SkipbenchError, match=says):
        both(model, "prompt-lookup", **arguments)


def other_logits(module: Any, args: Any, out: Any) -> None:
    out.logits.mul_(1.1)


@pytest.mark.parametrize("name", ["random", pytest.param("tiny", marks=pytest.mark.slow)])
def test_strict_gives_the_tokens_of_generate_in_bfloat16(name: str) -> None:
    """And where the model's own pass has other bits it is refused."""
    made = random_model("llama") if name == "random" else skipbench.load("tiny").lm.model
    model = made.to(torch.bfloat16)
    fast = skipbench.custom_generate("recycling", strict=True, overrides=["method.nodes=20"])
    ids = torch.tensor([[(9 * 17 + 5 * i * i) % 61 for i in range(22)]])
    given = {"max_new_tokens": 32, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    plain = model.generate(ids, **given)
    try:
        found = model.generate(ids, custom_generate=fast, **given)
    except SkipbenchError as error:
        if "rows" not in str(error):
            raise
        pytest.skip(str(error))  # products depend on the rows
    assert found.tolist() == plain.tolist()
    model.register_forward_hook(other_logits)
    fast = skipbench.custom_generate("prompt-lookup", strict=True)
    with pytest.raises(SkipbenchError, match="other bits than the model's own pass"):
        model.generate(ids, custom_generate=fast, **given)


def test_strict_is_refused_where_it_cannot_be_kept(model: Any) -> None:
    fast = skipbench.custom_generate("prompt-lookup", strict=True)
    with pytest.raises(SkipbenchError, match=r"strict=True cannot be kept.*use strict=False \("):
        model.generate(PROMPT, max_new_tokens=4, custom_generate=fast)  # float32
    with pytest.raises(SkipbenchError, match="needs engine='reference', not 'fused'"):
        skipbench.custom_generate("prompt-lookup", engine="fused", strict=True)
    with pytest.raises(SkipbenchError, match=r"prefill_chunk_size.* with strict=True"):
        model.generate(PROMPT, max_new_tokens=4, custom_generate=fast, prefill_chunk_size=4)


@pytest.mark.slow
def test_the_example_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("hugging_face")
    assert "Once upon a time" in capsys.readouterr().out
