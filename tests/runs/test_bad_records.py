"""Records that somebody else wrote: whatever is in them, a reader gives them back or refuses with
the file's name.
"""

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from conftest import unseal
from msgspec.structs import replace
from rich.table import Table
from test_runs import sample

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.console import Console
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.metrics.summary import summarise
from skipbench.report.figures.runs import finished_run
from skipbench.report.page.collect import all_runs, one_run
from skipbench.runs.measures import Metrics
from skipbench.runs.merge import merge_into
from skipbench.runs.provenance import Provenance, config_hash
from skipbench.runs.record import Completion, Round, Seconds, dump
from skipbench.runs.run import frame, read_run
from skipbench.runs.store import RunStore, _check_metrics, read_completions, read_samples
from skipbench.scoring.execute import score_run

CONFIG: dict[str, Any] = {
    "model": {"name": "tiny", "dtype": "float32", "device": "cpu"},
    "method": {"name": "fixed"},
    "dataset": {"name": "mini-code", "scorer": "none"},
    "engine": {"name": "fused", "threads": 1},
    "seed": 0,
}
METRICS = {
    "samples": 2, "M": 2.0, "alpha": 0.25, "speedup": {"paired": 1.0, "ci95": [0.9, 1.1]},
    "seconds": {"draft": 0.1},
    "lossless": {"identical": 2, "ties": 0, "diverged": 0, "sampled": 0, "failed": 0}, "score": {},
}  # fmt: skip
JSON_FILES = ("provenance.json", "status.json", "metrics.json")
FILES = ("config.yaml", *JSON_FILES, "samples.jsonl", "completions.jsonl")


def make_run(
    results: Path,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    samples: int = 2,
    scorer: str = "none",
) -> Path:
    config = CONFIG | {"seed": seed, "dataset": CONFIG["dataset"] | {"scorer": scorer}}
    folder = results / "runs" / f"tiny_fixed_mini-code_{config_hash(config)}"
    store = RunStore(
        folder,
        config,
        msgspec.convert(
            provenance or {"commit": "0123abc", "device": "cpu", "versions": {"torch": "2"}},
            Provenance,
        ),
    )
    for index in range(samples):
        store.append(
            replace(sample(index), skip="attn:1"),
            Completion(index, f"s{index}", "p", {}, "a", "b"),
        )
    store.write_metrics(msgspec.convert(METRICS | {"samples": samples}, Metrics))
    store.status("done")
    store.close()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose files nothing vouches for: what is wrong must show in them."""
    made = make_run(tmp_path / "results")
    unseal(made)
    return made


def readers(folder: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a run's folder; `score` has nothing to execute here."""
    results, target = folder.parent.parent, folder.parent.parent.parent / "target"

    def merged() -> None:
        shutil.rmtree(target, ignore_errors=True)
        if left := merge_into(results, target).left:
            raise SkipbenchError("; ".join(left))

    def shown() -> None:
        (found,) = all_runs(results)
        if found.error:
            raise SkipbenchError(found.error)

    return {
        "read_run": lambda: read_run(folder),
        "samples": lambda: read_samples(folder / "samples.jsonl"),
        "completions": lambda: read_completions(folder / "completions.jsonl"),
        "figure": lambda: finished_run(folder),
        "page": shown,
        "score": lambda: score_run(folder, "none", 1.0, lambda done, of: None),
        "merge": merged,
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


def test_a_sound_run_is_read_by_all(folder: Path) -> None:
    assert refused_by(folder) == {}


BAD_JSON = {
    "no JSON": b"{",
    "a list": b"[]",
    "not a number": b'{"M": NaN, "state": "done", "dirty": Infinity}',
    "out of range": b'{"M": 1e400, "state": "done", "dirty": 1e400}',
    "5000 digits": b'{"state": "done", "x": ' + b"9" * 5000 + b"}",
    "65 bits": b'{"state": "done", "x": 18446744073709551616}',
    "twice": b'{"state": "done", "state": "failed"}',
    "twice below": b'{"state": "done", "x": {"a": 1, "a": 2}}',
    "deep": b'{"state": "done", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no UTF-8": b'{"state": "d\xff"}',
    "wrong types": b'{"state": 7, "M": "high", "commit": ["a"]}',
    "control characters": b'{"state": "\\u001b[2J", "M": [], "host": "\\u001b[2J"}',
}


@pytest.mark.parametrize("bad", BAD_JSON)
@pytest.mark.parametrize("name", JSON_FILES)
def test_bad_json_is_refused_with_the_file(name: str, bad: str, folder: Path) -> None:
    (folder / name).write_bytes(BAD_JSON[bad])
    told = refused_by(folder)
    assert {"read_run", "figure", "page", "merge", "frame", "score"} <= told.keys()
    assert all(name in text and "\x1b" not in text for text in told.values()), told


@pytest.mark.parametrize(
    "bad",
    [
        "a: !!python/object/apply:os.system ['touch executed']",
        "a: !!python/name:os.system",
        "model: !!python/object/new:os.system [touch executed]",
        "a: [unclosed",
        "- 1",
        "a: &x [1]\nb: *x",
        "a: " + "9" * 5000,
        "a: " + "[" * 100_000,
        "model: {name: [tiny]}",
        'model: {name: "\\e[2J", dtype: float32, device: cpu}',
        "model: tiny",
        "\xff",
    ],
)
def test_bad_settings_are_refused_and_not_executed(
    bad: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "config.yaml").write_bytes(bad.encode("latin-1"))
    told = refused_by(folder)
    assert {"read_run", "figure", "page", "merge", "frame", "score"} <= told.keys()
    assert all(
        "config.yaml" in text and "\x1b" not in text
        for name, text in told.items()
        if name != "store"
    ), told
    assert not list(tmp_path.glob("**/executed"))


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(folder, outside)
    for name in FILES:
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        told = refused_by(folder)
        assert any(name in text for text in told.values()), name
        wanted = {"samples.jsonl": "samples", "completions.jsonl": "completions"}.get(
            name, "read_run"
        )
        assert "symbolic link" in told[wanted]
        (folder / name).unlink()
        shutil.copy(outside / name, folder / name)
    assert refused_by(folder) == {}
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    told = refused_by(folder)
    assert told.keys() == readers(folder).keys() and all(
        "symbolic link" in text for text in told.values()
    ), told
    folder.unlink()
    (tmp_path / "others").mkdir()
    folder.parent.rmdir()
    folder.parent.symlink_to(tmp_path / "others")
    for read in (lambda: frame(tmp_path / "results"), lambda: all_runs(tmp_path / "results")):
        with pytest.raises(SkipbenchError, match="symbolic link"):
            read()


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


def test_a_pipe_is_no_record_and_nobody_waits_for_it(folder: Path) -> None:
    (folder / "metrics.json").unlink()
    os.mkfifo(folder / "metrics.json")
    with pytest.raises(SkipbenchError, match=r"metrics\.json is no regular file"):
        read_run(folder)


@pytest.mark.parametrize(
    "name", ["a\nb", "\x1b[2J", "a\x07", b"\xff\xfe".decode(errors="surrogateescape")]
)
def test_names_with_control_characters_are_refused(name: str, folder: Path) -> None:
    odd = folder.with_name(name)
    folder.rename(odd)
    told = refused_by(odd)
    assert told.keys() == readers(odd).keys()
    assert all(text.isprintable() for text in told.values()), told
    (row,) = all_runs(odd.parent.parent)
    assert row.id.isprintable() and "cannot be read" in row.cells["note"]


VALUES: list[Any] = [
    None, True, -1, 0, 1e308, -0.5, 2**63, 2**70, "", "x" * 5000, "\x1b[2J\n", "\ud800", [], [[]],
    {}, {"a": {}}, [1, "a"], float("nan"),
    float("inf"), -(10**400),
]  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """`value` with one thing in it replaced, taken away, renamed or put in twice."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        kind = rng.randrange(6)
        if kind == 0:
            return rest
        return (
            rest | {key + "x": value[key]} if kind == 1 else value | {key: mutated(value[key], rng)}
        )
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(value[at], rng), *value[at + rng.randrange(2) :]]
    return rng.choice(VALUES)


def damaged(text: bytes, rng: random.Random) -> bytes:
    """`text` with some bytes changed, cut out or doubled."""
    at, size = rng.randrange(len(text)), rng.randrange(1, 30)
    with_it = [
        rng.randbytes(size),
        b"",
        text[at : at + size] * 2,
        b"1e999",
        b"\xff",
        b'"',
        b"[" * 3000,
    ]
    return text[:at] + rng.choice(with_it) + text[at + rng.randrange(size) :]


def fuzzed(name: str, data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return damaged(data, rng)
    lines = data.split(b"\n")
    at = rng.randrange(max(1, len(lines) - 1)) if name.endswith(".jsonl") else 0
    raw = (
        yaml.safe_load(data)
        if name == "config.yaml"
        else json.loads(lines[at] if name.endswith("l") else data)
    )
    try:
        new = json.dumps(mutated(raw, rng)).encode()
    except ValueError:  # a number of more digits than Python writes
        new = b'{"index": ' + b"1" * 5000 + b"}"
    return b"\n".join([*lines[:at], new, *lines[at + 1 :]]) if name.endswith(".jsonl") else new


@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow
def test_fuzzed_records_are_read_or_refused_with_the_file(name: str, folder: Path) -> None:
    """Nothing but SkipbenchError leaves a reader; what is refused is refused by the frame too; what
    is read has its types.
    """
    rng = random.Random(f"fuzz/{name}")
    whole, refused = (folder / name).read_bytes(), 0
    for _ in range(30):
        (folder / name).write_bytes(data := fuzzed(name, whole, rng))
        told = refused_by(folder)
        assert all("\x1b" not in text for text in told.values()), (data, told)
        refused += bool(told)
        if name == "samples.jsonl":
            assert ("samples" in told) == ("frame" in told) == ("merge" in told), (data, told)
            assert all(
                "samples.jsonl, line" in told[k] for k in ("samples", "frame") if k in told
            ), (data, told)
            if "samples" not in told:
                found = read_samples(folder / name)
                assert all(type(t) is int for s in found for t in s.vanilla.tokens), data
        elif name == "completions.jsonl":
            assert "completions.jsonl, line" in told.get(
                "completions", "completions.jsonl, line"
            ), told
        elif "read_run" in told:
            assert name in told["read_run"] and name in told["frame"], (data, told)
        (folder / name).write_bytes(whole)
    assert refused > 10, "the fuzzer hit nothing"
    assert refused_by(folder) == {}


def test_a_record_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    line = dump(sample(0))
    for twice in (
        line.replace('"index":0', '"index":0,"index":0'),
        line.replace('"index":0', '"index":5, "index":0'),
        line.replace('"threshold":', '"threshold":1.5,"threshold":'),
        line.replace('"prefill":', '"prefill":1,"prefill":'),
    ):
        assert twice != line
        (tmp_path / "samples.jsonl").write_text(f"{twice}\n{dump(sample(1))}\n")
        with pytest.raises(SkipbenchError, match=r"samples\.jsonl, line 1: .*twice"):
            read_samples(tmp_path / "samples.jsonl")


def test_commands_refuse_too(folder: Path, tmp_path: Path) -> None:
    (folder / "metrics.json").write_text('{"M": "high"}')
    results = folder.parent.parent
    for call in (
        lambda: dispatch(["merge", str(results), f"results={tmp_path / 'other'}"]),
        lambda: dispatch(["figure", str(folder)]),
    ):
        with pytest.raises(SkipbenchError, match=r"metrics\.json"):
            call()
    bad = tmp_path / "swift-table2.json"
    for text in (
        "{",
        "[]",
        '{"experiment": "swift-table2", "scale": "paper", "runs": "x"}',
        '{"experiment": [1]}',
    ):
        bad.write_text(text)
        with pytest.raises(SkipbenchError, match=r"swift-table2\.json"):
            dispatch(["table", str(bad)])


def test_the_page_shows_a_bad_run_as_a_row(folder: Path) -> None:
    (folder / "status.json").write_text("{")
    found = one_run(folder)
    assert "status.json cannot be read" in found.cells["note"]


@pytest.fixture(autouse=True)
def nothing_is_written_outside(tmp_path: Path) -> Iterator[None]:
    yield
    assert not (tmp_path / "executed").exists()


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
    assert {"samples", "figure", "page", "score", "merge", "frame"} <= told.keys(), told
    assert all(
        "samples.jsonl, line" in text
        for name, text in told.items()
        if name not in ("completions", "store")
    ), told
    assert {name: (folder / name).read_bytes() for name in FILES} == before
    shutil.rmtree(tmp_path / "target", ignore_errors=True)
    (folder / "status.json").write_text('{"state": "interrupted"}')
    (folder / "metrics.json").unlink()
    # begun, but not done: what was torn is cut off
    store = RunStore(folder, read_run(folder).settings)
    assert [s.index for s in store.samples()] == list(range(8 if kind == "a line too many" else 7))
    store.close()


COMMANDS = ("read_run", "samples", "figure", "page", "score", "merge", "frame")


def any_damage(text: bytes, rng: random.Random) -> bytes:
    """A bit, a digit, a line or a range changed; the result differs."""
    lines = text.splitlines(keepends=True)
    at, line = rng.randrange(len(text)), rng.randrange(len(lines))
    digits = [n for n, byte in enumerate(text) if byte in b"0123456789"]
    digit = rng.choice(digits or [at])
    new = rng.choice(
        (
            text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :],
            text[:digit] + b"%d" % rng.randrange(10) + text[digit + 1 :],
            b"".join(lines[:line] + lines[line + 1 :]),
            b"".join(lines[: line + 1] + lines[line:]),
            text[:at] + bytes(rng.randrange(1, 60)) + text[at:],
            text[:at],
            text[:at] + text[at + rng.randrange(1, 60) :],
        )
    )
    return new if new != text else text + b"\n"


def numbers(folder: Path) -> dict[str, Any]:
    """All that commands show of a run's records; raises where a command refuses."""
    shown = readers(folder)
    for name in COMMANDS:
        shown[name]()
    state, (row,) = read_run(folder), all_runs(folder.parent.parent)
    merged = folder.parent.parent.parent / "target" / "runs" / folder.name
    return {
        "metrics": state.metrics, "config": state.settings, "page": row.cells,
        "provenance": state.provenance,
        "samples": read_samples(folder / "samples.jsonl"),
        "texts": read_completions(folder / "completions.jsonl"),
        "merged": [read_samples(merged / "samples.jsonl"), read_run(merged).metrics],
    }  # fmt: skip


@pytest.mark.parametrize("damages", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_damage_to_a_finished_run_goes_unseen(damages: int, tmp_path: Path) -> None:
    """Each command gives the numbers that the run had, or names the file; nothing is changed."""
    folder = make_run(tmp_path / "results", samples=4)
    rng, wanted, refused = random.Random(damages), numbers(folder), 0
    whole = {name: (folder / name).read_bytes() for name in FILES}
    for _ in range(damages):
        name = rng.choice(FILES)
        (folder / name).write_bytes(data := any_damage(whole[name], rng))
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


OTHER_FIGURES: list[dict[str, Any]] = [
    {"M": 2.1}, {"alpha": 0.3}, {"tokens_per_s": 5.0}, {"tokens_per_s_vanilla": 3.0},
    {"speedup": {"paired": 9.87}},
]  # fmt: skip


@pytest.mark.parametrize("other", OTHER_FIGURES, ids=str)
def test_figures_that_the_samples_do_not_give_are_refused(
    other: dict[str, Any], tmp_path: Path
) -> None:
    """Of a run of an earlier version, which has no seal."""
    folder = make_run(tmp_path / "results", scorer="code")
    unseal(folder)
    assert "samples" not in refused_by(folder)
    (folder / "metrics.json").write_text(json.dumps(METRICS | other))
    told = refused_by(folder)
    assert {"samples", "figure", "page", "score", "merge", "frame"} <= told.keys()
    assert all("metrics.json says" in told[name] for name in ("samples", "score", "merge"))


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
    assert {"samples", "page", "merge", "frame"} <= told.keys()
    assert all(
        "samples.jsonl, line 2: 1 whole lines" in text
        for name, text in told.items()
        if name != "figure"
    ), told


@pytest.mark.slow
def test_the_commands_of_a_damaged_cell_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "limit=2",
        "dataset.max_new_tokens=8",
        "engine.warmup=0",
        "method=uniform",
        "dataset=mini-math",
    ]
    command = ["tiny", *words, f"results={tmp_path}"]
    dispatch(["table", *command])
    (path,) = tmp_path.glob("runs/*/samples.jsonl")
    path.write_bytes(before := DAMAGE["a NUL in the last line"](path.read_bytes()))
    for more in ([], ["--render-only"]):
        with pytest.raises(SystemExit):
            dispatch(["table", *command, *more, "--force"])
        assert "samples.jsonl, line 2" in capsys.readouterr().err
        assert "samples.jsonl, line 2" in (tmp_path / "tables" / "tiny.md").read_text()
    with pytest.raises(SkipbenchError, match=r"samples\.jsonl, line 2"):
        run_cell(compose(command[1:]))
    assert path.read_bytes() == before


def test_texts_are_kept_as_they_are(tmp_path: Path) -> None:
    odd = Completion(
        0,
        "é\u2028",
        "\x1b\x00",
        {"a": [1]},
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        "",
    )
    (tmp_path / "completions.jsonl").write_text(dump(odd) + "\n")
    assert read_completions(tmp_path / "completions.jsonl") == {0: odd}


def test_no_text_of_a_summary_steers_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {
        "model": "\x1b[2J",
        "method": "\x9b2J",
        "dataset": "\u202ed",
        "keys": {},
        "metrics": None,
    }
    run |= {"stands_for": None, "reason": "\x1b]0;mine\x07", "provenance": {}}
    (tmp_path / "methods.json").write_text(
        json.dumps({"experiment": "methods", "scale": "embedded", "runs": [run]})
    )
    dispatch(["table", str(tmp_path / "methods.json"), "columns=all"])
    told = capsys.readouterr().out
    assert all(shown in told for shown in ("?[2J", "?2J", "?d", "?]0;mine?"))
    assert all(line.isprintable() for line in told.split("\n"))


def test_a_terminal_keeps_its_own_colours_and_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=40)
    console.print("a\n\x1bb\ud800", style="red", markup=False)
    grid = Table.grid()
    grid.add_row("\x1b[2J")
    console.print(grid)
    told, _, last = out.getvalue().rpartition("\x1b[0m\n")
    assert told == "\x1b[31ma\x1b[0m\n\x1b[31m\\x1bb\\ud800" and last.strip().isprintable()
