"""A results folder for others: runs, tables, figures and claims, without names of places, machines
and persons. It is a results folder, too: every command reads it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from skipbench.config.extensions import load
from skipbench.contrib.artifact.claims import CLAIMS, SUMS, claims_of, sums
from skipbench.contrib.artifact.places import TEXTS, public, public_words, refuse_places
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_atomic, write_json
from skipbench.runs.provenance import config_hash, leaves
from skipbench.runs.reading import read_bytes, read_yaml, run_folders
from skipbench.runs.record import VANILLA, Turn, dump
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import write_status
from skipbench.runs.store import CONFIG, OF_ARM, TURNS, row_turns

FLAG = "--config-dir"
DIGESTS = {"dataset.path": "rows_sha256", "model.path": "weights_sha256"}
DIGESTS |= {f"{OF_ARM}._target_": "method_sha256"}
COPIED = ("tables", "figures", "latency", "skip_sets")  # copied whole
README = """# {runs} runs of skipbench {version}

`claims.json` holds every number with its interval, command, hardware and commit; `runs/` the
turns, settings and provenance that they follow from; `environment.json` machines and versions.

    python -m skipbench bundle --check .       # computes every claim again from the turns
    python -m skipbench report results=.       # one page of all runs
    sha256sum -c SHA256SUMS                    # compares the files

Prompts and texts are left out: turns hold tokens, those of servers the SHA-256 of their answers.
What the commands need and is not in here:

{needs}
"""
ENVIRONMENT = ["commit", "dirty", "python", "platform", "cpu", "cores", "memory_bytes", "versions"]
ENVIRONMENT += ["device", "threads", "gpus", "engine", "native_kernels", "package_sha256"]


def write_bundle(out: Path, results: Path) -> tuple[int, int]:
    """Writes the bundle of a results folder; returns its numbers of runs and of claims.

    Args:
        out: a folder that is not there yet.
        results: a results folder with runs that are done; others are left out.

    Raises SkipbenchError where `out` exists, where no run is done or one cannot be read, where
    servers have no names, and for a file in which the path of a home or of `results` is left.
    """
    if out.exists():
        raise SkipbenchError(f"{out} exists; give a folder that is not there yet")
    runs = [read_run(folder) for folder in run_folders(results)]
    found, names = [run for run in runs if run.done and run.metrics], dict[str, str]()
    if not any(run.metrics and run.metrics.samples for run in found):
        raise SkipbenchError(f"{results} has no run that is done; give a results folder")
    servers = [run for run in runs if run.base != VANILLA]
    if bare := [r for r in servers if r.done and (r.method == r.arm or not r.provenance.device)]:
        how = "give its command once more with names=plain,eagle3 machine=RTX-4090"
        raise SkipbenchError(f"{bare[0].folder}: its servers and machine have no names; {how}")
    told = {str(run.id).partition("/")[0] for run in servers}  # their tables have addresses
    for _, row in groupby(found, key=lambda run: (run.folder or Path()).parent):
        names |= _copy_row([*row], out)
    for path in (p for name in COPIED for p in sorted((results / name).glob("*"))):
        if path.is_file() and path.name.partition(".")[0] not in {"", *told}:
            write_atomic(out / path.parent.name / path.name, _renamed(path, names))
    runs = [read_run(folder) for folder in run_folders(out)]
    claims = [claim for folder in run_folders(out) for claim in claims_of(folder)]
    write_json(out / CLAIMS, {"claims": msgspec.to_builtins(claims)})
    write_json(out / "environment.json", _environments(runs))
    known = {"runs": len(runs), "version": version("skipbench"), "needs": needed(runs)}
    write_atomic(out / "README.md", README.format(**known))
    write_atomic(out / ".gitattributes", "* -text\n")  # digests are of bytes
    refuse_places(out, results)
    write_atomic(out / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums(out).items()))
    return len(runs), len(claims)


def needed(runs: Sequence[Run]) -> str:
    """What of its author the runs' commands need, with the SHA-256 that their provenance has."""
    found = dict[str, str]()
    for run in runs:
        known, files = run.provenance, run.provenance.files
        found |= {name: FLAG for flag, name in pairwise(known.argv) if flag == FLAG}
        for key, value in leaves(run.settings):
            text, name = str(value or ""), DIGESTS.get(key, "")
            own = text.startswith("elsewhere:") or (key == "model.path" and Path(text).exists())
            if key in {"dataset.path", *files} and not text.startswith(("package:", "cache:")):
                own = text != ""
            if own or (key.endswith("_target_") and not text.startswith("skipbench.")):
                digest = getattr(known, name) if name else files.get(key)
                found[text] = f"{key}, {name or 'sha256'} {digest[:12]}" if digest else key
    lines = (f"- `{text}` ({about})" for text, about in sorted(found.items()))
    return "\n".join(lines) or "- nothing"


def _copy_row(runs: Sequence[Run], out: Path) -> dict[str, str]:
    """Copies the files of a row and of those arms; returns the ids of the runs there by those here:
    others where a setting names a place.
    """
    row = (runs[0].folder or Path()).parent
    shared = read_yaml(row / CONFIG) or {}
    servers = load("bundle", "servers")(shared, public) if "servers" in shared else None
    shared = _settings(shared, servers)
    folder = out / "runs" / _named(row.name, shared)
    write_atomic(folder / CONFIG, yaml.safe_dump(shared, sort_keys=False))
    names = {VANILLA: VANILLA}
    for run in runs:
        own = _settings(read_yaml(row / run.arm / CONFIG) or {}, servers)
        names[run.arm] = name = _named(run.arm, own)
        write_atomic(folder / name / CONFIG, yaml.safe_dump(own, sort_keys=False))
        _copy_arm(run, folder / name, servers)
    turns = (_with_arms(turn, names, servers) for turn in row_turns(row))
    kept = [dump(turn) for turn in turns if turn.arms.keys() - {VANILLA}]
    write_atomic(folder / TURNS, "".join(f"{line}\n" for line in kept))
    return {str(run.id): f"{folder.name}/{names[run.arm]}" for run in runs}


def _settings(settings: Mapping[str, Any], servers: Any) -> dict[str, Any]:
    """Settings without places; `servers`: what is public of the row, where its arms are such."""
    found: dict[str, Any] = public(servers.settings(settings) if servers else {**settings})
    return found


def _named(name: str, settings: Mapping[str, Any]) -> str:
    """The name of a folder with the hash of settings without places."""
    return re.sub(r"_[0-9a-f]{10}$", f"_{config_hash(settings)}", name)


def _with_arms(turn: Turn, names: Mapping[str, str], servers: Any) -> Turn:
    """The turn of these arms alone, by their names in the bundle."""
    arms = {names[arm]: of for arm, of in turn.arms.items() if arm in names}
    if servers:
        arms = {name: servers.arm(of) for name, of in arms.items()}
    return replace(turn, arms=arms, order=[names[arm] for arm in turn.order if arm in names])


def _copy_arm(run: Run, folder: Path, servers: Any) -> None:
    assert run.folder is not None
    write_atomic(folder / "metrics.json", read_bytes(run.folder / "metrics.json") or b"")
    resumed = [_of_nobody(one) for one in run.provenance.resumed]
    kept = _of_nobody(msgspec.to_builtins(run.provenance)) | {"resumed": resumed}
    write_json(folder / "provenance.json", kept | {"argv": _command(run, servers)})
    write_status(folder, replace(run.status, pid=None, host=None, slurm=None))


def _of_nobody(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a provenance without the machine's name, its jobs and the command line."""
    return {k: v for k, v in entries.items() if k not in ("host", "slurm", "argv")}


def _command(run: Run, servers: Any) -> list[str]:
    """The command line that made the run, of skipbench or a script; places are left out."""
    program, *words = run.provenance.argv or ["skipbench"]
    own = Path(program).name in ("skipbench", "__main__.py")
    kept = public_words([servers.word(word) if servers else word for word in words])
    return ["python", *(["-m", "skipbench"] if own else [str(public(program))]), *kept]


def _renamed(path: Path, names: Mapping[str, str]) -> bytes:
    data = read_bytes(path) or b""
    for before, after in names.items():
        if before != after and path.suffix in TEXTS:
            data = data.replace(before.encode(), after.encode())
    return data


def _environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each machine and set of versions, with its runs."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        known = msgspec.to_builtins(run.provenance)
        machine = {name: known[name] for name in ENVIRONMENT}
        found.setdefault(json.dumps(machine), machine | {"runs": []})["runs"].append(run.id)
    return [*found.values()]
