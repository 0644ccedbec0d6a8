"""Readers of records: what is read of them, no false verdict, and `unchecked` where nothing was
read or where a stated setting may have chosen other tokens.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from records import Cases, N, arrays, lm_eval, made, model, openai, own, vllm

import skipbench as package
from skipbench.contrib.oracle.outputs import Output, from_records, read_outputs
from skipbench.contrib.oracle.readers import READERS
from skipbench.errors import SkipbenchError

KINDS = {"=": "identical", "?": "unchecked", "!": "wrong", "~": "sampled"}
TABLES: tuple[Callable[[], Cases], ...] = (vllm, lm_eval, arrays, openai, own)  # as `READERS`


@pytest.mark.parametrize("table", TABLES)
def test_no_verdict_is_false(table: Callable[[], Cases]) -> None:
    """And one other word or token is seen wherever an output is identical."""
    for name, (kinds, record) in table().items():
        result = package.verify([record], model())
        found = [verdict.kind for verdict in result.verdicts]
        assert found == [KINDS[kind] for kind in kinds], (name, result.verdicts)
        assert result.format in (READERS[TABLES.index(table)][0], "no answers")
        unchecked = [v for v in result.verdicts if v.kind == "unchecked"]
        assert all(v.error and v.cause is None for v in unchecked), name
        assert result.failed("unchecked") == bool({*kinds} & {*"?!"}), name
        damaged = json.dumps(record).replace("stood", "fell")
        damaged = damaged.replace(f" {made(N)[0][3]},", " 7,")
        kept = package.verify([json.loads(damaged)], model()).verdicts
        assert "=" not in kinds or [v.kind for v in kept] != found, name


def test_a_setting_that_no_reader_knows_is_named() -> None:
    cases = openai()
    for name in ("a_new_one", "enable_thinking", "logit_bias"):
        (verdict,) = package.verify([cases[name][1]], model()).verdicts
        assert f"the record has {name}=" in verdict.error


STEPS = {
    "of vLLM": {"outputs": [{"token_ids": [7, 8]}]},
    "of vLLM's server": {"choices": [{"text": "", "token_ids": (7, 8)}]},
    "of a chat": {"choices": [{"message": {"content": ""}, "token_ids": (7, 8)}]},
    "of one's own": {"output_ids": [7, 8]},
}


@pytest.mark.parametrize("name", STEPS)
def test_ids_are_read(name: str) -> None:
    (one,), _ = from_records([("here", {"prompt": "Once", **STEPS[name]})])
    assert one.ids == [7, 8]


def test_several_outputs_of_a_prompt_and_chat_messages() -> None:
    chosen = [
        {"index": i, "message": {"content": t}, "finish_reason": "stop"} for i, t in enumerate("ab")
    ]
    messages = [{"role": "user", "content": "Hi"}]
    record = {"request": {"messages": messages, "temperature": 0.7, "top_k": -1}, "choices": chosen}
    outputs, _ = from_records([("here", record)])
    assert [o.text for o in outputs] == ["a", "b"]
    assert outputs[0].messages == messages and outputs[0].finish == "stop"
    assert (outputs[0].temperature, outputs[0].top_k) == (0.7, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "wanted a JSON object"),
        ('{"prompt": "a"}', "wanted those of one of"),
        ('{"output": "a"}', "no prompt"),
        ('{"prompt": "a", "output_ids": [1, "x"]}', "read as skipbench"),
        ('{"prompt": "a", "output": "b"}\n{oops', "line 2: no JSON"),
        ('{"prompt": "a", "text": "b"}\n{"input_ids": [1], "sequences": [1, 2]}', "of one form"),
        ('{"input_ids": [1], "sequences": [2, 2]}', "does not begin with"),
        ('{"input_ids": [[1], [2]], "sequences": [[1], [2], [3]]}', "3 rows of `sequences` to 2"),
        ('{"prompt": "a", "outputs": "b"}', "read as vLLM"),
        ('{"prompt": ["a", "b"], "choices": [{"text": "c"}]}', "read as OpenAI"),
        ("", "no record"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(SkipbenchError, match=why):
        read_outputs(path)


def test_an_output_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="no prompt"):
        Output(text="a")
