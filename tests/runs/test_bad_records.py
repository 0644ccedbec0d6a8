"""Records that somebody else wrote: whatever is in them, a reader gives them back or refuses with
the file's name.
"""

import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import CONFIG, SMALL, edit, make_run, sample
from conftest import unseal
from malformed import NO_JSON, NO_YAML, damaged
from msgspec.structs import replace
from rich.table import Table

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.console import Console
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.metrics.summary import summarise
from skipbench.report.figures.runs import finished_run
from skipbench.report.page import readable_runs
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs.measures import Metrics
from skipbench.runs.record import Completion, Round, Seconds, dump
from skipbench.runs.run import frame, read_run
from skipbench.runs.store import RunStore, _check_metrics, read_completions, read_samples
from skipbench.scoring.execute import score_run

JSON_FILES = ("provenance.json", "status.json", "metrics.json")
FILES = ("config.yaml", *JSON_FILES, "samples.jsonl", "completions.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose files nothing vouches for: what is wrong must show in them."""
    made = make_run(tmp_path / "results")
    unseal(made)
    return made


def readers(folder: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a run's folder; `score` has nothing to execute here."""
    results = folder.parent.parent

    def shown() -> None:
        for error in readable_runs(results)[1]:
            raise SkipbenchError(error)

    return {
        "read_run": lambda: read_run(folder),
        "samples": lambda: read_samples(folder / "samples.jsonl"),
        "completions": lambda: read_completions(folder / "completions.jsonl"),
        "figure": lambda: finished_run(folder),
        "page": shown,
        "score": lambda: score_run(folder, "none", 1.0, lambda done, of: None),
        "frame": lambda: [frame(results), frame(results, samples=True)],
        "store": lambda: RunStore(folder, CONFIG).close(),
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


@pytest.mark.parametrize("name", [*JSON_FILES, "config.yaml"])
def test_a_bad_file_is_refused_by_name_and_not_executed(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for bad in NO_JSON if name in JSON_FILES else NO_YAML:
        (folder / name).write_bytes(bad)
        told = refused_by(folder)
        assert {"read_run", "figure", "page", "frame", "score"} <= told.keys(), bad
        if name == "config.yaml":  # a store says which settings are other ones
            told.pop("store", None)
        assert all(name in text and "\x1b" not in text for text in told.values()), (bad, told)
    assert not list(tmp_path.glob("**/executed"))


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(folder, outside)
    whose = {"samples.jsonl": "samples", "completions.jsonl": "completions"}
    for name in FILES:
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        told = refused_by(folder)
        assert any(name in text for text in told.values()), name
        assert "symbolic link" in told[whose.get(name, "read_run")]
        (folder / name).unlink()
        shutil.copy(outside / name, folder / name)
    assert refused_by(folder) == {}
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    told = refused_by(folder)
    assert told.keys() == readers(folder).keys()
    assert all("symbolic link" in text for text in told.values()), told
    folder.unlink()
    (tmp_path / "others").mkdir()
    folder.parent.rmdir()
    folder.parent.symlink_to(tmp_path / "others")
    for read in (frame, readable_runs):
        with pytest.raises(SkipbenchError, match="symbolic link"):
            read(tmp_path / "results")


def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    for name in ("samples.jsonl", "completions.jsonl", ".lock", "status.json", "metrics.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(victim)
        try:
            store = RunStore(folder, CONFIG)
            try:
                store.append(sample(9), Completion(9, "s9", "p", {}, "a", "b"))
                store.status("done")
                store.write_metrics(Metrics())
            finally:
                store.close()
        except SkipbenchError:
            pass
        assert victim.read_text() == "mine\n", name
        (folder / name).unlink(missing_ok=True)


def test_names_with_control_characters_are_refused(folder: Path) -> None:
    for name in ("a\nb", "\x1b[2J", "a\x07", b"\xff\xfe".decode(errors="surrogateescape")):
        folder = folder.rename(folder.with_name(name))
        told = refused_by(folder)
        assert told.keys() == readers(folder).keys()
        assert all(text.isprintable() for text in told.values()), told
        runs, (error,) = readable_runs(folder.parent.parent)
        assert not runs and error.isprintable()


def test_a_record_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    line = dump(sample(0))
    for key, more in (
        ('"index":0', '"index":0,'), ('"index":0', '"index":5, '),
        ('"threshold":', '"threshold":1.5,'), ('"prefill":', '"prefill":1,'),
    ):  # fmt: skip
        twice = line.replace(key, more + key)
        (tmp_path / "samples.jsonl").write_text(f"{twice}\n{dump(sample(1))}\n")
        with pytest.raises(SkipbenchError, match=r"samples\.jsonl, line 1: .*twice"):
            read_samples(tmp_path / "samples.jsonl")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a NUL in the last line": lambda text: text[:-3] + b"\x00\n",
    "a torn last line": lambda text: text[:-20],
    "a lost last line": lambda text: text[: text[:-1].rfind(b"\n") + 1],
    "a line too many": lambda text: text + b"garbage\n",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_done_run_is_never_repaired(kind: str, tmp_path: Path) -> None:
    """Every reader names the file, and nothing is cut off: neither a sample nor its completion."""
    folder = make_run(tmp_path / "results", samples=8, scorer="code")
    unseal(folder)
    for name in ("samples.jsonl", "completions.jsonl"):
        (folder / name).write_bytes(DAMAGE[kind]((folder / name).read_bytes()))
    before = {name: (folder / name).read_bytes() for name in FILES}
    told = refused_by(folder)
    assert {"samples", "figure", "page", "score", "frame"} <= told.keys(), told
    named = (text for name, text in told.items() if name not in ("completions", "store"))
    assert all("samples.jsonl, line" in text for text in named), told
    assert {name: (folder / name).read_bytes() for name in FILES} == before
    (folder / "status.json").write_text('{"state": "interrupted"}')
    (folder / "metrics.json").unlink()
    # begun, but not done: what was torn is cut off
    store = RunStore(folder, read_run(folder).settings)
    assert [s.index for s in store.samples()] == list(range(8 if kind == "a line too many" else 7))
    store.close()


COMMANDS = ("read_run", "samples", "figure", "page", "score", "frame")


def numbers(folder: Path) -> dict[str, Any]:
    """All that commands show of a run's records; raises where a command refuses."""
    shown = readers(folder)
    for name in COMMANDS:
        shown[name]()
    state, ((run,), _) = read_run(folder), readable_runs(folder.parent.parent)
    return {
        "metrics": state.metrics, "config": state.settings, "page": markdown(row_table([run])),
        "provenance": state.provenance,
        "samples": read_samples(folder / "samples.jsonl"),
        "texts": read_completions(folder / "completions.jsonl"),
    }  # fmt: skip


@pytest.mark.parametrize("damages", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_damage_to_a_finished_run_goes_unseen(damages: int, tmp_path: Path) -> None:
    """Each command gives the numbers that the run had, or names the file; nothing is changed."""
    folder = make_run(tmp_path / "results", samples=4)
    rng, wanted, refused = random.Random(damages), numbers(folder), 0
    whole = {name: (folder / name).read_bytes() for name in FILES}
    for _ in range(damages):
        name = rng.choice(FILES)
        data = damaged(whole[name], rng)
        (folder / name).write_bytes(data := data if data != whole[name] else data + b"\n")
        try:
            assert numbers(folder) == wanted, (name, data)
        except SkipbenchError as error:
            refused += 1
            # a seal that is damaged names the file that it is of
            assert name in str(error) or name == "status.json", (error, data)
            assert str(folder) in str(error) or folder.name in str(error), error
        assert (folder / name).read_bytes() == data, name
        for file in folder.iterdir():
            assert file.name not in FILES or file.name == name or (
                file.read_bytes() == whole[file.name]
            ), (name, data, file)  # fmt: skip
        (folder / name).write_bytes(whole[name])
    assert refused > 0.7 * damages


def test_figures_that_the_samples_do_not_give_are_refused(tmp_path: Path) -> None:
    """Of a run of an earlier version, which has no seal."""
    folder = make_run(tmp_path / "results", scorer="code")
    unseal(folder)
    assert "samples" not in refused_by(folder)
    edit(folder / "metrics.json", M=2.1)
    told = refused_by(folder)
    assert {"samples", "figure", "page", "score", "frame"} <= told.keys()
    assert all("metrics.json says" in told[name] for name in ("samples", "score"))


def test_figures_are_checked_by_the_definitions_of_the_metrics(tmp_path: Path) -> None:
    one, two = sample(0), sample(1)
    rounds = [Round(3, 3, 2, 2, 3), Round(0, 0, 0, 0, 1), Round(2, 5, 0, 0, 1)]
    faster = replace(one.method, rounds=rounds, seconds=Seconds(0, 0.1, 0.1, 0, 0))
    samples = [one, replace(two, method=faster)]
    metrics = summarise(samples, 4, None, None, None)
    _check_metrics(tmp_path, metrics, samples)
    speedup = replace(metrics.speedup, paired=1.01 * (metrics.speedup.paired or 0))
    others = {name: 1.01 * getattr(metrics, name) for name in ("M", "alpha", "tokens_per_s")}
    for name, other in {**others, "speedup": speedup}.items():
        with pytest.raises(SkipbenchError, match=name):
            _check_metrics(tmp_path, replace(metrics, **{name: other}), samples)


def test_metrics_of_more_samples_are_refused_in_a_failed_run(folder: Path) -> None:
    (folder / "status.json").write_text('{"state": "failed"}')
    lines = (folder / "samples.jsonl").read_bytes()
    (folder / "samples.jsonl").write_bytes(lines[: lines.find(b"\n") + 1])
    told = refused_by(folder)
    assert {"samples", "page", "frame"} <= told.keys()
    del told["figure"]
    assert all("samples.jsonl, line 2: 1 whole lines" in text for text in told.values()), told


@pytest.mark.slow
def test_the_commands_of_a_damaged_cell_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "limit=2", "method=uniform", "dataset=mini-math"]
    command = ["tiny", *words, f"results={tmp_path}"]
    dispatch(["table", *command])
    (path,) = tmp_path.glob("runs/*/samples.jsonl")
    path.write_bytes(before := DAMAGE["a NUL in the last line"](path.read_bytes()))
    for more in ([], ["--render-only"]):
        with pytest.raises(SystemExit):
            dispatch(["table", *command, *more])
        assert "samples.jsonl, line 2" in capsys.readouterr().err
        assert "samples.jsonl, line 2" in (tmp_path / "tables" / "tiny.md").read_text()
    with pytest.raises(SkipbenchError, match=r"samples\.jsonl, line 2"):
        run_cell(compose(command[1:]))
    assert path.read_bytes() == before


def test_a_terminal_keeps_its_own_colours_and_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=40)
    console.print("a\n\x1bb\ud800", style="red", markup=False)
    grid = Table.grid()
    grid.add_row("\x1b[2J")
    console.print(grid)
    told, _, last = out.getvalue().rpartition("\x1b[0m\n")
    assert told == "\x1b[31ma\x1b[0m\n\x1b[31m\\x1bb\\ud800" and last.strip().isprintable()
