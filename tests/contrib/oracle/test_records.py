"""Records of engines: what is read of them, no false verdict, and `unchecked` where nothing was
read or where a stated setting chose other tokens.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from records import Cases, N, hugging_face, made, model, streams, vllm
from server_records import parts, servers

import skipbench as package
from skipbench.contrib.oracle.causes import Search
from skipbench.contrib.oracle.formats import FORMATS
from skipbench.contrib.oracle.outputs import Output, from_records, read_outputs
from skipbench.errors import SkipbenchError

KINDS = {"=": "identical", "?": "unchecked", "!": "wrong", "~": "sampled"}
TABLES: tuple[Callable[[], Cases], ...] = (hugging_face, vllm, parts, servers, streams)


@pytest.mark.parametrize("table", TABLES)
def test_no_verdict_is_false(table: Callable[[], Cases], monkeypatch: pytest.MonkeyPatch) -> None:
    """And one other word or token is seen wherever an output is identical."""
    monkeypatch.setattr(Search, "cause", lambda _: None)  # tests/oracle/test_planted.py has causes
    for name, (kinds, record) in table().items():
        records = record if isinstance(record, list) else [record]
        result = package.verify(records, model())
        found = [verdict.kind for verdict in result.verdicts]
        assert found == [KINDS[kind] for kind in kinds], (name, result.verdicts)
        assert all(v.error for v in result.verdicts if v.kind == "unchecked"), name
        assert result.failed("unchecked") == bool({*kinds} & {*"?!"}), name
        damaged = json.dumps(records).replace("stood", "fell")
        damaged = damaged.replace(f" {made(N)[0][3]},", " 7,")
        kept = package.verify(json.loads(damaged), model()).verdicts
        assert "=" not in kinds or [v.kind for v in kept] != found, name


def test_every_format_has_a_record() -> None:
    tables = (hugging_face, vllm, parts, servers)
    records = [record for table in tables for _, record in table().values()]
    seen = {from_records([("", record)])[1] for record in records}
    assert seen >= {name for name, *_ in FORMATS}


STEPS = {
    "of vLLM": {"outputs": [{"token_ids": [7, 8], "logprobs": [
        {"7": {"logprob": -0.5, "rank": 1}, "9": {"logprob": -3.0}}, {"8": -0.25},
    ]}]},
    "of SGLang": {"text": "", "meta_info": {
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
    }},
    "of vLLM's server": {"choices": [{"text": "", "logprobs": {
        "tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-0.5, -0.25],
    }}]},
    "of a chat": {"choices": [{"message": {"content": ""}, "token_ids": (7, 8), "logprobs": {
        "content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}],
    }}]},
    "of llama.cpp": {"content": "", "stop_type": "limit", "completion_probabilities": [
        {"id": 7, "logprob": -0.5, "top_logprobs": []}, {"id": 8, "logprob": -0.25},
    ]},
    "of TGI": {"generated_text": "", "details": {
        "tokens": [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -0.25}],
    }},
    "of one's own": {"output_ids": [7, 8], "logprobs": [-0.5, -0.25]},
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_ids_and_log_probabilities_are_read(name: str) -> None:
    (one,), _ = from_records([("here", {"prompt": "Once", **STEPS[name]})])
    assert (one.ids, one.logprobs) == ([7, 8], [-0.5, -0.25])


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
        ('{"prompt": "a", "text": "b"}\n{"input_ids": [1], "sequences": [1, 2]}', "of one format"),
        ('{"input_ids": [1], "sequences": [2, 2]}', "does not begin with"),
        ('{"input_ids": [[1], [2]], "sequences": [[1], [2], [3]]}', "answer 0 of 3 to 2 prompts"),
        ('{"prompt": "a", "outputs": "b"}', "wanted a list"),
        ('{"request": {"prompt": "a"}, "response": "data: {"}', "of another form"),
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
