"""Real text without a network: Python's own library and reference, files of anybody's own prompts,
and the prompts of `dataset=tuning`, which are no others'.
"""

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from skipbench.config.compose import compose
from skipbench.data.rows import Example, rows_hash
from skipbench.errors import SkipbenchError

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]


def own(path: Path, *overrides: str) -> list[Example]:
    config = compose(["dataset=prompts", f"dataset.path={path}", *overrides])
    return config.dataset.rows(None)


def test_functions_of_the_library_parse_and_are_the_same_again() -> None:
    dataset = compose(["dataset=stdlib-code"]).dataset
    rows = dataset.rows(20)
    assert rows_hash(rows) == rows_hash(dataset.rows(20)) != rows_hash(dataset.rows(19))
    assert len({row.id for row in rows}) == 20
    for row in rows:
        whole = row.prompt + row.reference["code"]
        (function,) = ast.parse(whole).body
        assert isinstance(function, ast.FunctionDef) and ast.get_docstring(function)
        assert row.id.endswith(f".{function.name}") and row.reference["code"].strip()


def test_sections_of_the_reference_have_the_length_of_a_prompt() -> None:
    dataset = compose(["dataset=pydoc-summary"]).dataset
    rows = dataset.rows(None)
    assert len(rows) > 100 and {row.groups["task"] for row in rows} == {"summary", "question"}
    assert all(1200 <= len(row.prompt) <= 4300 for row in rows)
    assert rows_hash(rows) == rows_hash(dataset.rows(None))
    asked = next(row for row in rows if row.groups["task"] == "question")
    term = asked.prompt.rpartition("say about ")[2].partition("?")[0]
    assert asked.prompt.count(term.strip('"')) > 3


def test_prompts_of_every_kind_of_file(tmp_path: Path) -> None:
    lines = [{"prompt": "One"}, {"messages": MESSAGES, "more": 1}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "p.txt").write_text("One\n\nTwo words\n")
    pq.write_table(pa.Table.from_pylist([{"messages": MESSAGES}]), tmp_path / "p.parquet")
    first, second = own(tmp_path / "p.jsonl")
    assert (first.prompt, first.messages) == ("One", ())
    assert second.messages == tuple(MESSAGES) and second.prompt == "Be short.\n\nHello"
    assert [row.prompt for row in own(tmp_path / "p.txt")] == ["One", "Two words"]
    assert own(tmp_path / "p.parquet")[0].messages == tuple(MESSAGES)
    assert len(own(tmp_path / "p.txt", "dataset.size=1")) == 1
    pq.write_table(pa.Table.from_pylist([{"text": "One"}]), tmp_path / "q.parquet")
    with pytest.raises(
        SkipbenchError, match=r"has none of the columns prompt, messages, .*; its columns are text"
    ):
        own(tmp_path / "q.parquet")
    # the same text in another form is other input
    assert len({rows_hash([row]) for row in (first, second)}) == 2


def test_what_an_agent_said_and_was_given_is_kept(tmp_path: Path) -> None:
    """In `prompt`, as TRL writes it; parquet gives every row the fields of all."""
    calls = [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}]
    turns = [
        MESSAGES[1],
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "name": "weather", "content": "sunny"},
    ]
    line = {"prompt": turns, "tools": [{"name": "weather"}]}
    (tmp_path / "p.JSONL").write_text(json.dumps(line) + "\n")
    pq.write_table(pa.Table.from_pylist([line]), tmp_path / "p.parquet")
    for file in tmp_path.iterdir():
        (row,) = own(file)
        assert row.messages == tuple(turns) and row.template == {"tools": line["tools"]}
        assert row.prompt == f"Hello\n\n{json.dumps(calls)}\n\nsunny"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "[]", r"load_dataset\('json', data_files='.*to_parquet"),
        ("saved/dataset_info.json", "{}", r"save_to_disk: load_from_disk\(.*to_parquet"),
        ("a.jsonl", '{"conversations": [{"from": "human"}]}', "are ShareGPT's: write each as"),
        ("a.jsonl", '{"messages": [{"role": "human", "content": "x"}]}', "role 'human'; wanted"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "line 1: a message is .*; wanted a dict"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (file := tmp_path / name).parent.mkdir(exist_ok=True)
    file.write_text(text)
    with pytest.raises(SkipbenchError, match=says):
        own(file if file.parent == tmp_path else file.parent)


def test_a_part_of_a_split_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a-00000-of-00001.jsonl", "a-00000-of-00003.jsonl"):
        (tmp_path / name).write_text('{"prompt": "One"}\n')
        assert len(own(tmp_path / name)) == 1
    assert capsys.readouterr().err.count("is one of 3 parts of a dataset") == 1


ALONE = """
import socket, sys

def refuse(*given, **more):
    raise AssertionError(f"the network was asked: {given}")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
socket.create_connection = socket.gethostbyname = refuse
import skipbench.data.library
from skipbench.config.compose import compose

for name in sys.argv[1:]:
    dataset = compose([f"dataset={name}"]).dataset
    before = set(sys.modules)
    rows = dataset.rows(None)
    assert len(rows) > 100, rows
    print(*({row.id.partition(".")[0] for row in rows} & (set(sys.modules) - before)))
"""


@pytest.mark.slow
def test_no_network_is_asked_and_what_is_read_is_not_imported() -> None:
    """In a process of its own, where every way to another machine fails."""
    offline = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    command = [sys.executable, "-c", ALONE, "stdlib-code", "pydoc-summary", "humaneval"]
    done = subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], "modules were imported to read their functions"


RUN = 15  # words; instructions and idioms of the language are shorter
EVALUATED = sorted(
    {path.stem for path in (ROOT / "conf" / "dataset").glob("mini-*.yaml")}
    | {"pydoc-summary", "stdlib-code", "humaneval"}
)
WORD = "dataset=tuning"


def tuning() -> list[Example]:
    rows = compose([WORD]).dataset.rows(None)
    assert len(rows) == 60
    return rows


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of `RUN` words; of a shorter text, the whole of it."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + RUN]) for at in range(max(1, len(words) - RUN + 1))}


def test_the_first_rows_are_of_every_kind() -> None:
    rows = tuning()
    assert len({row.groups["task"] for row in rows[:5]}) == 5
    assert len({row.id for row in rows}) == len({row.prompt for row in rows}) == len(rows)
    assert [row.id for row in rows[:7]] == [r.id for r in compose([WORD]).dataset.rows(7)]


@functools.cache
def mine() -> frozenset[tuple[str, ...]]:
    return frozenset().union(*(runs(row.prompt) for row in tuning()))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALUATED)
def test_no_prompt_of_an_evaluation_is_among_them(name: str) -> None:
    limit = 12 if name.startswith("mini-") else None
    for row in compose([f"dataset={name}"]).dataset.rows(limit):
        assert not (both := mine() & runs(row.prompt)), f"{row.id}: {both}"
