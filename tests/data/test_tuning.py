"""`dataset=tuning`: prompts that are no others'."""

import functools
import json
import re
from collections.abc import Iterator

import pytest
from conftest import ROOT, SHARED

from skipbench.config.compose import compose
from skipbench.data.rows import Row
from skipbench.data.tuning import EACH

RUN = 15  # words; instructions and idioms of the language are shorter
EVALUATED = sorted(
    {path.stem for path in (ROOT / "conf" / "dataset").glob("mini-*.yaml")}
    | {"pydoc-summary", "stdlib-code", "humaneval"}
)
WORD = "dataset=tuning"
SAMPLES = sorted((SHARED / "data").glob("*.jsonl"))


def tuning() -> list[Row]:
    rows = compose([WORD]).dataset.rows(None)
    assert len(rows) == 5 * EACH
    return rows


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of `RUN` words; of a shorter text, the whole of it."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + RUN]) for at in range(max(1, len(words) - RUN + 1))}


def strings(value: object) -> Iterator[str]:
    """Every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def test_the_first_rows_are_of_every_kind() -> None:
    rows = tuning()
    assert len({row.groups["task"] for row in rows[:5]}) == 5
    assert len({row.id for row in rows}) == len({row.prompt for row in rows}) == len(rows)
    assert [row.id for row in rows[:7]] == [r.id for r in compose([WORD]).dataset.rows(7)]


@functools.cache
def mine() -> frozenset[tuple[str, ...]]:
    return frozenset().union(*(runs(row.prompt) for row in tuning()))


@pytest.mark.parametrize("name", EVALUATED)
def test_no_prompt_of_an_evaluation_is_among_them(name: str) -> None:
    limit = 12 if name.startswith("mini-") else None
    for row in compose([f"dataset={name}"]).dataset.rows(limit):
        assert not (both := mine() & runs(row.prompt)), f"{row.id}: {both}"


@pytest.mark.skipif(not SAMPLES, reason="the samples of the datasets are not beside this checkout")
def test_nor_one_of_the_hub() -> None:
    for path in SAMPLES:
        for number, line in enumerate(path.read_text().splitlines()):
            for text in strings(json.loads(line)):
                shared = mine() & runs(text) if len(text) > 20 else set()
                assert not shared, f"{path.name} {number}: {shared}"
