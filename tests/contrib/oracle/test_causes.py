"""Planted faults: an output is named wrong at the position where it parts from the plain model's,
with one of three causes, or with none where the model shows none of them.
"""

import pytest
import torch
from msgspec.structs import replace
from planted import LENGTH, TEXTS, Loop, plain, tiny

from skipbench.contrib.oracle.causes import KEPT, PROMPT
from skipbench.contrib.oracle.judge import Judged, Oracle
from skipbench.contrib.oracle.outputs import Output
from skipbench.decode.lossless import END

FAULTS = {
    "draft token kept": {KEPT},
    "last draft token unverified": {KEPT, ""},  # one token, which a penalty may choose, too
    "EOS in a draft ignored": {END},
    "rollback by one": {KEPT, ""},  # a row of the cache that is another
}
"""Faults of the loop, and the causes that may be named."""


def cut(ids: list[int], eos: frozenset[int]) -> list[int]:
    return ids[: next((i + 1 for i, token in enumerate(ids) if token in eos), len(ids))]


def parts(wanted: list[int], one: Judged) -> int | None:
    """Where an output parts from the plain one."""
    pairs = enumerate(zip(wanted, one.ids, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    return len(wanted) if first is None and len(one.ids) > len(wanted) else first


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_fault_is_found_where_it_begins_and_no_cause_is_made_up(fault: str, text: str) -> None:
    model, lm, tokenizer = tiny()
    prompt = tokenizer.encode(text)
    own = plain(tuple(prompt))  # drafted are places 4, 0 and 1 of five
    ends = (own[i] for i in (14, 15, 16, 19, 20) if own.index(own[i]) == i)
    eos = frozenset([next(ends)] if "EOS" in fault else [])
    output = Output(prompt_ids=prompt, ids=Loop(model, eos, fault).generate(prompt, LENGTH))
    (one,) = Oracle(lm, tokenizer, eos).judge([output])
    assert one.verdict.position == parts(cut(own, eos), one)
    assert one.verdict.kind == ("identical" if one.verdict.position is None else "wrong")
    assert (fault == "") == (one.verdict.kind == "identical")
    if fault:
        assert (one.verdict.cause.name if one.verdict.cause else "") in FAULTS[fault]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["BOS missing", "no system prompt", "spaces", "another prompt"])
def test_another_form_of_the_prompt_is_named(name: str, text: str) -> None:
    """And another prompt is no form of it."""
    _, lm, tokenizer = tiny()
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
    assert found.verdict.position == parts(plain(tuple(found.prompt)), found)
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
