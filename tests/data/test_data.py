"""Rows: reading files, choosing and fingerprinting rows, and the datasets that make them."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skipbench.data.datasets import mini
from skipbench.data.mini import FAMILIES, is_held_out
from skipbench.data.rows import Example, prompts_hash, read_file, sample_rows
from skipbench.errors import SkipbenchError


def write(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    )
    return path


def message(call: Callable[[], object]) -> str:
    with pytest.raises(SkipbenchError) as caught:
        call()
    return str(caught.value)


def make_rows(count: int) -> list[Example]:
    return [Example(f"r-{i}", f"prompt {i}", {}, {}) for i in range(count)]


def test_jsonl_gives_the_wanted_columns_in_file_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"text": "one", "n": 1}', "", '{"n": 2, "text": "zwölf"}', "", " "
    )
    assert read_file(path, {"text": str}) == [{"text": "one"}, {"text": "zwölf"}]
    assert read_file(path, {"n": int}) == [{"n": 1}, {"n": 2}]


def test_parquet_gives_the_same_as_jsonl(tmp_path: Path) -> None:
    rows = [{"text": "one", "turns": ["a", "b"]}, {"text": "two", "turns": ["c"]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    lines = write(tmp_path / "a.jsonl", *map(json.dumps, rows))
    wanted = {"turns": list, "text": str}
    assert read_file(tmp_path / "a.parquet", wanted) == read_file(lines, wanted) == rows


TEXT = {"text": str}
BAD = [  # between two good lines
    ("{'text': 1}", TEXT, "JSON is malformed"),
    ("[1, 2]", TEXT, "Expected `object`, got `array`; wanted one JSON object in UTF-8"),
    ('{"text": ' + "[" * 100_000, TEXT, "recursion"),
    (b'{"text": "\xff"}', TEXT, "can't decode byte 0xff"),
    ('{"txt": "a", "id": 1}', TEXT, "required field `text`; wanted text (str), not empty; its"),
    ('{"txt": "a", "id": 1}', TEXT, "its columns are txt, id"),
    ('{"text": null}', TEXT, "Expected `str`, got `null` - at `$.text`"),
    ('{"text": ""}', TEXT, "Expected `str` of length >= 1 - at `$.text`"),
    ('{"text": 3}', TEXT, "Expected `str`, got `int` - at `$.text`"),
    ('{"n": true}', {"n": int}, "Expected `int`, got `bool`"),  # a type is taken exactly
    ('{"n": "1"}', {"n": int}, "Expected `int`, got `str`"),
    ('{"n": 1.5}', {"n": int}, "Expected `int`, got `float`"),
    ('{"turns": []}', {"turns": list}, "Expected `array` of length >= 1 - at `$.turns`"),
]


@pytest.mark.parametrize(("line", "wanted", "said"), BAD)
def test_a_bad_line_is_named_with_file_and_number(
    tmp_path: Path, line: str | bytes, wanted: dict[str, type], said: str
) -> None:
    good = '{"text": "good", "n": 0, "turns": ["a"]}'  # zero is not empty
    path = write(tmp_path / "a.jsonl", good, line, good)
    text = message(lambda: read_file(path, wanted))
    assert f"{path} line 2" in text and said in text


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    names = ("null.parquet", "empty.parquet", "bad.parquet", "a.csv", "blank.jsonl")
    null, empty, bad, csv, blank = (tmp_path / name for name in names)
    pq.write_table(pa.table({"text": ["a", None]}), null)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), empty)
    for path in (bad, csv):
        path.write_text("text")
    write(blank, "", "")
    for path, said in (
        (tmp_path / "no.jsonl", "does not exist"),
        (tmp_path, "is no file"),
        (csv, "a.csv is no file of rows; give a file that ends in .jsonl or .parquet"),
        (blank, "has no rows"),
        (empty, "has no rows"),
        (bad, "cannot be read as parquet"),
        (null, f"{null} row 2: Expected `str`, got `null`"),
    ):
        assert said in message(functools.partial(read_file, path, TEXT))
    story = message(lambda: read_file(null, {"story": str}))
    assert "has none of the columns story; its columns are text" in story


def test_the_hash_sees_ids_prompts_and_order_and_nothing_else() -> None:
    rows = make_rows(3)
    assert prompts_hash(rows) == prompts_hash(
        [Example(r.id, r.prompt, {"x": 1}, {"g": "h"}) for r in rows]
    )
    assert len(prompts_hash(rows)) == 64
    assert prompts_hash(rows) != prompts_hash(rows[::-1])
    # The border between id and prompt counts.
    assert prompts_hash([Example("ab", "c", {}, {})]) != prompts_hash([Example("a", "bc", {}, {})])
    assert prompts_hash([Example("a", "\ud800", {}, {})]) != prompts_hash(
        [Example("a", "", {}, {})]
    )


def test_sampling_is_fixed_by_the_seed_and_nested_in_the_limit() -> None:
    rows = make_rows(20)
    assert sample_rows(rows, None, 0, shuffle=False) == rows
    assert sample_rows(rows, 5, 0, shuffle=False) == rows[:5]
    drawn = sample_rows(rows, 8, 3, shuffle=True)
    assert drawn == sample_rows(rows, 12, 3, shuffle=True)[:8] and drawn != rows[:8]
    assert drawn != sample_rows(rows, 8, 4, shuffle=True)
    everything = sample_rows(rows, 99, 3, shuffle=True)
    assert sorted(r.id for r in everything) == sorted(r.id for r in rows)
    assert "dataset.size=0 leaves no rows" in message(
        lambda: sample_rows(rows, 0, 0, shuffle=False)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_mini_rows_are_the_held_out_examples(family: str) -> None:
    rows = mini(family, size=6, seed=3)
    assert [row.id for row in rows] == [f"{family}-{i}" for i in range(6)]
    assert all(is_held_out(row.prompt) and row.reference and row.groups == {} for row in rows)
    again, other = (mini(family, size=6, seed=seed) for seed in (3, 4))
    assert rows == again != other


def test_mini_errors() -> None:
    text = message(lambda: mini("mini-maths", size=1, seed=0))
    assert "'mini-maths'" in text and all(family in text for family in FAMILIES)
    assert "size=0" in message(lambda: mini("mini-math", size=0, seed=0))
