"""Rows: reading files, choosing and fingerprinting rows, and the datasets that make them."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from builders import message, sharded

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.data.datasets import mini
from skipbench.data.mini import FAMILIES, is_held_out
from skipbench.data.rows import Example, prompts_hash, read_file, sample_rows
from skipbench.errors import SkipbenchError
from skipbench.models.outline import fetch


def write(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines))
    return path


def make_rows(count: int) -> list[Example]:
    return [Example(f"r-{i}", f"prompt {i}", {}, {}) for i in range(count)]


def test_jsonl_gives_the_wanted_columns_in_file_order(tmp_path: Path) -> None:
    lines = '{"text": "one", "n": 1}', "", '{"n": 2, "text": "zwölf"}', "", " "
    path = write(tmp_path / "a.jsonl", *lines)
    assert read_file(path, {"text": str}) == [{"text": "one"}, {"text": "zwölf"}]
    assert read_file(path, {"n": int}) == [{"n": 1}, {"n": 2}]


BAD = [  # between two good lines
    ('{"text": ' + "[" * 100_000, {"text": str}, "recursion"),
    (b'{"text": "\xff"}', {"text": str}, "can't decode byte 0xff"),
    ('{"txt": "a", "id": 1}', {"text": str}, "its columns are txt, id"),
    ('{"text": ""}', {"text": str}, "Expected `str` of length >= 1 - at `$.text`"),
    ('{"n": true}', {"n": int}, "Expected `int`, got `bool`"),  # a type is taken exactly
]


@pytest.mark.parametrize(("line", "wanted", "said"), BAD)
def test_a_bad_line_is_named_with_file_and_number(
    tmp_path: Path, line: str | bytes, wanted: dict[str, type], said: str
) -> None:
    good = '{"text": "good", "n": 0}'  # zero is not empty
    path = write(tmp_path / "a.jsonl", good, line, good)
    text = message(lambda: read_file(path, wanted))
    assert f"{path} line 2" in text and said in text
    assert "no.jsonl does not exist" in message(lambda: read_file(tmp_path / "no.jsonl", wanted))


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    texts = ["a\u2028b", "a\u0085b", "a\u000cb", "a\rb", "last"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    for mark, end in (("", "\n"), ("", "\r\n"), ("\ufeff", "\n")):
        path = tmp_path / "rows.jsonl"
        path.write_bytes((mark + end.join(lines) + end).encode())
        assert [row["text"] for row in read_file(path, {"text": str})] == texts


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


@pytest.mark.parametrize("family", FAMILIES)
def test_mini_rows_are_the_held_out_examples(family: str) -> None:
    rows = mini(family, size=6, seed=3)
    assert [row.id for row in rows] == [f"{family}-{i}" for i in range(6)]
    assert all(is_held_out(row.prompt) and row.reference and row.groups == {} for row in rows)
    again, other = (mini(family, size=6, seed=seed) for seed in (3, 4))
    assert rows == again != other


def test_a_folder_and_a_snapshot_of_the_hub_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    commit = sharded(tmp_path / ("c" * 40))
    found, files = fetch(str(commit), None, None), commit.glob("*.safetensors")
    assert found.commit is None and found.size_bytes == sum(p.stat().st_size for p in files)

    def download(repo_id: str, revision: str, allow_patterns: list[str]) -> str:
        asked.update(repo_id=repo_id, revision=revision, patterns=allow_patterns)
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch("owner/name", "abc", None).commit == "c" * 40
    assert (asked["repo_id"], asked["revision"]) == ("owner/name", "abc")
    assert not any(".bin" in pattern or pattern == "*" for pattern in asked["patterns"])
    shape = compose(["model=llama2-7b"]).model.architecture
    with pytest.raises(SkipbenchError, match="layers 32, not 12"):
        fetch("owner/name", "abc", shape)
    (commit / "model-1.safetensors").unlink()
    with pytest.raises(SkipbenchError, match=r"lacks 1 of 2 weight files, as model-1\.safetensors"):
        fetch(str(commit), None, None)


def test_data_says_what_is_there_and_what_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dispatch(["data", "tiny", "mini-math", "planted"])
    said = capsys.readouterr().out
    assert said.count("ok  ") == 3 and "300 prompts" in said and "nothing to fetch" in said
    with pytest.raises(SkipbenchError, match="not fetched: tinystories"):
        dispatch(["data", "tiny", "tinystories", f"dataset.path={tmp_path / 'none.jsonl'}"])
    said = capsys.readouterr().out
    assert "ok       tiny" in said and "missing  tinystories" in said
    assert "none.jsonl does not exist" in said
