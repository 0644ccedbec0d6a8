"""The table of a bench of servers, lines on what went wrong, and what the bench comes to."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import convert

from skipbench.contrib.servers.about import FIRST, Server, settings_of
from skipbench.contrib.servers.summary import judged
from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import FEWEST
from skipbench.report.tables.stored import Summary
from skipbench.report.values import figures, number
from skipbench.runs.record import Arm, Turn
from skipbench.runs.run import Run
from skipbench.runs.store import OF_ARM

KEYS = ("n", "speedup", "best", "tokens_per_s", "ttft", "itl", "accepted", "M", "lossless")
RULES = "Columns and rules: docs/servers.md."
SHOWN = 3  # prompts that a note names


def bench_summary(
    name: str, runs: Sequence[Run], bounds: Mapping[str, float] = {}, notes: Sequence[str] = ()
) -> Summary:
    """The summary of the table of the servers of these rows.

    Args:
        bounds: of goodput, in seconds; empty: not asked for.
        notes: further remarks.
    """
    servers = {run.arm: convert(run.settings[OF_ARM], Server) for run in runs}
    told = settings_of(servers)
    remarks = [f"{arm}: {of}{told[arm] and f'; {told[arm]}'}." for arm, of in servers.items()]
    for clients, row in groupby(runs, lambda run: run.setting("concurrency")):
        remarks += [f"{clients} in flight, {text}." for text in remarks_on([*row], bounds)]
    return Summary(name, "", runs, KEYS, [*remarks, *notes, RULES])


def remarks_on(row: Sequence[Run], bounds: Mapping[str, float] = {}) -> Iterator[str]:
    """The rates of whole servers, and what went wrong, by name; nothing is left out."""
    clients, rates, good = row[0].setting("concurrency"), list[str](), list[str]()
    blocks = len({turn.unit for turn in row[0].turns})
    if clients > 1 and blocks < FEWEST:
        more = f"{FEWEST} give an interval, limit={2 * clients * FEWEST}"
        yield f"{blocks} turns of each server; {more}"
    for run in row:
        kept, seconds = sum(within(arm, bounds) for arm in run.arms), spans(run, clients)
        rates.append(f"{run.arm} {figures(over(sum(arm.count for arm in run.arms), seconds))}")
        good.append(f"{run.arm} {figures(over(kept, seconds))} ({kept} of {len(run.turns)})")
    yield f"output tok/s: {', '.join(rates)}"
    if bounds:
        yield f"goodput, requests/s: {', '.join(good)}"
    room = "answers are reasoning alone; a larger dataset.max_new_tokens= leaves room for a text"
    usage = f"the text of {FIRST} and another number of tokens: one server's usage is wrong"
    for run in row:
        lost = Counter(error for turn in run.turns if (error := turn.arms[run.arm].error))
        pairs = zip(run.sound, run.arms, strict=True)
        answered = [(turn.id, arm.served) for turn, arm in pairs if arm.served]
        passed = Counter(text for _, served in answered for text in served.faults)
        odd = [turn.id for turn in run.sound if miscounted(turn, run.arm)]
        bare = [name for name, served in answered if not served.usage]
        mute = [turn.id for turn in run.sound if reasoned(run, turn)]
        for what, found in (
            (f"{lost.total()} failed", [f"{n} {text}" for text, n in lost.items()]),
            ("timed at a later try, after", [f"{n} {text}" for text, n in passed.items()]),
            (f"{len(odd)} answers have {usage}, speedups are of their seconds", odd[:SHOWN]),
            (f"{len(mute)} {room}", mute[:SHOWN]),
            (f"{len(bare)} answers without usage, tokens are counted by events", bare[:SHOWN]),
        ):
            if found:
                yield f"{run.arm}: {what}: {'; '.join(found)}"
    compared = f"answers equal to those of {FIRST}, text by text, so that arms that err alike are"
    if row[0].setting("decoding.temperature"):
        compared = "not told, answers are sampled and no checkpoint was given"
    if judged(row[0]):
        compared = "answers as the checkpoint's model gives them (verify)"
    yield f"lossless: {compared}"


def within(arm: Arm, bounds: Mapping[str, float]) -> bool:
    """Whether a request kept every bound (s)."""
    seconds = arm.seconds
    took = {"ttft": seconds.prefill, "tpot": arm.s_per_token or 0.0, "e2el": seconds.total}
    return all(took[name] <= bound for name, bound in bounds.items())


def reasoned(run: Run, turn: Turn) -> bool:
    """Whether an answer has no text beside its reasoning, as far as texts are there."""
    texts, served = run.texts.get(turn.index), turn.arms[run.arm].served
    return bool(texts and served and served.apart and not texts.arms[run.arm].strip())


def miscounted(turn: Turn, arm: str) -> bool:
    """Whether two equal texts have other numbers of tokens: one of their servers is wrong."""
    first, own = turn.arms[FIRST], turn.arms[arm]
    return first.finish != "failed" and first.same(own) and first.count != own.count


def spans(run: Run, clients: int) -> float:
    """Seconds of a server's turns, each from its first request to its last answer."""
    turns = dict[str, list[tuple[float, float]]]()
    for turn, arm in zip(run.sound, run.arms, strict=True):
        at = arm.served.at if arm.served else 0.0
        unit = turn.unit if clients > 1 else turn.id
        turns.setdefault(unit, []).append((at, at + arm.seconds.total))
    each = (zip(*of, strict=True) for of in turns.values())
    return math.fsum(max(ends) - min(begins) for begins, ends in each)


def sentence(run: Run) -> str:
    """What a server comes to: how fast it is, and whether its answers are right or the same."""
    found, same = run.measured.speedup, run.measured.lossless
    ends = "" if found.e2e_ci95 is None else " [{:.2f}, {:.2f}]".format(*found.e2e_ci95)
    words = f"{run.method} is {number(found.e2e)} times as fast as {run.over}{ends}"
    of, others = same.comparable, same.comparable - same.identical
    if found.e2e is None:
        words = f"{run.method} has no prompt that both it and {run.over} have answered"
    elif judged(run):
        kinds = {"by a tie": same.ties, "wrong": same.diverged, "not checked": same.unchecked}
        parts = [f"{same.identical} of {of} answers are the model's own"]
        words += f"; {', '.join(parts + [f'{n} {kind}' for kind, n in kinds.items() if n])}"
    elif of:
        words += f"; {others} of {of} answers differ" if others else "; the same answers"
    clients: int = run.setting("concurrency")
    failed = f"; failed: {same.failed}" * bool(same.failed)
    return f"{clients} in flight: " * (clients > 1) + words + failed
