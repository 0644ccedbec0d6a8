"""What cannot be checked: exit status, runs without prompts, and dates in prompts."""

import json
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from msgspec.structs import replace
from planted import tiny
from records import TEXT, USER, N, chat, made, model

import skipbench as package
from skipbench.bench.prompts import encode
from skipbench.config.compose import compose
from skipbench.contrib.artifact.write import write_bundle
from skipbench.contrib.oracle.outputs import Output, from_records
from skipbench.contrib.oracle.prompts import prompt_ids, unsure
from skipbench.data.chat import pin_day
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.runs.reading import run_folders

DATED = "{{ strftime_now('%d %b %Y') }} {% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("right", "fail_on", "status"),
    [(0, "", 1), (0, "unchecked", 1), (1, "", 0), (1, "unchecked", 1)],
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


def test_a_run_whose_prompts_are_not_there(tmp_path: Path) -> None:
    small = ["dataset=mini-math", "limit=2", "dataset.max_new_tokens=6", f"results={tmp_path}"]
    run_cell(compose(["method=vanilla", *small]))
    write_bundle(tmp_path / "bundle", tmp_path)
    (folder,) = run_folders(tmp_path / "bundle")
    with pytest.raises(SkipbenchError, match=r"has no texts\.jsonl.*give the folder of the"):
        package.verify(folder, model())


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


def test_the_day_of_a_record_is_in_its_prompt_or_in_doubt() -> None:
    record = {"messages": USER, "text": "a"}
    for more, sure in (({"date": "2025-02-03"}, True), ({}, False)):
        (output,), _ = from_records([("here", record | more)])
        ids = prompt_ids(dated(), output, "none")
        assert ("03 Feb 2025" in dated().decode(ids)) == bool(more)
        assert bool(unsure(dated(), output, ids, "none")) != sure
        assert not unsure(tiny()[2], output, ids, "none")
