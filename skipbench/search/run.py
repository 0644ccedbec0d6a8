"""The search: tries a set, records the trial, learns; can be resumed at any moment."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, held, read_lines
from skipbench.runs.reading import printable, strict_json
from skipbench.search.strategies import Bayes, Strategy
from skipbench.skipset import SkipSet

# seconds per token, registered for a set without a value before any other set has one
UNKNOWN_WORST = 1.0


@dataclass(frozen=True)
class Trial:
    """One evaluated skip set, one line of the trace."""

    iteration: int
    skip: str
    value: float | None
    """Objective, minimised; `None` without a finite number."""
    detail: dict[str, float]
    point: list[float] | None
    """Raw point of a Bayesian suggestion."""
    seconds_suggest: float
    seconds_objective: float
    best: float | None = None
    """Best value up to here, for reading the trace; a search recomputes it."""


Objective = Callable[[SkipSet], tuple[float, dict[str, float]]]


def search(
    objective: Objective,
    strategy: Strategy,
    layers: int,
    iterations: int,
    trace: Path,
    settings: Mapping[str, object],
    progress: Callable[[Trial, Trial], None] | None = None,
) -> Trial:
    """Tries up to `iterations` sets and returns the best trial; earlier trials in `trace` count.

    Args:
        objective: the value of a set (smaller is better) and details for the trace.
        settings: what the search depends on; a trace with other settings is refused.
        progress: called with each new trial and the best so far.

    Raises:
        SkipbenchError: the trace belongs to other settings or to another course of the strategy, is
            damaged before its last line, not writable or written by another process, or no trial
            had a value.
    """
    with held(trace.parent):
        done = _open(trace, settings, layers, iterations)
        worst: float | None = None
        best: Trial | None = None
        for trial in done:
            known = SkipSet.parse(trial.skip, layers)
            # A Gaussian process would take seconds to repeat a suggestion; its point is in the
            # trace. The others answer at once.
            if trial.point is None and strategy.suggest() != known:
                raise SkipbenchError(
                    f"{trace}, line {trial.iteration + 2}: this search would not have tried "
                    f"{trial.skip!r} there; the trace is of another version or seed: move it away"
                )
            worst = _learn(strategy, known, trial, worst)
            best = _better(best, trial)
        for iteration in range(len(done), iterations):
            began = time.perf_counter()
            skip = strategy.suggest()
            if skip is None:
                break
            suggested = time.perf_counter()
            try:
                value, detail = objective(skip)
            except FloatingPointError:
                value, detail = math.nan, {}
            trial = Trial(
                iteration,
                str(skip),
                value if math.isfinite(value) else None,
                {k: v for k, v in detail.items() if math.isfinite(v)},  # JSON has no others
                strategy.point() if isinstance(strategy, Bayes) else None,
                round(suggested - began, 4),
                round(time.perf_counter() - suggested, 4),
            )
            trial = replace(trial, best=_better(best, trial).value)
            best = _better(best, trial)
            append_line(trace, json.dumps(asdict(trial), allow_nan=False))
            worst = _learn(strategy, skip, trial, worst)
            if progress is not None:
                progress(trial, best)
        if best is None or best.value is None:
            raise SkipbenchError(f"no skip set of {trace} gave a finite value")
        return best


def _learn(strategy: Strategy, skip: SkipSet, trial: Trial, worst: float | None) -> float | None:
    """Registers a trial, one without a value as the worst so far, and returns the worst value."""
    if isinstance(strategy, Bayes):
        strategy.restore(trial.point)
    if trial.value is None:
        strategy.register(skip, UNKNOWN_WORST if worst is None else worst)
        return worst
    strategy.register(skip, trial.value)
    return trial.value if worst is None else max(worst, trial.value)


def _better(best: Trial | None, trial: Trial) -> Trial:
    if best is None or best.value is None:
        return trial
    return trial if trial.value is not None and trial.value < best.value else best


def _open(trace: Path, settings: Mapping[str, object], layers: int, limit: int) -> list[Trial]:
    """The trials in `trace`, which begins here where there is none."""
    # as a trace gives them back: a tuple becomes a list
    settings = json.loads(json.dumps(settings))
    lines = read_lines(trace, repair=True)
    if not lines:
        append_line(trace, json.dumps({"settings": settings}))
        return []
    try:
        before = strict_json(lines[0][1])["settings"]
        # of an earlier version, or of weights that were not at hand
        if before.get("weights_sha256") is None:
            before, settings = (
                {k: v for k, v in s.items() if k != "weights_sha256"} for s in (before, settings)
            )
        keys = sorted(k for k in {*before, *settings} if before.get(k) != settings.get(k))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SkipbenchError(
            f"{trace}, line 1: not the settings of a search ({error!r})"
        ) from error
    if keys:
        raise SkipbenchError(
            f"{trace} is a search with other settings ({', '.join(keys)}); move it away or "
            "choose another folder"
        )
    return [_trial(trace, number, line, layers) for number, line in lines[1:]][:limit]


def read_trials(trace: Path, layers: int, iterations: int) -> list[Trial]:
    """The first `iterations` trials of a trace; raises SkipbenchError where a line is damaged."""
    lines = read_lines(trace)[1 : iterations + 1]
    return [_trial(trace, number, line, layers) for number, line in lines]


def _trial(trace: Path, number: int, line: bytes, layers: int) -> Trial:
    try:
        trial: Trial = msgspec.convert(strict_json(line), Trial)
        SkipSet.parse(trial.skip, layers)
        if trial.value is not None and not math.isfinite(trial.value):
            raise ValueError(f"value {trial.value}")
        if trial.iteration != number - 2:
            raise ValueError(f"iteration {trial.iteration} where {number - 2} belongs")
    except (SkipbenchError, ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"{trace}, line {number}: not a trial ({printable(str(error))})"
        ) from error
    return trial
