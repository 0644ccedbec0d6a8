"""The search: tries sets and records each trial, resumable at any; times the best ones again."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from skipbench.console import progress, say
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines
from skipbench.runs.lock import held
from skipbench.runs.reading import readable
from skipbench.search.strategies import Strategy

# seconds per token, registered for a set without a value before any other set has one
UNKNOWN_WORST = 1.0
BEST, TIMES = 5, 3  # sets that are timed again, and how often
RETIMED = "retimed.jsonl"  # beside the trace; a line per number of iterations at an end

Objective = Callable[[DraftPlan], tuple[float, dict[str, float]]]


@dataclass(frozen=True)
class Trial:
    """One evaluated skip set, one line of the trace."""

    iteration: int
    skip: str
    value: float | None  # objective, minimised; `None` without a finite number
    detail: dict[str, float]
    point: list[float] | None  # raw point of a Bayesian suggestion
    seconds_suggest: float
    seconds_objective: float
    best: float | None = None  # value up to here, for readers of the trace

    @property
    def seconds(self) -> float:
        return self.seconds_suggest + self.seconds_objective


@dataclass(frozen=True)
class Retimed:
    """The best sets of the first `iterations` trials, the best of the search first."""

    iterations: int
    best: str
    value: float  # median of the new values of `best`
    sets: list[str]
    values: list[list[float]]  # new values of each set, in the order of the turns


def search(
    objective: Objective,
    strategy: Strategy,
    layers: int,
    iterations: int,
    trace: Path,
    settings: Mapping[str, object],
) -> Trial:
    """Tries up to `iterations` sets and returns the best trial; earlier trials in `trace` count.
    `objective`: the value of a set, smaller is better, and details for the trace; `settings`: all
    that the search depends on.

    Raises SkipbenchError where the trace is of other settings or another course of the strategy, is
    damaged, not writable or written by another process, or no trial had a value.
    """
    with held(trace.parent), progress("search", iterations) as advance:
        done = _open(trace, settings, layers, iterations)
        trials, order = list[Trial](), list[Trial]()
        for iteration in range(iterations):
            if iteration >= len(done):
                began = time.perf_counter()
                if (skip := strategy.suggest()) is None:
                    break
                trial = _try(objective, skip, iteration, strategy.point, began)
            else:
                trial = done[iteration]
                skip = DraftPlan.parse(trial.skip, layers)
                # A Gaussian process would take seconds to repeat a suggestion; its point is in the
                # trace. The others answer at once.
                if trial.point is None and strategy.suggest() != skip:
                    raise SkipbenchError(
                        f"{trace}, line {iteration + 2}: this search would not have tried "
                        f"{trial.skip!r} there: another version or seed; move it away"
                    )
                strategy.point = trial.point
            trials.append(trial)
            order = ranked(trials)
            counted = order[-1].value if trial.value is None and order else trial.value
            strategy.register(skip, UNKNOWN_WORST if counted is None else counted)
            if iteration >= len(done):
                trial = replace(trial, best=order[0].value if order else None)
                append_line(trace, json.dumps(asdict(trial), allow_nan=False))
                detail = (order[0] if order else trial).detail
                speed, alpha = (detail.get(k, 0) for k in ("tokens_per_s", "alpha"))
                advance(f"best {speed:.0f} tokens/s, alpha {alpha:.3f}")
        if not order:
            raise SkipbenchError(f"no skip set of {trace} gave a finite value")
        return order[0]


def _try(
    objective: Objective, skip: DraftPlan, iteration: int, point: list[float] | None, began: float
) -> Trial:
    suggested = time.perf_counter()
    try:
        value, detail = objective(skip)
    except FloatingPointError:
        value, detail = math.nan, {}
    finite = {k: v for k, v in detail.items() if math.isfinite(v)}  # JSON has no others
    seconds = round(suggested - began, 4), round(time.perf_counter() - suggested, 4)
    known = value if math.isfinite(value) else None
    return Trial(iteration, str(skip), known, finite, point, *seconds)


def _open(trace: Path, settings: Mapping[str, object], layers: int, limit: int) -> list[Trial]:
    """The trials in `trace`, which begins here where there is none."""
    # as a trace gives them back: a tuple becomes a list
    now = json.loads(json.dumps(settings))
    lines = read_lines(trace, repair=True)
    if not lines:
        append_line(trace, json.dumps({"settings": now}))
        return []
    try:
        before = msgspec.json.decode(lines[0][1])["settings"]
        keys = {k for k in {*before, *now} if before.get(k) != now.get(k)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = "not the settings of a search"
        raise SkipbenchError(f"{trace}, line 1: {what} ({error!r})") from error
    if keys:
        others = ", ".join(sorted(keys))
        raise SkipbenchError(f"{trace} is a search with other settings ({others}); move it away")
    return read_trials(trace, len(lines), layers)[:limit]


def read_trials(trace: Path, iterations: int, layers: int | None = None) -> list[Trial]:
    """The first `iterations` trials of a trace, of a model of so many `layers` if they are given.
    Raises SkipbenchError where a line is damaged.
    """
    trials = list[Trial]()
    for number, line in read_lines(trace)[1 : iterations + 1]:
        try:
            trials.append(msgspec.json.decode(line, type=Trial))
            if trials[-1].iteration != number - 2:
                raise ValueError(f"iteration {trials[-1].iteration} where {number - 2} belongs")
            if layers is not None:
                DraftPlan.parse(trials[-1].skip, layers)
        except (SkipbenchError, ValueError, RecursionError) as error:
            reason = f"not a trial ({error}); move it away"
            raise SkipbenchError(f"{trace}, line {number}: {reason}") from error
    return trials


def best_of_trace(trace: Path, iterations: int) -> str | None:
    """The best of the first `iterations` sets of a search, by the new timings of the best ones;
    None where it has not tried so many yet.
    """
    order = ranked(trials := read_trials(trace, iterations))
    if retimed := read_retimed(trace.parent, iterations):  # also of one that ran out of sets
        return retimed.best
    return order[0].skip if order and len(trials) >= iterations else None


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a value, the best first; of equal ones the earliest."""
    return sorted((t for t in trials if t.value is not None), key=lambda t: t.value or 0.0)


def retime(objective: Objective, trace: Path, layers: int, iterations: int) -> Trial:
    """The best trial, by new timings of the best `BEST` sets; its value is their median.

    The best of many noisy timings is too good, and often not the best set. Each set is timed
    `TIMES` times, interleaved, once for all: the timings are kept beside the trace.
    """
    trials = read_trials(trace, iterations)
    if (again := read_retimed(trace.parent, iterations)) is None:
        sets = list(dict.fromkeys(t.skip for t in ranked(trials)))[:BEST]
        if len(sets) == 1:
            return ranked(trials)[0]
        values: list[list[float]] = [[] for _ in sets]
        with progress("best sets again", len(sets) * TIMES) as advance:
            for turn, place in itertools.product(range(TIMES), range(len(sets))):
                number = (place + turn) % len(sets)
                values[number].append(objective(DraftPlan.parse(sets[number], layers))[0])
                advance("")
        medians = [statistics.median(times) for times in values]
        best = medians.index(min(medians))
        again = Retimed(iterations, sets[best], medians[best], sets, values)
        append_line(trace.parent / RETIMED, json.dumps(asdict(again), allow_nan=False))
    number, of = again.sets.index(again.best) + 1, len(again.sets)
    say(f"the best of {of} sets, timed again {TIMES} times, is number {number} of the search")
    return replace(next(t for t in trials if t.skip == again.best), value=again.value)


def read_retimed(folder: Path, iterations: int) -> Retimed | None:
    """The timings after so many trials, or `None`; SkipbenchError for a file that is damaged."""
    path = folder / RETIMED
    with readable(path):
        retimed = [msgspec.json.decode(line, type=Retimed) for _, line in read_lines(path)]
    return next((r for r in retimed if r.iterations == iterations), None)
