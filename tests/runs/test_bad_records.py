"""Damaged records: a reader refuses them in one line with the file's name, and changes nothing."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import make_run
from malformed import damaged

from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import finished_run
from skipbench.report.frame import frame
from skipbench.report.page import readable_runs
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore, read_texts, read_turns
from skipbench.scoring.execute import score_run

JSON_FILES = ("provenance.json", "status.json", "metrics.json")
LINES = ("../turns.jsonl", "../texts.jsonl")
FILES = ("config.yaml", "../config.yaml", *JSON_FILES, *LINES)
BAD = b"a: !!python/object/apply:os.system ['touch executed']"


def readers(folder: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a run; `score` has nothing to execute here."""
    results = folder.parents[2]

    def shown() -> None:
        for error in readable_runs(results)[1]:
            raise SkipbenchError(error)

    return {
        "read_run": lambda: read_run(folder),
        "turns": lambda: read_turns(folder),
        "texts": lambda: read_texts(folder),
        "figure": lambda: finished_run(folder),
        "page": shown,
        "score": lambda: score_run(folder, "none", 1.0),
        "frame": lambda: [frame(results), frame(results, turns=True)],
    }


def refused_by(folder: Path) -> dict[str, str]:
    """Reader to text; anything but a SkipbenchError goes through and fails the test."""
    found = {}
    for name, read in readers(folder).items():
        try:
            read()
        except SkipbenchError as error:
            found[name] = str(error)
    return found


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a NUL in the last line": lambda text: text[:-3] + b"\x00\n",
    "a torn last line": lambda text: text[:-20],
    "a lost last line": lambda text: text[: text[:-1].rfind(b"\n") + 1],
    "a line too many": lambda text: text + b"garbage\n",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_done_run_is_never_repaired(kind: str, tmp_path: Path) -> None:
    """Every reader names the file, and nothing is cut off: neither a turn nor its texts. A line too
    many may be one that another arm of the row is being written in.
    """
    folder = make_run(tmp_path / "results", turns=8, scorer="code")
    for name in LINES:
        (folder / name).write_bytes(DAMAGE[kind]((folder / name).read_bytes()))
    before = {name: (folder / name).read_bytes() for name in FILES}
    told, more = refused_by(folder), kind == "a line too many"
    assert ({"turns", "figure", "page", "score", "frame"} <= told.keys()) is not more, told
    named = (text for name, text in told.items() if name != "texts")
    assert more or all("turns.jsonl has 7 whole lines" in text for text in named), told
    assert {name: (folder / name).read_bytes() for name in FILES} == before
    (folder / "status.json").write_text('{"state": "interrupted"}')
    (folder / "metrics.json").unlink()
    # begun, but not done: what was torn is cut off
    store = RunStore(folder, read_run(folder).settings)
    assert [turn.index for turn in read_turns(store.folder)] == list(range(8 if more else 7))
    store.close()


@pytest.mark.parametrize("damages", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_damaged_file_of_a_done_run_is_read_or_refused_by_name(
    damages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reader changes a file, or executes it; the first damages are refused by all."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "results", turns=4)
    rng, refused = random.Random(damages), 0
    whole = {name: (folder / name).read_bytes() for name in FILES}
    for n in range(damages):
        name = FILES[n] if n < 5 else rng.choice(FILES)
        data = BAD if n < 5 else damaged(whole[name], rng)
        (folder / name).write_bytes(data)
        told = refused_by(folder)
        refused += bool(told)
        assert n >= 5 or {"read_run", "figure", "page", "frame", "score"} <= told.keys(), name
        named = (Path(name).name, folder.name)
        assert all(any(n in text for n in named) for text in told.values()), (told, data)
        assert not any("\n" in text for text in told.values()), told
        now = {name: (folder / name).read_bytes() for name in FILES}
        assert now == whole | {name: data}, (name, data)
        (folder / name).write_bytes(whole[name])
    assert refused > 0.5 * damages and not list(tmp_path.glob("**/executed"))


def test_a_run_under_another_runs_name_is_refused_by_all_that_read_it(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / "results", seed) for seed in (0, 1))
    row = first.parent
    row.rename(tmp_path / "aside")
    second.parent.rename(row)  # `readers` are of a results folder with one run
    told = refused_by(first)
    own = f"{row} holds another run: its config.yaml has the hash {second.parent.name[-10:]}"
    assert {name for name, text in told.items() if own in text} == told.keys()
    assert told.keys() == readers(first).keys() - {"turns", "texts"}
    row.rename(mine := row.with_name("best-of-mine"))  # a name that promises nothing
    assert read_run(mine / first.name).metrics
    arm = mine / first.name
    arm.rename(other := arm.with_name(f"fixed_{'0' * 10}"))
    says = f"{other.name} holds another run: .* {arm.name[-10:]}"
    with pytest.raises(SkipbenchError, match=says):
        read_run(other)
