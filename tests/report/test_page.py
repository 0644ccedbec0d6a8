"""The page of a results folder: what is in it, that nothing in it runs or loads, and that a browser
shows and filters it.
"""

import contextlib
import copy
import html
import json
import os
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import quote

import pytest
from conftest import ROOT, Command, rest_slow, unseal
from msgspec import convert, structs

from skipbench.cli.main import main
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.report.definitions import DEFINITIONS
from skipbench.report.page.collect import (
    COLUMNS,
    all_runs,
    as_script,
    courses,
    kinds_of,
    letters_of,
    pieces_of,
    skip_sets,
)
from skipbench.report.page.render import page, watched, write_page
from skipbench.report.tables.stored import summary
from skipbench.runs.reading import MOST_BYTES
from skipbench.runs.record import Arm, Round, Sample, Seconds
from skipbench.runs.run import Run, read_run
from skipbench.runs.store import read_completions, read_samples

EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)> & \u2028"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs, a table and a figure."""
    folder = tmp_path_factory.mktemp("results")
    short = ["limit=2", "engine.warmup=0", "dataset.max_new_tokens=24"]
    for method in ("self-sd", "swift"):
        run_cell(compose([f"method={method}", *short, f"results={folder}"]), print_table=False)
    for name in ("tables", "figures"):
        (folder / name).mkdir()
    committed = ROOT / "results" / "embedded" / "tables" / "clasp-table1.embedded.json"
    kept = json.loads(committed.read_text())
    swift = next(folder.glob("runs/*swift*"))
    about = next(run for run in kept["runs"] if run["method"] == "swift")
    measured = read_run(swift).metrics
    real = structs.replace(convert(about, Run), id=swift.name, metrics=measured)
    real = structs.replace(real, reason=EVIL, stands_for=EVIL)
    # a paper's, and one of no paper, which has no HTML of its own
    for name in ("clasp-table1", "methods"):
        made = summary(name, "embedded", [real])
        (folder / "tables" / f"{name}.json").write_text(made)
    # made from its summary, and from what the methods declare
    for name in ("clasp-table1", "swift-table1"):
        (folder / "tables" / f"{name}.html").write_text("<svg/onload=alert(1)> foreign")
    (swift / "figures").mkdir()  # of the run alone
    for path in (folder / "figures" / "swift-figure8.svg", swift / "figures" / "course.svg"):
        path.write_text('<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>')
    return folder


@pytest.fixture(scope="module")
def text(results: Path) -> str:
    path, counts, _ = write_page(results)
    assert counts == {"runs": 2, "tables": 3, "figures": 2}
    return path.read_text()


def arm(tokens: int, rounds: list[Round]) -> Arm:
    return Arm(list(range(tokens)), rounds, Seconds(0.1, 0.2, 0.3, 0.0, 0.1), "length")


def sample(index: int, rounds: list[Round], trace: dict[str, Any]) -> Sample:
    tokens, order = 1 + sum(r.emitted for r in rounds), ["vanilla", "method"]
    both = (arm(tokens, []), arm(tokens, rounds))
    return Sample(index, f"s{index}", "h", 3, order, *both, "identical", trace=trace)


class Loads(HTMLParser):
    """Addresses that a browser would load or follow, and event attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.events: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loaded = ("src", "href", "srcset", "action", "data")
        self.addresses += [v or "" for k, v in attrs if k in loaded]
        self.events += [k for k, _ in attrs if k.startswith("on")]


def details(document: str) -> dict[str, Any]:
    script = r'<script type="application/json" data-detail="([^"]*)">(.*?)</script>'
    found = re.findall(script, document, re.S)
    return {html.unescape(name): json.loads(body) for name, body in found}


def test_content(text: str, results: Path) -> None:
    folders, found = [*(results / "runs").iterdir()], details(text)
    assert found.keys() == {folder.name for folder in folders}
    for folder in folders:
        metrics, of = json.loads((folder / "metrics.json").read_text()), found[folder.name]
        assert of["metrics"] == metrics and f"{metrics['speedup']['e2e']:.2f}x (" in text
        assert {"draft length", "threshold"} <= {c["name"] for c in of["courses"]}
        assert of["skip"]["layers"] == 12 and of["config"]["model"]["name"] == "tiny"
        assert of["provenance"]["python"]
    # no sweep, no points
    assert all((f">{column}</button>" in text) == (column != "point") for column in COLUMNS)
    assert all(sentence in html.unescape(text) for sentence in DEFINITIONS.values())
    shown = ["CLaSp Table 1", "Experiment methods", "swift Table 1: features"]
    shown += ["these are not replications", 'alt="Figure swift-figure8"']
    assert all(name in text for name in shown)


def test_the_page_says_what_it_is_about(text: str, results: Path) -> None:
    run = all_runs(results)[0]
    date = run.cells["date"]
    line = f"2 runs of tiny: self-sd, swift on mini-stories, measured on cpu, {date}."
    assert f'<p id="about">{line}</p>' in text and COLUMNS[:3] == ("model", "method", "speedup")
    other = structs.replace(run, cells=run.cells | {"model": "llama3-8b", "dataset": "cnndm"})
    assert "1 of the 2 runs: made with the embedded model" in page([run, other], {}, {})
    assert "of the 2 runs" not in text


def test_report_names_a_damaged_run_and_exits_1(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "runs", tmp_path / "runs")
    sound, damaged = sorted((tmp_path / "runs").iterdir())
    (damaged / "metrics.json").write_text("{")
    with pytest.raises(SystemExit) as left:
        main(["report", f"results={tmp_path}"])
    (line,) = (a for a in capsys.readouterr().err.splitlines() if "cannot be read" in a)
    top = (tmp_path / "report.html").read_text().partition("<main>")[0]
    assert left.value.code == 1
    for told in (line, top):
        assert damaged.name in told and "metrics.json" in told and sound.name not in told


def test_many_unreadable_runs_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(8):
        (folder := tmp_path / "runs" / f"torn{number}").mkdir(parents=True)
        (folder / "metrics.json").write_text("{")
    with pytest.raises(SystemExit):
        main(["report", f"results={tmp_path}"])
    said = capsys.readouterr().err
    assert "8 of 8 runs cannot be read: torn0: " in said and "; 3 more, see the page" in said
    assert "torn4" in said and "torn5" not in said


def test_a_page_of_tables_alone_has_no_table_of_runs(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "tables", tmp_path / "tables")
    document = write_page(tmp_path)[0].read_text()
    assert '<section id="overview" hidden>' in document and 'href="#overview"' not in document
    assert document.count(f"<dd>{html.escape(DEFINITIONS['M'])}</dd>") == 1


def test_texts_are_the_completions(results: Path, text: str) -> None:
    for folder in (results / "runs").iterdir():
        completions = read_completions(folder / "completions.jsonl").values()
        shown = details(text)[folder.name]["texts"]
        assert [t["how"] for t in shown] == ["pieces"] * 2
        records = read_samples(folder / "samples.jsonl")
        for completion, one, record in zip(completions, shown, records, strict=True):
            assert "".join(piece[2] for piece in one["pieces"]) == completion.method
            assert sum(completion.token_chars) == len(completion.method)
            kept = sum(count for kind, count, *_ in one["pieces"] if kind != "rejected")
            assert kept == len(record.method.tokens)
            assert all(piece[2] for piece in one["pieces"] if piece[0] == "accepted")


def test_a_run_of_a_sweep_shows_its_point(results: Path, tmp_path: Path) -> None:
    """A page of the runs, of which SWIFT's belongs to a sweep."""
    shutil.copytree(results / "runs", tmp_path / "runs")
    (path,) = tmp_path.glob("runs/*swift*/provenance.json")
    unseal(path.parent)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"label": "method.window=<4>"}))
    document = write_page(tmp_path)[0].read_text()
    assert ">point</button>" in document and "<dt>point</dt>" in document
    rows = re.findall(r'<tr data-run="([^"]*)">(.*?)</tr>', document)
    points = {name: row.split("</td><td>")[3].partition("</td>")[0] for name, row in rows}
    assert sorted(points.values()) == ["", "method.window=&lt;4&gt;"]
    assert all(("swift" in name) == bool(point) for name, point in points.items())


def test_nothing_outside_is_loaded(text: str) -> None:
    parser = Loads()
    parser.feed(text)
    assert parser.addresses and all(a.startswith(("#", "data:")) for a in parser.addresses)
    assert not parser.events
    assert "foreign" not in text and "<svg/onload" not in text
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|WebSocket|<script[^>]+src", text)
    assert json.loads(as_script(EVIL)) == EVIL and not re.search("[<>&\u2028]", as_script(EVIL))


def test_same_records_same_bytes(results: Path, text: str) -> None:
    assert write_page(results)[0].read_text() == text


def test_pieces_of_rounds() -> None:
    # the last was cut at the limit
    one = arm(9, [Round(3, 3, 2, 2, 3), Round(2, 2, 0, 0, 1), Round(4, 4, 4, 4, 4)])
    kinds = kinds_of(one)
    named = [f"{kind} {count}" for kind, count, _ in kinds]
    first = ["prefill 1", "accepted 2", "rejected 1", "bonus 1"]
    assert named == [*first, "rejected 2", "bonus 1", "accepted 4"]
    # the second token is inside a character, and the last gets whatever is left
    pieces, how = pieces_of(one, "abcdefghi", [1, 0, 2, 1, 1, 1, 1, 1, 0])
    assert how == "pieces"
    assert [p[2] for p in pieces] == ["a", "bc", "", "d", "", "e", "fghi"]
    # of an earlier version
    assert pieces_of(one, "abcdefghi", []) == ([["rest", 9, "abcdefghi", ""]], "text")
    pieces, how = pieces_of(one, None, [])
    assert how == "counts" and {p[2] for p in pieces} == {""}
    assert kinds_of(arm(3, [])) == [("prefill", 1, ""), ("rest", 2, "")]


def test_accepted_tokens_by_their_sources() -> None:
    # the record of a round, cut at the limit, names four accepted tokens, of which one is emitted
    one = arm(6, [Round(4, 6, 3, 3, 4), Round(4, 4, 4, 4, 1)])
    letters = letters_of({"source": ["ssr", "ddbo"]})
    accepted = [kind for kind in kinds_of(one, letters) if kind[0] == "accepted"]
    assert accepted == [("accepted", 2, "s"), ("accepted", 1, "r"), ("accepted", 1, "d")]
    assert kinds_of(one, ["ssr"])[-1] == ("accepted", 1, "")
    others: list[dict[str, Any]] = [{}, {"source": "sd"}, {"source": [["s"]]}, {"source": ["x"]}]
    assert not any(letters_of(trace) for trace in others)


def test_courses_and_maps() -> None:
    rounds = [Round(3, 5, 2, 2, 3), Round(1, 1, 1, 1, 2)]
    sets = [[0, "attn:1"], [1, "attn:1;mlp:2"]]
    first = sample(0, rounds, {"skip": sets, "cosine": [[0.5, 0.7], [0.9, 0.9]]})
    more = {"words": ["a", "b"], "same": [2, 2]}
    second = sample(1, rounds, {"skip": [[0, "attn:1;mlp:2"]], "cosine": [[1.0, 1.0]], **more})
    found = {c["name"]: c for c in courses([first, second])}
    assert found["draft length"]["values"] == [3, 1, 3, 1]
    assert found["draft length"]["starts"] == [0, 2] and found["accepted"]["values"] == [2, 1, 2, 1]
    assert found["cosine"]["values"] == [0.6, 0.9, 1.0]
    assert found.keys().isdisjoint({"words", "skip", "zeros"})
    sets = skip_sets([first, second], 4)
    assert sets == {"layers": 4, "of": 2, "sets": [[0, 0, [1], []], [0, 1, [1], [2]]]}
    assert skip_sets([sample(0, rounds, {})], 4) is None
    assert skip_sets([first], None) is None


def test_runs_that_cannot_be_read_or_are_not_done(tmp_path: Path) -> None:
    broken, failed, empty = (tmp_path / "runs" / name for name in ("broken", "failed", "empty"))
    for folder in (broken, failed, empty):
        folder.mkdir(parents=True)
    (broken / "metrics.json").write_text("{")
    (failed / "status.json").write_text('{"state": "failed", "error": "out of memory"}')
    notes = {run.id: run.cells["note"] for run in all_runs(tmp_path)}
    assert notes["broken"].startswith("cannot be read")
    assert (notes["failed"], notes["empty"]) == ("failed: out of memory", "not finished")
    assert details(write_page(tmp_path)[0].read_text()).keys() == notes.keys()


BROWSERS = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
BROWSER = next(filter(None, BROWSERS), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS += ["--enable-logging=stderr"]
in_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium")


def browsed(path: Path, address: str, profile: Path, *more: str) -> "CompletedProcess[str]":
    own = f"--user-data-dir={profile}", *more, "--dump-dom", f"{path.as_uri()}{address}"
    return subprocess.run([str(BROWSER), *FLAGS, *own], capture_output=True, text=True, timeout=120)


def browse(path: Path, address: str, profile: Path, *more: str) -> str:
    """The document after its scripts have run; fails if they write to the console."""
    done = browsed(path, address, profile, *more)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and not console, done.stderr[-2000:]
    return re.sub(r"<script\b.*?</script>", "", done.stdout, flags=re.S)


BAD_TABLES: dict[str, Any] = {
    "deep": "[" * 100_000,
    "no summary": "{}",
    "odd keys": {"keys": {"model": [1], "dataset": {"a": 1}}},
    "odd names": {"model": 1},
    "odd metrics": {"metrics": {"speedup": {"ci95": [1.0]}, "lossless": {"ties": []}}},
    "odd reason": {"reason": [1]},
    "odd origin": {"provenance": {"commit": ["a"], "date": {"b": 1}}},
}


@pytest.mark.parametrize("experiment", ["swift-table2", "methods"])
def test_tables_and_figures_that_are_not_as_written_are_named(
    experiment: str, tmp_path: Path
) -> None:
    tables, figures = tmp_path / "tables", tmp_path / "figures"
    secret = tmp_path / "secret"
    secret.write_text('{"experiment": "methods", "scale": "a secret", "runs": []}')
    for folder, suffix in ((tables, "json"), (figures, "svg")):
        folder.mkdir()
        os.mkfifo(folder / f"pipe.{suffix}")
        (folder / f"link.{suffix}").symlink_to(secret)
        (folder / f"zeros.{suffix}").symlink_to("/dev/zero")
        (folder / f"folder.{suffix}").mkdir()
        (folder / f"odd\x1b.{suffix}").write_text("{}")
        with (folder / f"large.{suffix}").open("wb") as sparse:
            sparse.truncate(MOST_BYTES + 1)
    (tables / "lonely.html").write_text("<svg/onload=alert(1)>")
    run = {"model": "tiny", "method": "swift", "dataset": "d", "keys": {}, "metrics": None}
    run |= {"reason": None, "provenance": {}}
    whole = {"experiment": experiment, "scale": "paper"}
    for name, bad in {**BAD_TABLES, "good": {}}.items():
        one = whole | {"runs": [run | bad] if isinstance(bad, dict) else []}
        (tables / f"{name}.json").write_text(bad if isinstance(bad, str) else json.dumps(one))
    path, counts, _ = write_page(tmp_path)
    document = html.unescape(path.read_text())
    assert "table-good" in document and "a secret" not in document and "<svg/onload" not in document
    left = re.search(r"Left out of this page:(.*?)</ul>", document, re.S)
    assert left is not None and counts["files refused"] == left[1].count("<li>")
    bad_files = ("pipe", "link", "zeros", "folder", "large", r"odd\x1b")
    names = [f"{one}.{suffix}" for suffix in ("json", "svg") for one in bad_files]
    names += ["lonely.html", "deep.json", "no summary.json", "odd metrics.json"]
    assert all(name in left[1] for name in names)
    assert counts["tables"] + counts["files refused"] == len([*tables.iterdir()]) + len(bad_files)
    assert "\x1b" not in document


HOSTILE = (
    "<svg/onload=\"document.title='broken'\"><details/open/ontoggle=\"document.title='broken'\">"
)


@in_browser
def test_only_the_script_of_the_page_runs_in_a_browser(results: Path, tmp_path: Path) -> None:
    more = f"{HOSTILE}<script>document.title='broken'</script>"
    (tmp_path / "page.html").write_text(page(all_runs(results), {"x": more}, {}), encoding="utf-8")
    done = browsed(tmp_path / "page.html", "", tmp_path / "profile")
    assert "Content Security Policy" in done.stderr
    assert "<title>skipbench report</title>" in done.stdout
    assert "2 of 2 runs" in done.stdout


@in_browser
def test_hostile_folders_tables_and_names_do_not_run_in_a_browser(
    results: Path, tmp_path: Path
) -> None:
    shutil.copytree(results / "runs", tmp_path / "runs")
    shutil.copytree(results / "tables", tmp_path / "tables")
    for table in ("clasp-table1", "methods"):
        (tmp_path / "tables" / f"{table}.html").write_text(HOSTILE)
    (folder,) = (tmp_path / "runs").glob("*swift*")
    hostile = folder.rename(folder.with_name("<svg onload=document.title='broken'>"))
    unseal(hostile)
    for name, text in (
        ("config.yaml", {"method": {"name": HOSTILE}, "model": {"name": HOSTILE}}),
        ("provenance.json", {"label": HOSTILE, "commit": HOSTILE, "device": HOSTILE}),
    ):
        (hostile / name).write_text(json.dumps(text))
    page_of = write_page(tmp_path)[0]
    # the list is in the document of a run, too
    document = browse(page_of, f"#run={quote(hostile.name)}", tmp_path / "profile")
    assert "<title>skipbench report</title>" in document
    assert "&lt;svg/onload=" in document and "<details/" not in document


def test_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match="no runs, tables or figures"):
        write_page(tmp_path)


def test_a_live_page_follows_a_run(results: Path, tmp_path: Path) -> None:
    whole = next((results / "runs").glob("*swift*"))
    folder = tmp_path / "runs" / whole.name
    shutil.copytree(whole, folder)
    unseal(folder)
    (folder / "metrics.json").unlink()
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"state": "running"}))
    for name in ("samples.jsonl", "completions.jsonl"):
        first, _ = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text(first + "{")  # the next line is being written
    waited = list[float]()

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)

    with contextlib.closing(watched(tmp_path, pause)) as pages:
        path, *_ = next(pages)
        text = path.read_text()
        assert "running: 1 of 2 prompts" in text and 'id="live"' in text
        assert re.search(r"<span>\d+\.\d\dx</span>", text)  # the speedup so far
        next(pages)
        text = path.read_text()
        assert len(waited) == 2 and "running:" not in text and 'id="live"' in text
    assert 'id="live"' not in path.read_text()


def test_report_watch_ends_with_a_page_that_is_not_live(
    results: Path, tmp_path: Path, skipbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    live = list[bool]()

    def sleep(seconds: float) -> None:
        live.append('id="live"' in (tmp_path / "report.html").read_text())
        raise KeyboardInterrupt  # as Ctrl-C does in a sleep

    monkeypatch.setattr(time, "sleep", sleep)
    done = skipbench("report", "--watch", f"results={tmp_path}")
    assert done.returncode == 130 and done.stderr.count("written: ") == 1 and live == [True]
    assert 'id="live"' not in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@in_browser
def test_filter_in_a_browser(results: Path, text: str, tmp_path: Path) -> None:
    document = browse(results / "report.html", "#filter=swift", tmp_path)
    assert "1 of 2 runs" in document
    hidden = re.findall(r'<tr data-run="([^"]*)"( hidden="")?>', document)
    shown = {("swift" in name, bool(mark)) for name, mark in hidden}
    assert shown == {(False, True), (True, False)}
    address = "#method=swift&filter=nothing-like-it"
    assert "0 of 2 runs" in browse(results / "report.html", address, tmp_path)


@in_browser
def test_accepted_tokens_are_coloured_by_source_in_a_browser(tmp_path: Path) -> None:
    words = ["method=auto", "dataset=mini-summary", "limit=1", "dataset.max_new_tokens=48"]
    run_cell(compose([*words, "engine.warmup=0", f"results={tmp_path}"]), print_table=False)
    path, *_ = write_page(tmp_path)
    (detail,) = details(path.read_text()).values()
    (run,) = (tmp_path / "runs").iterdir()
    (record,) = read_samples(run / "samples.jsonl")
    document = browse(path, f"#run={run.name}", tmp_path / "profile")
    turns = zip(record.trace["source"], record.method.rounds, strict=True)
    letters = "".join(traced[: turn.emitted] for traced, turn in turns)
    assert letters and detail["sources"].keys() == set(letters)
    for letter, name in detail["sources"].items():
        assert f"background:var(--source-{letter})" in document and f"accepted: {name}<" in document
        counts = re.findall(f'class="accepted {letter}" title="accepted, {name}: (\\d+)"', document)
        assert sum(map(int, counts)) == letters.count(letter)


@in_browser
def test_sorting_in_a_browser(results: Path, tmp_path: Path) -> None:
    runs = copy.deepcopy(all_runs(results)) + copy.deepcopy(all_runs(results))[:1]
    for run, name, speedup in zip(runs, "abc", (9.5, 10.5, None), strict=True):
        run.id, run.sort["speedup"] = name, speedup
    del runs[2].sort["speedup"]
    path = tmp_path / "page.html"
    path.write_text(page(runs, {}, {}), encoding="utf-8")
    document = browse(path, "#sort=speedup&sort=speedup", tmp_path / "profile")  # downwards
    assert "".join(re.findall(r'<tr data-run="(.)"', document)) == "bac"


@in_browser
@pytest.mark.parametrize("width", rest_slow([1280, 400], (1280).__eq__))
def test_run_in_a_browser(results: Path, text: str, tmp_path: Path, width: int) -> None:
    name = next(p.name for p in (results / "runs").glob("*swift*"))
    size = f"--window-size={width},900"
    document = browse(results / "report.html", f"#run={name}", tmp_path, size)
    for title in ("Time split", "Acceptance by position", "Skip map", "Draft length", "Threshold"):
        assert f"<h3>{title}</h3>" in document
    assert document.count('class="sample"') == 2 and 'class="accepted"' in document
    links = [f'<a href="#table-{name}">{name}</a>' for name in ("clasp-table1", "methods")]
    back = f"In tables: {' '.join(links)}"
    assert f'<a href="#run={name}" title="{name}">' in document and back in document
    if width == 400:  # in the slow tier: a run that is in no table
        other = next(p.name for p in (results / "runs").glob("*self-sd*"))
        assert back not in browse(results / "report.html", f"#run={other}", tmp_path)
