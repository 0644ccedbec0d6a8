"""Planted faults: an output is named wrong at the position where it parts from the plain model's,
with one of three causes, or with none where the model shows none of them.
"""

import pytest
import torch
from conftest import rest_slow
from msgspec.structs import replace
from records import LENGTH, TEXTS, kept, plain, tiny

from skipbench.contrib.oracle.causes import KEPT, PROMPT
from skipbench.contrib.oracle.judge import Oracle
from skipbench.contrib.oracle.outputs import Output
from skipbench.decode.lossless import END


@pytest.mark.parametrize("text", rest_slow(TEXTS, TEXTS[0].__eq__))
def test_a_fault_is_found_where_it_begins_and_its_cause_is_named(text: str) -> None:
    _, lm, tokenizer = tiny()
    prompt = tokenizer.encode(text)
    own = plain(tuple(prompt))

    def judged(ids: list[int], eos: frozenset[int] = frozenset()) -> tuple[int | None, str]:
        (one,) = Oracle(lm, tokenizer, eos).judge([Output(prompt_ids=prompt, ids=ids)])
        assert one.verdict.kind == ("identical" if one.verdict.position is None else "wrong")
        return one.verdict.position, one.verdict.cause.name if one.verdict.cause else ""

    assert judged(own) == (None, "")
    for at in (9, 20, 30):
        assert judged(kept(prompt, at)) == (at, KEPT)
    # a new token for one that was there, which a penalty may have chosen, too
    assert judged(kept(prompt, 4)) == (4, "")
    end = next(i for i in (14, 15, 16, 19) if own.index(own[i]) == i)
    assert judged(own, frozenset([own[end]])) == (end + 1, END)  # EOS in a draft ignored


@pytest.mark.parametrize("name", ["BOS missing", "no system prompt", "spaces", "another prompt"])
def test_another_form_of_the_prompt_is_named(name: str) -> None:
    """And another prompt is no form of it."""
    (_, lm, tokenizer), text = tiny(), TEXTS[0]
    message, ids = [{"role": "user", "content": text}], tokenizer.encode(text)
    records = {
        "BOS missing": (Output(prompt=text, ids=[]), ids[1:]),
        "no system prompt": (
            Output(messages=message, ids=[]),
            tokenizer.encode(f"\n{text}\n", add_special_tokens=False),
        ),
        "spaces": (Output(prompt=f" {text}  ", ids=[]), ids),
        "another prompt": (
            Output(prompt=text, ids=[]),
            tokenizer.encode("Once upon a time there was a dog named Tim."),
        ),
    }
    record, read = records[name]
    given = replace(record, ids=plain(tuple(read)))
    (found,) = Oracle(lm, tokenizer, frozenset()).judge([given])
    assert found.verdict.kind == "wrong"
    pairs = enumerate(zip(plain(tuple(found.prompt)), found.ids, strict=True))
    assert found.verdict.position == next(i for i, (own, one) in pairs if own != one)
    named = found.verdict.cause.name if found.verdict.cause else ""
    assert (named == PROMPT) == (name != "another prompt")


def test_tokens_of_a_penalty_have_no_cause() -> None:
    model, lm, tokenizer = tiny()
    prompt = tokenizer.encode(TEXTS[0])
    how = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    given = torch.tensor([prompt])
    made = model.generate(given, attention_mask=given.ne(-1), repetition_penalty=1.5, **how)
    output = Output(prompt_ids=prompt, ids=made[0, len(prompt) :].tolist())
    (found,) = Oracle(lm, tokenizer, frozenset()).judge([output])
    assert found.verdict.kind == "wrong" and found.verdict.cause is None
