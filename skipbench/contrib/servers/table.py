"""The table of a bench of servers: its arms as runs, and lines on what went wrong."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from skipbench.contrib.servers.levels import Level, miscounted, spans
from skipbench.contrib.servers.published import levels_at, runs_at, told_of
from skipbench.contrib.servers.records import Record
from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import FEWEST
from skipbench.report.tables.model import Table
from skipbench.report.tables.runs import row_table
from skipbench.report.text import figures
from skipbench.runs.measures import Speedup
from skipbench.runs.run import Origin, Run

KEYS = ("n", "speedup", "best", "tokens_per_s", "ttft", "itl", "accepted", "M", "lossless")
SHOWN = 3  # prompts that a note names


def bench_table(
    folder: Path, clients: Sequence[int], bounds: Mapping[str, float], notes: Sequence[str]
) -> Table:
    """The table of these numbers of clients; the first arm is the one compared with.

    Args:
        bounds: of goodput, in seconds; empty: not asked for.
        notes: further remarks.
    """
    about, _ = told_of(folder)
    levels = [level for level in levels_at(folder, about) if level.clients in clients]
    runs = [_beside(run, level) for level in levels for run in runs_at(folder, level)]
    remarks = [f"{arm}: {about.described(arm)}." for arm in about.arms]
    for level in levels:
        remarks += [f"{level.clients} in flight, {text}." for text in remarks_on(level, bounds)]
    remarks += [*notes, "Columns and rules: docs/servers.md."]
    return row_table(runs, KEYS, folder.name, remarks)


def _beside(run: Run, level: Level) -> Run:
    """The run; the first arm, whose speedup nothing is claimed of, is as fast as itself."""
    known = run.measured.speedup
    if not known.by_question and (ratios := level.ratios(level.arms[0])):
        known = Speedup(e2e=1.0, e2e_ci95=(1.0, 1.0), by_question=ratios)
    return replace(run, metrics=replace(run.measured, speedup=known), origin=Origin())


def remarks_on(level: Level, bounds: Mapping[str, float] = {}) -> Iterator[str]:
    """The rates of whole servers, and what went wrong, by name; nothing is left out."""
    turns, base = len({r.turn for r in level.own[level.arms[0]]}), level.arms[0]
    if level.clients > 1 and turns < FEWEST:
        more = f"{FEWEST} give an interval, limit={2 * level.clients * FEWEST}"
        yield f"{turns} turns of each server; {more}"
    rates, good = list[str](), list[str]()
    for arm in level.arms:
        sound = [*level.sound[arm].values()]
        kept, seconds = sum(within(r, bounds) for r in sound), spans(sound)
        rates.append(f"{arm} {figures(over(sum(r.tokens for r in sound), seconds))}")
        good.append(f"{arm} {figures(over(kept, seconds))} ({kept} of {len(level.own[arm])})")
    yield f"output tok/s: {', '.join(rates)}"
    if bounds:
        yield f"goodput, requests/s: {', '.join(good)}"
    for arm in level.arms:
        sound = [*level.sound[arm].values()]
        lost = Counter(r.error for r in level.own[arm] if r.error)
        passed = Counter(text for r in sound for text in r.faults)
        odd = [b.id for a, b in level.pairs(arm) if miscounted(a, b)]
        bare = [r.id for r in sound if r.response and not r.response["usage"]]
        usage = f"the text of {base} and another number of tokens: one server's usage is wrong"
        for what, found in (
            (f"{lost.total()} failed", [f"{n} {text}" for text, n in lost.items()]),
            ("timed at a later try, after", [f"{n} {text}" for text, n in passed.items()]),
            (f"{len(odd)} answers have {usage}, speedups are of their seconds", odd[:SHOWN]),
            (f"{len(bare)} answers without usage, tokens are counted by events", bare[:SHOWN]),
        ):
            if found:
                yield f"{arm}: {what}: {'; '.join(found)}"
    compared = f"answers equal to those of {base}, text by text, so that arms that err alike are"
    if level.drawn:
        compared = "not told, answers are sampled and no checkpoint was given"
    if level.verdicts:
        compared = "answers as the checkpoint's model gives them (verify)"
    yield f"lossless: {compared}"


def within(record: Record, bounds: Mapping[str, float]) -> bool:
    """Whether a request kept every bound (s)."""
    took = {"ttft": record.ttft_s, "tpot": record.itl_s or 0.0, "e2el": record.seconds}
    return all(took[name] <= bound for name, bound in bounds.items())
