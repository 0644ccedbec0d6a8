"""The row of a bench, whose arms are the servers A, B, ...: its files beside its turns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from msgspec import to_builtins
from msgspec.structs import replace

from skipbench.contrib.servers.about import FIRST, Server
from skipbench.contrib.servers.summary import summarised
from skipbench.data.rows import Example, other_rows, prompts_hash, rows_hash
from skipbench.errors import SkipbenchError
from skipbench.runs.files import read_lines, write_atomic, write_json
from skipbench.runs.lock import held, move_aside
from skipbench.runs.provenance import OF_PROMPTS, Provenance, config_hash, portable, run_name
from skipbench.runs.reading import read_json
from skipbench.runs.run import read_run
from skipbench.runs.state import Status, write_status
from skipbench.runs.store import CONFIG, TEXTS, TURNS


@contextmanager
def opened(results: Path, settings: Mapping[str, Any], fresh: bool) -> Iterator[Path]:
    """The folder of the row of these settings, which no other process has meanwhile; `fresh`: those
    records that are there are set aside.
    """
    name = run_name([settings["dataset"]["name"]], config_hash(settings))
    row = results / "runs" / name
    if fresh and row.exists():
        with held(row / FIRST):
            move_aside(row)
    with held(row / FIRST):
        if not (row / CONFIG).exists():
            write_atomic(row / CONFIG, yaml.safe_dump(portable(settings), sort_keys=False))
        for lines in (TURNS, TEXTS):  # one that was being written when its process died
            read_lines(row / lines, repair=True, torn=True)
        yield row


@contextmanager
def measuring(
    row: Path,
    servers: Mapping[str, Server],
    rows: Sequence[Example],
    limit: int | None,
    machine: str,
    command: Sequence[str],
) -> Iterator[None]:
    """Within it the row is filled; before, it writes where each server's numbers come from, and
    then these. Raises SkipbenchError where the row has answers to other prompts.

    Args:
        limit: of questions, as it was asked for.
        machine: that the servers run on; empty: the one that was named before.
    """
    for letter, server in servers.items():
        path = row / letter / "provenance.json"
        before = read_json(path, Provenance) or Provenance()
        if other_rows(before, rows):
            raise SkipbenchError(f"{row} has answers to other prompts; fresh=true sets them aside")
        of: dict[str, Any] = {k: getattr(before, k) for k in OF_PROMPTS}
        if (before.prompts or 0) < len(rows):
            of = {"prompts": len(rows), "rows_sha256": rows_hash(rows)}
            of["prompts_sha256"] = prompts_hash(rows)
        origin = Provenance(
            argv=["skipbench", *command],
            device=machine or before.device,
            started=before.started or datetime.now(UTC).isoformat(timespec="seconds"),
            engine=server.engine,
            versions={"skipbench": version("skipbench")},
            **of,
        )
        write_json(path, to_builtins(origin))

    def tell(state: str, error: str | None = None, letters: Iterable[str] = servers) -> None:
        for letter in letters:
            write_status(row / letter, replace(Status.now(state, error), limit=limit))

    tell("running")
    try:
        yield
    except BaseException as stop:
        tell("interrupted", str(stop) or "the same command goes on")
        raise
    write_metrics(row / letter for letter in servers)
    tell("done")
    silent = [letter for letter in servers if not read_run(row / letter).sound]
    tell("failed", "no answer to any request", servers if FIRST in silent else silent)


def write_metrics(folders: Iterable[Path]) -> None:
    """Writes the numbers of servers' turns."""
    for folder in folders:
        write_json(folder / "metrics.json", to_builtins(summarised(read_run(folder))))
