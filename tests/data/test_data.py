"""Rows: reading files, choosing and fingerprinting rows, and the datasets that make them."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skipbench.data.datasets import mini
from skipbench.data.mini import FAMILIES, body_hash, held_out, is_held_out
from skipbench.data.rows import Row, placed_rows, prompts_hash, read_file, sample_rows
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


def make_rows(count: int) -> list[Row]:
    return [Row(f"r-{i}", f"prompt {i}", {}, {}) for i in range(count)]


def test_jsonl_gives_the_wanted_columns_in_file_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"text": "one", "n": 1}', '{"n": 2, "text": "zwölf"}', "", " "
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
    ("{'text': 1}", TEXT, "is not JSON"),
    ("[1, 2]", TEXT, "holds a JSON list"),
    ("[" * 100_000, TEXT, "is not JSON"),
    (b'{"text": "\xff"}', TEXT, "is not UTF-8"),
    ("", TEXT, "is blank"),
    ('{"txt": "a", "id": 1}', TEXT, "lacks the column 'text'; its columns are 'txt', 'id'"),
    ('{"text": null}', TEXT, "column 'text' is null"),
    ('{"text": " "}', TEXT, "column 'text' is empty"),
    ('{"text": 3}', TEXT, "column 'text' is of type int, but must be a str"),
    ('{"n": true}', {"n": int}, "must be a int"),  # a type is taken exactly
    ('{"n": "1"}', {"n": int}, "must be a int"),
    ('{"n": 1.0}', {"n": int}, "must be a int"),
    ('{"turns": []}', {"turns": list}, "'turns' is empty"),
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
    csv, blank = write(tmp_path / "a.csv", "text"), write(tmp_path / "a.jsonl", "", "")
    for path, said in (
        (tmp_path / "no.jsonl", "does not exist"),
        (tmp_path, "is a directory"),
        (csv, "'.csv'; files may be .jsonl or .parquet"),
        (blank, "has no rows"),
    ):
        assert said in message(lambda path=path: read_file(path, TEXT))  # type: ignore[misc]


def test_parquet_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None]}), path)
    assert f"{path} row 2: column 'text' is null" in message(lambda: read_file(path, {"text": str}))
    assert "lacks the column 'story'; its columns are 'text'" in message(
        lambda: read_file(path, {"story": str})
    )
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert "has no rows" in message(lambda: read_file(path, {"text": str}))
    path.write_bytes(b"not parquet")
    assert "cannot be read as parquet" in message(lambda: read_file(path, {"text": str}))


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    """What follows the rows that are asked for is not read: here it cannot be."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"{i:04} " * 2000 for i in range(2000)]})
    pq.write_table(table, path, row_group_size=500, compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
    before = pa.total_allocated_bytes()
    rows = placed_rows(path, {"text": str})
    places = [next(rows)[0] for _ in range(300)]
    assert places[-1] == f"{path} row 300"
    assert pa.total_allocated_bytes() - before < table.nbytes / 2  # one row group, in pages
    assert "cannot be read as parquet" in message(lambda: list(rows))


def test_the_hash_sees_ids_prompts_and_order_and_nothing_else() -> None:
    rows = make_rows(3)
    assert prompts_hash(rows) == prompts_hash(
        [Row(r.id, r.prompt, {"x": 1}, {"g": "h"}) for r in rows]
    )
    assert len(prompts_hash(rows)) == 64
    assert prompts_hash(rows) != prompts_hash(rows[::-1])
    # The border between id and prompt counts.
    assert prompts_hash([Row("ab", "c", {}, {})]) != prompts_hash([Row("a", "bc", {}, {})])
    assert prompts_hash([Row("a", "\ud800", {}, {})]) != prompts_hash([Row("a", "", {}, {})])


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
    rows = mini(family, size=6, seed=3, bodies=None)
    assert [row.id for row in rows] == [f"{family}-{i}" for i in range(6)]
    assert all(is_held_out(row.prompt) and row.reference and row.groups == {} for row in rows)
    again, other = (mini(family, size=6, seed=seed, bodies=None) for seed in (3, 4))
    assert rows == again != other


def test_mini_groups_by_the_bodies_that_were_trained_on(tmp_path: Path) -> None:
    source = held_out("mini-math", 3)
    hashes = [body_hash("mini-math", next(source).body) for _ in range(6)]
    found = np.array(sorted((hashes[0], hashes[4], 0, 2**32 - 1)), dtype=np.uint32)
    np.save(tmp_path / "some.npy", found)
    rows = mini("mini-math", size=6, seed=3, bodies=tmp_path / "some.npy")
    groups = [row.groups["body"] for row in rows]
    assert groups == ["seen", "unseen", "unseen", "unseen", "seen", "unseen"]
    np.save(tmp_path / "none.npy", np.array([], dtype=np.uint32))
    rows = mini("mini-math", size=2, seed=3, bodies=tmp_path / "none.npy")
    assert [row.groups for row in rows] == [{"body": "unseen"}] * 2


def test_mini_errors() -> None:
    text = message(lambda: mini("mini-maths", size=1, seed=0, bodies=None))
    assert "'mini-maths'" in text and all(family in text for family in FAMILIES)
    assert "size=0" in message(lambda: mini("mini-math", size=0, seed=0, bodies=None))


ARRAYS = {
    "unsorted": np.array([2, 1], np.uint32),
    "int64": np.array([1, 2], np.int64),
    "two-dimensional": np.array([[1]], np.uint32),
    "pickled": np.array([{}], object),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_bodies_that_cannot_be_used(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "b.npy", array, allow_pickle=True)
    text = write(tmp_path / "text.npy", "x")
    for path in (tmp_path / "b.npy", tmp_path / "missing.npy", text, tmp_path):
        ask = functools.partial(mini, "mini-math", size=1, seed=0, bodies=path)
        assert f"bodies={path}" in message(ask)
