"""Readers of records: what is read of them, no false verdict, and `unchecked` where nothing was
read or where a stated setting may have chosen other tokens.
"""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from msgspec.structs import replace
from records import TEXT, Cases, N, arrays, chat, lm_eval, made, model, openai, own, tiny, vllm

import skipbench as package
from skipbench.bench.prompts import encode
from skipbench.contrib.oracle import readers
from skipbench.contrib.oracle.outputs import Output, read_outputs
from skipbench.contrib.oracle.prompts import prompt_ids
from skipbench.contrib.oracle.readers import READERS
from skipbench.data.chat import pin_day
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError

DATED = "{{ strftime_now('%d %b %Y') }} {% for m in messages %}{{ m.content }}{% endfor %}"
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
        if name == "a_new_one":  # no reader knows it
            assert "the record has a_new_one=" in unchecked[0].error
        assert result.failed("unchecked") == bool({*kinds} & {*"?!"}), name
        if "=" in kinds:
            damaged = json.dumps(record).replace("stood", "fell")
            damaged = damaged.replace(f" {made(N)[0][3]},", " 7,")
            kept = package.verify([json.loads(damaged)], model()).verdicts
            assert [v.kind for v in kept] != found, name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "wanted a JSON object"),
        ('{"prompt": "a"}', "wanted those of one of"),
        ('{"prompt": "a", "output_ids": [1, "x"]}', "read as skipbench"),
        ('{"prompt": "a", "output": "b"}\n{oops', "line 2: no JSON"),
        ('{"prompt": "a", "text": "b"}\n{"input_ids": [1], "sequences": [1, 2]}', "of one form"),
        ('{"input_ids": [1], "sequences": [2, 2]}', "does not begin with"),
        ('{"prompt": "a", "outputs": "b"}', "read as vLLM"),
        ("", "no record"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(SkipbenchError, match=why):
        read_outputs(path)


@pytest.mark.parametrize(
    ("right", "fail_on", "status"), [(0, "", 1), (1, "", 0), (1, "unchecked", 1)]
)
def test_the_exit_status(
    right: int, fail_on: str, status: int, skipbench: Command, tmp_path: Path
) -> None:
    """An output that nothing was read of fails alone, and beside others with `--fail-on`."""
    thought = chat({"content": None, "reasoning_content": "Once."})
    file = tmp_path / "out.json"
    file.write_text(json.dumps([thought, *[chat({"content": made(N)[1]})] * right]))
    words = ["verify", str(file), "model=tiny", *(["--fail-on", fail_on] if fail_on else [])]
    done = skipbench(*words)
    assert done.returncode == status and "1 unchecked" in done.stdout
    assert "reasoning_content: taken out" in done.stdout
    assert ("could be checked" in done.stderr) == (not right)


def dated() -> Any:
    tokenizer = copy(tiny()[2])
    tokenizer.chat_template = DATED
    return tokenizer


def test_the_day_of_a_run_is_in_its_prompts() -> None:
    tokenizer = dated()
    pin_day(tokenizer, "2025-02-03")
    (made,) = encode([Example("q", TEXT, {}, {})], tokenizer, 500, 8, "left", chat="template")
    assert "03 Feb 2025" in tokenizer.decode(made.ids)
    known = {"prompt": TEXT, "prompt_hash": made.hash, "prompt_tokens": len(made.ids), "ids": [5]}
    output = Output(**known, day="2025-02-05")  # another method of its row began two days earlier
    assert prompt_ids(dated(), output, "none") == made.ids
    with pytest.raises(SkipbenchError, match="another date in its chat template"):
        prompt_ids(dated(), replace(output, day="2025-02-02"), "none")


def test_tools_of_our_own_lines_reach_the_template() -> None:
    (found,) = readers.own(
        {"messages": [{"role": "user", "content": "Hi"}], "tools": [1], "text": "x"}
    )
    assert found["template"] == {"tools": [1]} and not found["doubts"]
