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

from skipbench.config.compose import compose
from skipbench.data.datasets import mini, tinystories
from skipbench.data.mini import FAMILIES, body_hash, held_out, is_held_out
from skipbench.data.rows import Row, placed_rows, prompts_hash, read_file, sample_rows
from skipbench.errors import SkipbenchError

SAMPLES = Path(__file__).parents[2] / ".." / "shared" / "data"


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{'text': 1}", "is not JSON"),
        ("[1, 2]", "holds a JSON list"),
        ("[" * 100_000, "is not JSON"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        ('{"txt": "a", "id": 1}', "lacks the column 'text'; its columns are 'txt', 'id'"),
        ('{"text": null}', "column 'text' is null"),
        ('{"text": " "}', "column 'text' is empty"),
        ('{"text": 3}', "column 'text' is of type int, but must be a str"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(
    tmp_path: Path, line: str | bytes, said: str
) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "good"}', line, '{"text": "good"}')
    text = message(lambda: read_file(path, {"text": str}))
    assert f"{path} line 2" in text and said in text


@pytest.mark.parametrize("line", ['{"n": true}', '{"n": "1"}', '{"n": 1.0}'])
def test_a_type_is_taken_exactly(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.jsonl", line)
    assert "must be a int" in message(lambda: read_file(path, {"n": int}))


def test_an_empty_list_is_empty_and_zero_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"n": 0, "turns": []}')
    assert read_file(path, {"n": int}) == [{"n": 0}]
    assert "'turns' is empty" in message(lambda: read_file(path, {"turns": list}))


def test_a_blank_line_between_rows_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}', "", '{"text": "b"}')
    assert f"{path} line 2 is blank" in message(lambda: read_file(path, {"text": str}))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    assert "does not exist" in message(lambda: read_file(tmp_path / "no.jsonl", {"text": str}))
    assert "is a directory" in message(lambda: read_file(tmp_path, {"text": str}))
    csv = write(tmp_path / "a.csv", "text")
    assert "'.csv'; files may be .jsonl or .parquet" in message(
        lambda: read_file(csv, {"text": str})
    )
    blank = write(tmp_path / "a.jsonl", "", "")
    assert "has no rows" in message(lambda: read_file(blank, {"text": str}))


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


def test_mini_errors(tmp_path: Path) -> None:
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


def where(path: Path, size: int | None = None) -> dict[str, Any]:
    words = ["dataset=tinystories", "dataset.prompt=plain", f"dataset.path={path}"]
    dataset = compose(words).dataset
    others = ("_target_", "prefix_words")
    return {k: v for k, v in dataset._arguments(0).items() if k not in others} | {"size": size}


def test_a_story_is_cut_after_the_prefix_as_it_stands_in_the_text(tmp_path: Path) -> None:
    stories = ["  One  day,\n\na cat   sat. ", "three words here", "One two three four"]
    path = write(tmp_path / "s.jsonl", *(json.dumps({"text": story}) for story in stories))
    rows = {row.id: row for row in tinystories(3, **where(path))}
    assert set(rows) == {"tinystories-0", "tinystories-2"}
    first = rows["tinystories-0"]
    assert (first.prompt, first.reference) == ("  One  day,\n\na", {"text": " cat   sat. "})
    assert (rows["tinystories-2"].prompt, rows["tinystories-2"].reference) == (
        "One two three",
        {"text": " four"},
    )
    assert len(tinystories(3, **where(path, size=1))) == 1


def test_tinystories_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", '{"text": "one two three"}')
    text = message(lambda: tinystories(3, **where(path)))
    assert "prefix_words=3 leaves none of the 1 stories" in text
    assert "prefix_words=0" in message(lambda: tinystories(0, **where(path)))
    assert "dataset.size=0" in message(lambda: tinystories(3, **where(path, size=0)))


def test_real_tinystories() -> None:
    path = SAMPLES / "tinystories.jsonl"
    if not path.is_file():
        pytest.skip("the sample of TinyStories is not beside this checkout")
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    rows = tinystories(20, **where(path, size=50))
    assert len({row.id for row in rows}) == 50
    for row in rows:
        assert row.prompt + row.reference["text"] == texts[int(row.id.rpartition("-")[2])]
        assert len(row.prompt.split()) == 20 and row.prompt == row.prompt.rstrip()


def test_real_samples_have_the_columns_of_the_hub() -> None:
    if not SAMPLES.is_dir():
        pytest.skip("the samples of the papers' datasets are not beside this checkout")
    assert len(read_file(SAMPLES / "gsm8k_test.jsonl", {"question": str, "answer": str})) == 100
    assert len(read_file(SAMPLES / "mt_bench.jsonl", {"turns": list})) == 20
