"""The table of a bench of servers, from its records alone."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skipbench.contrib.servers.records import Record
from skipbench.contrib.servers.told import FIELDS
from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import geometric, paired_ratio_interval
from skipbench.metrics.pairs import Standing, standings
from skipbench.metrics.summary import percentiles
from skipbench.report.columns import MISSING, figures, number, ratio_text
from skipbench.report.tables.model import Column, Grid, Table, TableCell, TableRow

Verdicts = Mapping[tuple[str, int, str], str]
"""Of the oracle, by arm, clients and prompt."""
Label = tuple[str, str]
UNJUDGED = "unchecked", "sampled"  # those that were drawn are judged together, in a note
SHOWN = 3  # prompts that a note names


class Level:
    """The records of one number of clients; `own` are an arm's, `sound` those with an answer."""

    def __init__(self, records: Sequence[Record], arms: Sequence[str], verdicts: Verdicts) -> None:
        self.arms, self.verdicts, self.clients = arms, verdicts, records[0].concurrency
        self.own = {name: [r for r in records if r.arm == name] for name in arms}
        self.sound = {name: {r.id: r for r in of if not r.error} for name, of in self.own.items()}
        self.drawn = any(r.request["temperature"] for r in records)
        places = standings([[self.ratios(arm)] for arm in arms]) if len(arms) > 2 else []
        self.places: dict[str, Standing] = dict(zip(arms, places, strict=False))

    def pairs(self, arm: str, label: Label | None = None) -> list[tuple[Record, Record]]:
        """Answers of the first arm and of this one to the same prompts, all or those of a label."""
        base, own = self.sound[self.arms[0]], self.sound[arm]
        both = [(base[k], own[k]) for k in base if k in own]
        return [pair for pair in both if label is None or label in pair[1].groups.items()]

    def ratios(self, arm: str, label: Label | None = None) -> dict[str, float]:
        """Speed over the first arm's by question; equal texts of other lengths are left out. With
        several clients by turn, whose requests wait for each other.
        """
        found = dict[str, list[float]]()
        for a, b in self.pairs(arm, label):
            if not miscounted(a, b):
                ratio = (a.seconds / a.tokens) / (b.seconds / b.tokens)
                unit = b.question if self.clients == 1 else a.turn
                found.setdefault(unit, []).append(ratio)
        return {unit: geometric(each) for unit, each in found.items()}

    def speedup(self, arm: str, label: Label | None = None) -> str:
        ratios = [*self.ratios(arm, label).values()] if arm != self.arms[0] else []
        return ratio_text(*paired_ratio_interval(ratios)) if ratios else MISSING

    def lossless(self, arm: str, label: Label | None = None) -> str:
        """Answers that are the model's, or those of the first arm, of all that can be judged."""
        if self.verdicts:
            own = [
                r for r in self.sound[arm].values() if label is None or label in r.groups.items()
            ]
            kinds = [self.verdicts[arm, self.clients, r.id] for r in own]
            right = [kind == "identical" for kind in kinds if kind not in UNJUDGED]
        else:
            compared = arm != self.arms[0] and not self.drawn
            right = [a.texts == b.texts for a, b in self.pairs(arm, label) if compared]
        return f"{sum(right)}/{len(right)}" if right else MISSING

    def cells(self, arm: str, bounds: Mapping[str, float]) -> dict[str, str]:
        """An arm's line, by column."""
        own, place = [*self.sound[arm].values()], self.places.get(arm)
        seconds, good = spans(own), sum(within(r, bounds) for r in own)
        steps, drafted, accepted = drafts(own)
        mean = over(accepted, steps)
        return {
            "arm": arm,
            "n": str(len(own)),
            "speedup": self.speedup(arm),
            "over best": ratio_text(place.ratio, place.interval) if place else MISSING,
            "tok/s": figures(over(sum(r.tokens / r.seconds for r in own), len(own))),
            "TTFT ms": times([r.ttft_s for r in own]),
            "ITL ms": times([r.itl_s for r in own]),
            "end to end ms": times([r.seconds for r in own]),
            "output tok/s": figures(over(sum(r.tokens for r in own), seconds)),
            "goodput": f"{figures(over(good, seconds))}/s, {good}/{len(self.own[arm])}"
            if bounds
            else MISSING,
            "accepted share": number(over(accepted, drafted), 3),
            "M": figures(None if mean is None else 1 + mean),
            "lossless": self.lossless(arm),
            "failed": str(len(self.own[arm]) - len(own)),
        }

    def numbers(self, arm: str) -> dict[str, Any]:
        """An arm's values, unrounded; None for what is not known."""
        own, ratios = [*self.sound[arm].values()], [*self.ratios(arm).values()]
        mean, ends = paired_ratio_interval(ratios) if ratios else (None, None)
        low, high = ends or (None, None)
        return {
            "clients": self.clients,
            "arm": arm,
            "n": len(own),
            "failed": len(self.own[arm]) - len(own),
            "speedup": mean,
            "low": low,
            "high": high,
            "tokens": sum(r.tokens for r in own),
            "seconds": spans(own),
            **dict(zip(FIELDS, drafts(own), strict=True)),
            "lossless": self.lossless(arm),
        }

    def categories(self) -> Iterator[Grid]:
        """Speedup and `lossless` by each kind of group."""
        every = [r for of in self.own.values() for r in of]
        labels = [*dict.fromkeys(pair for r in every for pair in r.groups.items())]
        columns = [Column(name, arm) for arm in self.arms for name in ("speedup", "lossless")]
        for kind in dict.fromkeys(kind for kind, _ in labels):
            rows = [
                [label[1], *(f(a, label) for a in self.arms for f in (self.speedup, self.lossless))]
                for label in labels
                if label[0] == kind
            ]
            yield grid([Column(kind, kind="label"), *columns], rows, f"{self.clients}, by {kind}")

    def notes(self) -> Iterator[str]:
        """What went wrong, by name, and where the answers part; nothing is left out."""
        for arm in self.arms:
            of, sound = self.own[arm], self.sound[arm].values()
            lost = Counter(r.error for r in of if r.error)
            passed = Counter(text for r in sound for text in r.faults)
            pairs = self.pairs(arm)
            parted = [
                f"{a.id} at character {first_difference(a.texts[0], b.texts[0])}"
                for a, b in pairs
                if a.texts != b.texts and not self.verdicts and not self.drawn
            ]
            odd, base = [b.id for a, b in pairs if miscounted(a, b)], self.arms[0]
            bare = [r.id for r in sound if r.response and not r.response["usage"]]
            for what, found in (
                ("failed", [f"{n} {text}" for text, n in lost.items()]),
                ("timed at a later try, after", [f"{n} {text}" for text, n in passed.items()]),
                (f"{len(parted)} answers are not those of {base}", parted[:SHOWN]),
                (
                    f"{len(odd)} answers have the text of {base} and another number of tokens: one "
                    "server's usage is wrong; not in the ratios",
                    odd[:SHOWN],
                ),
                (f"{len(bare)} answers without usage, tokens are counted by events", bare[:SHOWN]),
            ):
                if found:
                    yield f"{self.clients} in flight, {arm}: {what}: {'; '.join(found)}."


def miscounted(a: Record, b: Record) -> bool:
    """Whether two equal texts have other numbers of tokens: one of their servers is wrong."""
    return a.texts == b.texts and a.tokens != b.tokens


def first_difference(a: str, b: str) -> int:
    """The first character, from 0, in which two texts differ."""
    same = (x == y for x, y in zip(a, b, strict=False))
    return next((at for at, equal in enumerate(same) if not equal), min(len(a), len(b)))


def spans(records: Sequence[Record]) -> float:
    """Seconds of an arm's turns, each from its first request to its last answer."""
    turns = dict[str, list[Record]]()
    for record in records:
        turns.setdefault(record.turn, []).append(record)
    return math.fsum(
        max(r.at + r.seconds for r in of) - min(r.at for r in of) for of in turns.values()
    )


def within(record: Record, bounds: Mapping[str, float]) -> bool:
    """Whether a request kept every bound (s)."""
    took = {"ttft": record.ttft_s, "tpot": record.itl_s or 0.0, "e2el": record.seconds}
    return all(took[name] <= bound for name, bound in bounds.items())


def drafts(records: Sequence[Record]) -> list[int | None]:
    """Sums by `FIELDS` over the requests that tell, else over the turns by counters."""
    each = [r.acceptance for r in records if r.acceptance]
    each = each or [r.counted for r in records if r.counted]
    values = [[getattr(one, name) for one in each] for name in FIELDS]
    return [sum(of) if of and None not in of else None for of in values]


def times(values: Sequence[float | None]) -> str:
    """Percentiles of seconds, in ms."""
    found = percentiles([(1e3 * v, 1) for v in values if v is not None])
    return " / ".join(map(figures, (found.p50, found.p90, found.p99))) if found else MISSING


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
    grids, lines, base = list[Grid](), list[Mapping[str, Any]](), next(iter(arms))
    remarks = [f"{name}: {what}." for name, what in arms.items()]
    judged = f"equal to those of {base}, text by text; no checkpoint was given, and arms that err "
    judged = (
        "as the checkpoint's model gives them (verify)" if verdicts else judged + "alike are equal"
    )
    for clients in sorted({r.concurrency for r in records}):
        level = Level([r for r in records if r.concurrency == clients], [*arms], verdicts)
        rows = [level.cells(arm, bounds) for arm in arms]
        columns = [Column(name, kind="label" if name == "arm" else "number") for name in rows[0]]
        grids += [grid(columns, [[*row.values()] for row in rows], str(clients))]
        grids += level.categories()
        remarks += level.notes()
        lines += map(level.numbers, arms)
    remarks += [f"lossless: answers {judged}.", *notes, "Columns and rules: docs/servers.md."]
    return Table(title, title, tuple(grids), tuple(lines), remarks=tuple(remarks))
