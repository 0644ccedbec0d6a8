"""Planted faults: an output is named wrong at the position where it parts from the plain model's,
with the fault as its cause.
"""

from collections import Counter
from functools import cache
from typing import Any

import planted_later
import pytest
import torch
import transformers
from conftest import ROOT
from msgspec.structs import replace
from planted import FAULTS, Loop

from skipbench.contrib.oracle import causes
from skipbench.contrib.oracle.judge import Judged, Oracle
from skipbench.contrib.oracle.outputs import Output
from skipbench.contrib.oracle.replay import Replay
from skipbench.lm.model import LM

TINY = ROOT / "skipbench" / "models" / "tiny"
LENGTH = 44
TEXTS = (
    "Erik often played with Zoe, a mouse. One day Erik lost the white drum.",
    "Ella often played with Zoe, a frog. One day Ella lost the green basket.",
    "Dan's best friend was a bear named Zoe. One morning the blue key was gone.",
)
TEMPLATE = (
    "{% if messages[0].role != 'system' %}It was a cold winter.\n{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
)


@cache
def tiny() -> tuple[Any, LM, Any]:
    """The embedded model for Hugging Face and for the oracle, and its tokenizer."""
    pair = [
        transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
        for _ in range(2)
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = TEMPLATE
    lm = LM(pair[1], "fused")
    lm.allocate(512)
    return pair[0], lm, tokenizer


@cache
def plain(prompt: tuple[int, ...]) -> list[int]:
    """The model's own output."""
    return Replay(tiny()[1]).greedy([*prompt], LENGTH, frozenset())


def cut(ids: list[int], eos: frozenset[int]) -> list[int]:
    return ids[: next((i + 1 for i, token in enumerate(ids) if token in eos), len(ids))]


def judged(
    fault: str, count: int = len(TEXTS), length: int = LENGTH
) -> list[tuple[list[int], Judged]]:
    """The plain outputs, and the verdicts on those of the loop with the fault."""
    model, lm, tokenizer = tiny()
    prompts = [tokenizer.encode(text) for text in TEXTS[:count]]
    pairs = []
    for prompt in prompts:
        own = plain(tuple(prompt))[:length]  # drafted are places 4, 0 and 1 of five
        ends = (own[i] for i in (14, 15, 16, 19, 20) if own.index(own[i]) == i)
        eos = frozenset([next(ends)] if "EOS" in fault else [])
        output = Output(prompt_ids=prompt, ids=Loop(model, eos, fault).generate(prompt, length))
        pairs.append((cut(own, eos), *Oracle(lm, tokenizer, eos).judge([output])))
    return pairs


def of_prompts(name: str) -> list[tuple[list[int], Judged]]:
    """The same for faults that are not of the loop: the engine reads another prompt, or ends at
    another text.
    """
    _, lm, tokenizer = tiny()
    pairs = []
    for text in TEXTS:
        message = [{"role": "user", "content": text}]
        ids = tokenizer.encode(text)
        records = {
            "BOS missing": (Output(prompt=text, ids=[]), ids[1:]),
            "template without system prompt": (
                Output(messages=message, ids=[]),
                tokenizer.encode(f"{text}\n", add_special_tokens=False),
            ),
            "stop string differs": (Output(prompt=text, ids=[], stop=["."]), ids),
        }
        record, read = records[name]
        given = replace(record, ids=plain(tuple(read)))
        (found,) = Oracle(lm, tokenizer, frozenset()).judge([given])
        wanted = plain(tuple(found.prompt))
        if name == "stop string differs":
            at = next(i for i in range(LENGTH) if "." in tokenizer.decode(wanted[: i + 1]))
            wanted = wanted[: at + 1]
        pairs.append((wanted, found))
    return pairs


PROMPTS = {
    "BOS missing": causes.PROMPT,
    "template without system prompt": causes.PROMPT,
    "stop string differs": causes.END,
}


def parts(wanted: list[int], one: Judged) -> int | None:
    """Where an output parts from the plain one."""
    pairs = enumerate(zip(wanted, one.ids, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    return len(wanted) if first is None and len(one.ids) > len(wanted) else first


def cause_named(pairs: list[tuple[list[int], Judged]]) -> str | None:
    """The most frequent cause; each verdict is at the right position."""
    for wanted, one in pairs:
        assert one.verdict.position == parts(wanted, one)
        assert (one.verdict.kind == "wrong") == (one.verdict.position is not None)
    named = Counter(one.verdict.cause.name for _, one in pairs if one.verdict.cause)
    return named.most_common(1)[0][0] if named else None


def test_the_loop_without_a_fault_is_identical() -> None:
    assert [one.verdict.kind for _, one in judged("", 1, 28)] == ["identical"]


@pytest.mark.parametrize("fault", ["bonus shown twice", "EOS in a draft ignored"])
def test_a_planted_fault_is_named(fault: str) -> None:
    assert cause_named(judged(fault, 1, 28)) == FAULTS[fault]


def later(fault: str, count: int, length: int) -> list[tuple[list[int], Judged]]:
    """As `judged`, of the second loop, whose outputs are in one file."""
    model, lm, tokenizer = tiny()
    prompts = [tokenizer.encode(text) for text in TEXTS[:count]]
    made = planted_later.Loop(model, fault).generate(prompts, length)
    outputs = [
        Output(id=str(i), prompt_ids=ids, ids=own, limit=length)
        for i, (ids, own) in enumerate(zip(prompts, made, strict=True))
    ]
    found = Oracle(lm, tokenizer, frozenset()).judge(outputs)
    return [(plain(tuple(p))[:length], one) for p, one in zip(prompts, found, strict=True)]


@pytest.mark.parametrize("fault", ["repetition penalty", "over the limit"])  # all are slow, below
def test_a_fault_outside_of_the_cache_is_named(fault: str) -> None:
    assert cause_named(later(fault, 2, 20)) in planted_later.FAULTS[fault]


@pytest.mark.slow
def test_twelve_faults_of_another_loop() -> None:
    found = {name: cause_named(later(name, 3, LENGTH)) for name in planted_later.FAULTS}
    assert None not in found.values(), found
    right = [name for name, causes in planted_later.FAULTS.items() if found[name] in causes]
    assert len(right) >= 8, found


@pytest.mark.slow
def test_twenty_planted_faults() -> None:
    expected = FAULTS | PROMPTS
    assert len(expected) == 20
    found = {name: cause_named(judged(name)) for name in FAULTS}
    found |= {name: cause_named(of_prompts(name)) for name in PROMPTS}
    assert None not in found.values(), found
    right = [name for name in expected if found[name] == expected[name]]
    assert len(right) >= 15, {name: found[name] for name in expected if name not in right}
