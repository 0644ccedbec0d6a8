"""Readers: one record of each engine's format gives the same output."""

import json
from pathlib import Path
from typing import Any

import pytest

from skipbench.errors import SkipbenchError
from skipbench.oracle.outputs import READERS, Output, from_records, read_outputs

PROMPT, TEXT, IDS, LOGPROBS = "Once", " upon a", [7, 8], [-0.5, -0.25]
ASKED = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "stop": ["\n"]}
RECORDS: dict[str, dict[str, Any]] = {
    "vLLM, RequestOutput": {
        "request_id": "0", "prompt": PROMPT, "prompt_token_ids": [3], "finished": True,
        "outputs": [{
            "index": 0, "text": TEXT, "token_ids": IDS, "finish_reason": "length",
            "logprobs": [
                {"7": {"logprob": -0.5, "rank": 1}, "9": {"logprob": -3.0}},
                {"8": {"logprob": -0.25, "rank": 1}},
            ],
        }],
    },
    "SGLang, Engine.generate or /generate": {
        "request": {"text": PROMPT, "sampling_params": {"max_new_tokens": 2, "temperature": 0}},
        "response": {
            "text": TEXT, "output_ids": IDS,
            "meta_info": {
                "id": "a1", "finish_reason": {"type": "length", "length": 2},
                "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
            },
        },
    },
    "lm-evaluation-harness, --log_samples": {
        "doc_id": 0, "doc": {}, "target": "", "filtered_resps": ["x"],
        "arguments": {"gen_args_0": {
            "arg_0": PROMPT, "arg_1": {"until": ["\n"], "max_gen_toks": 2, "do_sample": False},
        }},
        "resps": [[TEXT]],
    },
    "OpenAI-style, llama-cpp-python among them": {
        "request": ASKED,
        "response": {
            "id": "cmpl-1", "object": "text_completion",
            "choices": [{
                "index": 0, "text": TEXT, "finish_reason": "length",
                "logprobs": {
                    "tokens": ["token_id:7", "token_id:8"], "token_logprobs": LOGPROBS,
                    "text_offset": [0, 5], "top_logprobs": None,
                },
            }],
        },
    },
    "llama.cpp, /completion": {
        "content": TEXT, "tokens": IDS, "prompt": PROMPT, "stop": True, "stop_type": "limit",
        "tokens_predicted": 2, "generation_settings": {"n_predict": 2, "temperature": 0.0},
        "completion_probabilities": [
            {"id": 7, "token": " upon", "logprob": -0.5, "top_logprobs": []},
            {"id": 8, "token": " a", "logprob": -0.25, "top_logprobs": []},
        ],
    },
    "Hugging Face, generate": {"input_ids": [[3]], "sequences": [[3, 7, 8]]},
    "skipbench, JSONL": {"prompt": PROMPT, "output_ids": IDS, "finish_reason": "length"},
}  # fmt: skip


def test_every_reader_has_a_record() -> None:
    assert {name for name, *_ in READERS} == {*RECORDS}


@pytest.mark.parametrize("name", RECORDS)
def test_each_format_is_recognised_and_gives_the_same_output(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(f"{json.dumps(RECORDS[name])}\n\n{json.dumps(RECORDS[name])}\n")
    outputs, form = read_outputs(path)
    assert form == name and len(outputs) == 2
    one = outputs[0]
    assert one.prompt == PROMPT or one.prompt_ids == [3]
    assert one.ids == IDS or (one.ids is None and one.text == TEXT)
    assert one.logprobs in ([], LOGPROBS)
    assert one.finish in ("length", "") and one.limit in (2, None) and not one.temperature
    assert one.stop in ([], ["\n"])


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
        ('{"prompt": "a", "output_ids": ["x"]}', "read as skipbench"),
        ('{"prompt": "a", "output": "b"}\n{oops', "line 2: no JSON"),
        ('{"prompt": "a", "text": "b"}\n{"input_ids": [1], "sequences": [1, 2]}', "of one format"),
        ('{"input_ids": [1], "sequences": [2, 2]}', "does not begin with"),
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
