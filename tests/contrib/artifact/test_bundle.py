"""`bundle`: what is in it, and that its check finds what was changed afterwards."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import edit
from conftest import ROOT, Command
from malformed import Reader, faults, reader_of

from skipbench.contrib.artifact.claims import CLAIMS, SUMS, check, computed
from skipbench.contrib.artifact.places import public, public_words, refuse_places
from skipbench.contrib.artifact.write import write_bundle
from skipbench.contrib.oracle.outputs import read_outputs
from skipbench.errors import SkipbenchError
from skipbench.report.tables.stored import Summary
from skipbench.runs.files import write_atomic
from skipbench.runs.provenance import config_hash
from skipbench.runs.reading import run_folders
from skipbench.runs.record import VANILLA
from skipbench.runs.run import read_run

COMMUNITY = ROOT / "results" / "community"
HOME = "/home/alice/models"
ARGV = ["/home/alice/skipbench/__main__.py", "table", "head-to-head", f"model.path={HOME}/s.gguf"]
ARGV += ["results=/home/alice/r"]
FOLDERS = ("/home/alice/skipbench/contrib/auto/conf", "/home/alice/mine")
ARGV += [f"hydra.searchpath=['file://{FOLDERS[0]}','file://{FOLDERS[1]}']"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a committed bundle as it was where it was made, a table and a figure of it."""
    folder = tmp_path_factory.mktemp("results")
    (own,) = COMMUNITY.glob("tiny-auto/runs/*/auto_*")
    shared = yaml.safe_load((own.parent / "config.yaml").read_text())
    shared["model"]["path"] = f"{HOME}/smollm2.gguf"
    row = folder / "runs" / f"tiny_mini-summary_{config_hash(shared)}"
    shutil.copytree(own.parent, row)
    write_atomic(row / "config.yaml", yaml.safe_dump(shared))
    write_atomic(row / "texts.jsonl", '{"prompt": "secret"}')
    edit(row / own.name / "provenance.json", argv=ARGV, host="alices-box")
    table = Summary("head-to-head", "laptop", [read_run(row / own.name)]).text
    write_atomic(folder / "tables" / "head-to-head.json", table)
    write_atomic(folder / "figures" / "head-to-head.png", b"\x89PNG")
    return folder


@pytest.fixture(scope="module")
def bundle(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "bundle"
    assert write_bundle(out, results) == (1, 7)
    with pytest.raises(SkipbenchError, match="exists"):
        write_bundle(out, results)
    return out


def failures(folder: Path) -> str:
    return "\n".join(text for holds, text in check(folder) if not holds)


def run_of(folder: Path) -> Path:
    (found,) = folder.glob("runs/*/auto_*")
    return found


def redigested(folder: Path) -> None:
    """Who edits a bundle with care writes the new digests into it."""
    names = [line.partition("  ")[2] for line in (folder / SUMS).read_text().splitlines()]
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]
    lines = zip(digests, names, strict=True)
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for digest, name in lines))


def test_a_bundle_holds_its_claims_and_names_nobody(bundle: Path, skipbench: Command) -> None:
    done = skipbench("bundle", "--check", str(bundle))
    assert done.returncode == 0, done.stdout
    assert len(re.findall("^holds  ", done.stdout, re.M)) == 7 + 2  # and protocol, and files
    assert "protocol: 2" in done.stdout
    for path in (p for p in bundle.rglob("*") if p.is_file()):
        assert not re.search(b"alice|secret|/root/|/tmp/", path.read_bytes()), path
    claim = json.loads((bundle / CLAIMS).read_text())["claims"][0]
    command = "table head-to-head model.path=elsewhere:s.gguf --config-dir mine"
    assert claim["command"] == f"python -m skipbench {command}"
    needs = (bundle / "README.md").read_text().partition("not in here:")[2]
    assert re.findall("`(.*)`", needs) == ["elsewhere:smollm2.gguf", "mine"]
    assert "weights_sha256" in needs
    assert claim["hardware"] == "Intel(R) Xeon(R) Processor, 1 threads of 2 cores"
    speedup = read_run(run_of(bundle)).measured.speedup
    assert (claim["quantity"], claim["samples"]) == ("speedup.e2e", 5)
    assert (claim["number"], tuple(claim["interval"])) == (speedup.e2e, speedup.e2e_ci95)


def test_a_bundle_is_a_results_folder_with_its_digests(bundle: Path) -> None:
    for folder in run_folders(bundle):
        for place in (folder, folder.parent):
            assert place.name.endswith(
                config_hash(yaml.safe_load((place / "config.yaml").read_text()))
            )
        run = read_run(folder)
        assert run.done and len(run.sound) == run.measured.samples
        assert run.setting("model.path") == "elsewhere:smollm2.gguf"
        assert run.provenance.host is None
        assert folder.name in (bundle / "tables/head-to-head.json").read_text()
    done = subprocess.run(
        ["sha256sum", "--strict", "--check", "--quiet", SUMS], cwd=bundle, capture_output=True
    )
    files = [path for path in bundle.rglob("*") if path.is_file()]
    lines = (bundle / SUMS).read_text().splitlines()
    assert done.returncode == 0 and len(lines) == len(files) - 1, done.stderr


PLACES = {  # in a setting, and as a text has it
    r"C:\Users\alice\m.gguf": r"path: C:\Users\alice\m.gguf",
    r"d:\models\m.gguf": r'{"path": "d:\\models\\m.gguf"}',
    r"\\nas\alice\m.gguf": r'{"path": "\\\\nas\\alice\\m.gguf"}',
    "file:///data/alice/m.gguf": "at file:///data/alice/m.gguf",
    "'/home/alice/m.gguf'": "in /mnt/c/Users/alice",
    "~alice/m.gguf": "x=~alice/m.gguf",
    "alice@box:/data/m.gguf": "from alice@box:/data",
}
KEPT = [
    "org/m",
    "llama3:8b",
    "https://a/home",
    "attn:1,2;mlp:2",
    r"a\b",
    "Q:\n\nA:",
    "2026-11-29 5:3",
]


def test_places_of_every_system_are_left_out_or_stop_it(tmp_path: Path) -> None:
    for place, text in PLACES.items():
        assert public({"at": [place]}) == {"at": ["elsewhere:m.gguf"]}, place
        words = [f"a={place}", f"b.c=[{place},m]", place]
        other = "elsewhere:m.gguf"
        assert [*public_words(words)] == [f"a={other}", f"b.c=[{other},m]", other], place
        write_atomic(tmp_path / "note.md", f"\n{text}\n")
        with pytest.raises(SkipbenchError, match="names a place"):
            refuse_places(tmp_path, tmp_path / "r")
    assert public(["/home/alice", "~alice", r"C:\Users\alice"]) == ["elsewhere:"] * 3
    assert public(KEPT) == KEPT and [*public_words(KEPT)] == KEPT
    write_atomic(tmp_path / "note.md", "".join(f'"{one}": {json.dumps(one)}\n' for one in KEPT))
    refuse_places(tmp_path, tmp_path / "r")


def swapped(claims: list[Any], turns: list[Any], auto: str) -> None:
    for arms in (turn["arms"] for turn in turns):
        times = arms[VANILLA]["seconds"], arms[auto]["seconds"]
        arms[auto]["seconds"], arms[VANILLA]["seconds"] = times


def faster(claims: list[Any], turns: list[Any], auto: str) -> None:
    turns[0]["arms"][auto]["seconds"]["verify"] *= 0.9


def last_digits(claims: list[Any], *_: Any) -> None:
    claims[0]["number"] *= 1 + 1e-6


def first_claim(**changes: object) -> Callable[..., object]:
    return lambda claims, *_: claims[0].update(changes)


EDITS: dict[str, tuple[Callable[..., object], str]] = {  # of claims, turns and the arm's name
    "a number": (first_claim(number=9.9), r"= 9.9: number is 0\.\d+ by the run's files"),
    "a number's last digits": (last_digits, "number is "),
    "an interval": (first_claim(interval=[1.0, 1.1]), "interval is "),
    "a command": (first_claim(command="python -m skipbench"), "command is python -m skipbench t"),
    "a protocol claimed": (first_claim(protocol=1), "protocol is 2 by the run's files, not 1"),
    "a claim removed": (lambda claims, *_: claims.pop(), "which nothing claims"),
    "a sample removed": (lambda claims, turns, auto: turns.pop(), "samples is 4"),
    "a time": (faster, "number is "),
    "times of the arms swapped": (swapped, "number is "),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_careful_edit_is_found(name: str, bundle: Path, tmp_path: Path) -> None:
    """With new digests: what is found is found in the numbers."""
    change, why = EDITS[name]
    edited = shutil.copytree(bundle, tmp_path / "bundle")
    path, arm = run_of(edited).parent / "turns.jsonl", run_of(edited).name
    claims = json.loads((edited / CLAIMS).read_text())["claims"]
    turns = [json.loads(line) for line in path.read_text().splitlines()]
    change(claims, turns, arm)
    (edited / CLAIMS).write_text(json.dumps({"claims": claims}))
    path.write_text("".join(json.dumps(one) + "\n" for one in turns))
    redigested(edited)
    assert re.search(why, failures(edited)), failures(edited)


def test_another_file_is_found(bundle: Path, tmp_path: Path) -> None:
    edited, figure = shutil.copytree(bundle, tmp_path / "bundle"), "figures/head-to-head.png"
    sums = (edited / SUMS).read_text()
    (edited / figure).write_bytes(b"\x89PNG, but another")
    (edited / "more.txt").touch()
    assert f"{figure}: another sha256" in (found := failures(edited))
    assert "more.txt: not in SHA256SUMS" in found
    (edited / figure).unlink()
    assert "head-to-head.png: missing" in failures(edited)
    (edited / SUMS).write_text("0123  claims.json\n")
    assert "claims.json: not in SHA256SUMS" in failures(edited)
    (edited / SUMS).write_text(2 * sums)
    assert "of its lines name no file, or one again" in failures(edited)


def test_what_fails_is_printed_and_the_status_says_it(
    bundle: Path, skipbench: Command, tmp_path: Path
) -> None:
    edited = shutil.copytree(bundle, tmp_path / "bundle")
    path = run_of(edited).parent / "config.yaml"
    path.write_text(path.read_text().replace("max_new_tokens: 24", "max_new_tokens: 128"))
    done = skipbench("bundle", "--check", str(edited))
    assert (
        done.returncode == 1 and len(re.findall("FAILS  auto on.*has the hash", done.stdout)) == 7
    )
    assert done.stdout.count("FAILS  ") == 8  # and the file
    assert "is no bundle" in skipbench("bundle", "--check", str(tmp_path)).stderr


# Damaged outputs and bundles: read, or refused in one line


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    """Of outputs, of a bundle, and of servers' arms with one answer."""
    place = tmp_path_factory.mktemp("malformed")
    outputs = {"prompt": "a", "output": "b", "output_token_ids": [1, 2], "prompt_token_ids": [3]}
    texts = {"outputs.jsonl": json.dumps(outputs), "bundle/claims.json": '{"claims": []}'}
    texts["bundle/SHA256SUMS"] = f"{'0' * 64}  claims.json"
    (row,) = COMMUNITY.glob("smollm2*servers/runs/*")
    shutil.copytree(row, place / "r/runs/b")
    texts |= {f"r/runs/b/{n}": (row / n).read_text() for n in ("config.yaml", "A/config.yaml")}
    texts["r/runs/b/turns.jsonl"] = (row / "turns.jsonl").read_text().partition("\n")[0]

    def read(path: Path) -> object:
        if path.name == "outputs.jsonl":
            return read_outputs(path)
        if path.parent.name == "bundle":
            return [*check(path.parent)]
        return computed(read_run(place / "r/runs/b/A"))

    return {name: reader_of(place / name, f"{text}\n", read) for name, text in texts.items()}


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_what_a_file_holds_is_read_or_refused(each: int, readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.read()
    daily = {name: of for name, of in readers.items() if not name.endswith("config.yaml")}
    found = faults(readers if each > 4 else daily, each)
    assert not found, "\n".join(found[:20])
