"""The table of a bench of servers, from its records alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skipbench.contrib.servers.levels import (
    Level,
    by_clients,
    drafts,
    miscounted,
    shares,
    spans,
)
from skipbench.contrib.servers.records import Record, Verdicts
from skipbench.contrib.servers.told import FIELDS
from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import FEWEST
from skipbench.report.columns import MISSING, figures, main_cells, number, ratio_text
from skipbench.report.tables.model import Column, Grid, Table, TableCell, TableRow
from skipbench.runs.measures import Metrics, Percentiles

SHOWN = 3  # prompts that a note names


def cells(level: Level, arm: str, bounds: Mapping[str, float]) -> dict[str, str]:
    """An arm's line, by column."""
    own, metrics, place = [*level.sound[arm].values()], level.metrics(arm), level.places.get(arm)
    seconds, good, known = spans(own), sum(within(r, bounds) for r in own), main_cells(metrics)
    return {
        "arm": arm,
        "n": str(len(own)),
        "speedup": known["speedup"],
        "over best": ratio_text(place.ratio, place.interval) if place else MISSING,
        "tok/s": figures(over(sum(r.tokens / r.seconds for r in own), len(own))),
        "TTFT ms": times(metrics.ttft_s),
        "ITL ms": times(metrics.s_per_output_token),
        "end to end ms": times(shares([r.seconds for r in own])),
        "output tok/s": figures(over(sum(r.tokens for r in own), seconds)),
        "goodput": f"{figures(over(good, seconds))}/s, {good}/{len(level.own[arm])}"
        if bounds
        else MISSING,
        "accepted share": number(metrics.accepted_share, 3),
        "M": known["M"],
        "lossless": known["lossless"],
        "failed": str(len(level.own[arm]) - len(own)),
    }


def numbers(level: Level, arm: str) -> dict[str, Any]:
    """An arm's values, unrounded; None for what is not known."""
    own, speedup = [*level.sound[arm].values()], level.speedup(arm)
    low, high = speedup.e2e_ci95 or (None, None)
    return {
        "clients": level.clients,
        "arm": arm,
        "n": len(own),
        "failed": len(level.own[arm]) - len(own),
        "speedup": speedup.e2e,
        "low": low,
        "high": high,
        "tokens": sum(r.tokens for r in own),
        "seconds": spans(own),
        **dict(zip(FIELDS, drafts(own), strict=True)),
        "lossless": main_cells(level.metrics(arm))["lossless"],
    }


def categories(level: Level) -> Iterator[Grid]:
    """Speedup and `lossless` by each kind of group."""
    every = [r for of in level.own.values() for r in of]
    labels = [*dict.fromkeys(pair for r in every for pair in r.groups.items())]
    shown = "speedup", "lossless"
    columns = [Column(name, arm) for arm in level.arms for name in shown]
    for kind in dict.fromkeys(kind for kind, _ in labels):
        rows = list[list[str]]()
        for label in (label for label in labels if label[0] == kind):
            of = [
                Metrics(speedup=level.speedup(arm, label), lossless=level.lossless(arm, label))
                for arm in level.arms
            ]
            rows.append([label[1], *(main_cells(one)[name] for one in of for name in shown)])
        yield grid([Column(kind, kind="label"), *columns], rows, f"{level.clients}, by {kind}")


def remarks_on(level: Level) -> Iterator[str]:
    """What went wrong, by name, and where the answers part; nothing is left out."""
    turns = len({r.turn for r in level.own[level.arms[0]]})
    if level.clients > 1 and turns < FEWEST:
        yield (
            f"{level.clients} in flight: {turns} turns of each server; {FEWEST} give an interval, "
            f"limit={2 * level.clients * FEWEST}."
        )
    for arm in level.arms:
        of, sound = level.own[arm], level.sound[arm].values()
        lost = Counter(r.error for r in of if r.error)
        passed = Counter(text for r in sound for text in r.faults)
        pairs = level.pairs(arm)
        parted = [
            f"{a.id} at character {first_difference(a.texts[0], b.texts[0])}"
            for a, b in pairs
            if a.texts != b.texts and not level.verdicts and not level.drawn
        ]
        odd, base = [b.id for a, b in pairs if miscounted(a, b)], level.arms[0]
        bare = [r.id for r in sound if r.response and not r.response["usage"]]
        for what, found in (
            ("failed", [f"{n} {text}" for text, n in lost.items()]),
            ("timed at a later try, after", [f"{n} {text}" for text, n in passed.items()]),
            (f"{len(parted)} answers are not those of {base}", parted[:SHOWN]),
            (
                f"{len(odd)} answers have the text of {base} and another number of tokens: one "
                "server's usage is wrong, speedups are of their seconds",
                odd[:SHOWN],
            ),
            (f"{len(bare)} answers without usage, tokens are counted by events", bare[:SHOWN]),
        ):
            if found:
                yield f"{level.clients} in flight, {arm}: {what}: {'; '.join(found)}."


def compared(level: Level) -> str:
    """What the answers that count as lossless are."""
    if level.verdicts:
        return "answers as the checkpoint's model gives them (verify)"
    if level.drawn:
        return "not told, answers are sampled and no checkpoint was given"
    how = f"answers equal to those of {level.arms[0]}, text by text; no checkpoint was given"
    return f"{how}, and arms that err alike are equal"


def first_difference(a: str, b: str) -> int:
    """The first character, from 0, in which two texts differ."""
    same = (x == y for x, y in zip(a, b, strict=False))
    return next((at for at, equal in enumerate(same) if not equal), min(len(a), len(b)))


def within(record: Record, bounds: Mapping[str, float]) -> bool:
    """Whether a request kept every bound (s)."""
    took = {"ttft": record.ttft_s, "tpot": record.itl_s or 0.0, "e2el": record.seconds}
    return all(took[name] <= bound for name, bound in bounds.items())


def times(of: Percentiles | None) -> str:
    """Seconds at the percentiles, in ms."""
    found = (of.p50, of.p90, of.p99) if of else ()
    return " / ".join(figures(1e3 * s) for s in found if s is not None) or MISSING


def grid(columns: Sequence[Column], rows: Sequence[Sequence[str]], settings: str) -> Grid:
    """A grid without the columns that no row fills."""
    kept = [at for at in range(len(columns)) if any(row[at] != MISSING for row in rows)]
    lines = (TableRow(tuple(TableCell(row[at]) for at in kept)) for row in rows)
    return Grid(tuple(columns[at] for at in kept), tuple(lines), f"In flight: {settings}")


def bench_table(
    title: str,
    records: Sequence[Record],
    arms: Mapping[str, str],
    bounds: Mapping[str, float],
    verdicts: Verdicts,
    notes: Sequence[str],
) -> Table:
    """A grid per number of clients, then its categories; the first arm is the one compared with.

    Args:
        arms: what each arm is, by name.
        bounds: of goodput, in seconds; empty: not asked for.
        verdicts: empty without a checkpoint; then answers are compared with the first arm's.
        notes: further remarks.
    """
    grids, lines = list[Grid](), list[Mapping[str, Any]]()
    remarks = [f"{name}: {what}." for name, what in arms.items()]
    judged = dict[str, list[str]]()
    for level in by_clients(records, [*arms], verdicts):
        rows = [cells(level, arm, bounds) for arm in arms]
        columns = [Column(name, kind="label" if name == "arm" else "number") for name in rows[0]]
        grids += [grid(columns, [[*row.values()] for row in rows], str(level.clients))]
        grids += categories(level)
        remarks += remarks_on(level)
        lines += [numbers(level, arm) for arm in arms]
        judged.setdefault(compared(level), []).append(str(level.clients))
    for how, clients in judged.items():
        where = f", {' and '.join(clients)} in flight" if len(judged) > 1 else ""
        remarks.append(f"lossless{where}: {how}.")
    remarks += [*notes, "Columns and rules: docs/servers.md."]
    return Table(title, title, tuple(grids), tuple(lines), remarks=tuple(remarks))
