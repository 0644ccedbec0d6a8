"""The arms of a bench of servers as runs, for those who publish or compare runs."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skipbench.contrib.servers.about import FILE, About
from skipbench.contrib.servers.levels import Level, by_clients
from skipbench.contrib.servers.records import (
    CONFIG,
    REQUESTS,
    Record,
    read_records,
    read_verdicts,
)
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import read_json, readable
from skipbench.runs.run import Origin, Run

PLACE = "servers"
"""Folder of all benches, in a results folder and in a bundle."""
TIME = "%Y-%m-%dT%H:%M:%S+00:00"


def benches(results: Path) -> list[Path]:
    """The folders of a results folder's benches."""
    return sorted(path.parent for path in (results / PLACE).glob(f"*/{REQUESTS}"))


def served(run: Run) -> bool:
    """Whether a run is a server's, of `runs_of`."""
    return (run.origin.engine or "").startswith(PLACE)


def runs_of(folder: Path) -> list[Run]:
    """`runs_at` for others: all numbers of clients. Raises SkipbenchError also for a bench that is
    not done, or whose servers and machine have no names.
    """
    about, _ = told_of(folder)
    if not (about.names and about.machine):
        advice = "give its command once more with names=plain,eagle3 machine=RTX-4090"
        raise SkipbenchError(f"{folder}: its servers and their machine have no names; {advice}")
    with readable(folder):
        levels = levels_at(folder, about)
        for level in levels:
            asked = [{r.id for r in own} for own in level.own.values()]
            if any(ids != asked[0] for ids in asked) or len(asked[0]) < about.prompts:
                raise SkipbenchError(f"{folder} is not done; give its command once more")
            answers = (r for of in level.sound.values() for r in of.values())
            if odd := [r.id for r in answers if not _possible(r)]:
                what = "times, tokens or counts of drafts that none can have"
                raise SkipbenchError(f"{folder}: the request of {odd[0]} has {what}")
        return [run for level in levels for run in runs_at(folder, level)]


def told_of(folder: Path) -> tuple[About, dict[str, Any]]:
    """What a bench knows of its servers, and its settings; empty where there are no such files."""
    about, settings = read_json(folder / FILE, About), read_json(folder / CONFIG, dict[str, Any])
    return about or About(), settings or {}


def levels_at(folder: Path, about: About) -> list[Level]:
    """The records of a bench, by number of clients."""
    return by_clients(read_records(folder), [*about.arms], read_verdicts(folder))


def runs_at(folder: Path, level: Level) -> Iterator[Run]:
    """A run per server, whose method is the server's name, or its letter, and whose speedup is over
    the first one.
    """
    (about, settings), (first, *_) = told_of(folder), level.arms
    begun = min((r.at for of in level.own.values() for r in of if r.at), default=None)
    started = time.strftime(TIME, time.gmtime(begun)) if begun else ""
    dataset, body = settings["dataset"], settings["body"]
    for arm, server in about.arms.items():
        yield Run(
            id=f"{PLACE}/{folder.name}/{level.clients}/{arm}",
            model=Path(about.arms[first].model).name,
            method=about.called(arm) or arm,
            dataset=f"{dataset['name']}, {level.clients} in flight",
            over=about.called(first) or first,
            folder=folder,
            metrics=level.metrics(arm),
            origin=Origin(
                engine=f"{PLACE} of {folder.name}", device=about.machine, date=started[:10]
            ),
            provenance=Provenance(
                argv=["python", "-m", "skipbench", *_command(about, level.clients)],
                device=about.machine,
                started=started,
                engine=server.engine,
                versions={"skipbench": about.skipbench},
            ),
            settings={
                "model": {"path": server.model},
                "dataset": {**dataset, "max_new_tokens": body["max_tokens"]},
                "decoding": body,
            },
        )


def _command(about: About, clients: int) -> list[str]:
    """The last command; with this number of clients, where it names others alone."""
    named = [word for word in about.command if word.startswith("concurrency=")]
    numbers = named[-1].partition("=")[2].split(",") if named else ["1"]
    if str(clients) in numbers:
        return about.command
    return [*(word for word in about.command if word not in named), f"concurrency={clients}"]


def _possible(record: Record) -> bool:
    """Whether an answer has tokens and times that one can have, and no more accepted than drafted
    ones.
    """
    told = record.acceptance
    more = told and told.drafted is not None and (told.accepted or 0) > told.drafted
    return 0 < record.ttft_s <= record.seconds and record.tokens > 0 and not more
