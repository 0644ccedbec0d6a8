"""The search itself: try, write the trial down, learn; resumable at any moment."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.store import append_line, read_lines
from skipbench.search.strategies import Bayes, Strategy
from skipbench.skipset import SkipSet


@dataclass(frozen=True)
class Trial:
    """One evaluated skip set, one line of the trace."""

    iteration: int
    skip: str
    value: float | None
    """Objective, minimised; `None` where the evaluation gave no finite number."""
    detail: dict[str, float]
    point: list[float] | None
    """Raw point of a Bayesian suggestion."""
    seconds_suggest: float
    seconds_objective: float


Objective = Callable[[SkipSet], tuple[float, dict[str, float]]]


def search(
    objective: Objective,
    strategy: Strategy,
    layers: int,
    iterations: int,
    trace: Path,
    settings: dict[str, Any],
    progress: Callable[[Trial, Trial], None] | None = None,
) -> Trial:
    """Tries up to `iterations` sets and returns the best trial; earlier trials in `trace` count.

    Args:
        objective: the value of a set (smaller is better) and details for the trace.
        settings: what the search depends on; a trace with other settings is refused.
        progress: called with each new trial and the best so far.

    Raises:
        SkipbenchError: the trace belongs to other settings or is damaged before its last line, or no trial had a value.
    """
    done = _read(trace, settings, iterations)
    if not trace.exists() or trace.stat().st_size == 0:
        trace.parent.mkdir(parents=True, exist_ok=True)
        append_line(trace, json.dumps({"settings": settings}))
    worst = max((t.value for t in done if t.value is not None), default=1.0)
    best: Trial | None = None
    for trial in done:
        if isinstance(strategy, Bayes):
            strategy.restore(trial.point)
        strategy.register(SkipSet.parse(trial.skip, layers), worst if trial.value is None else trial.value)
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
        finite = math.isfinite(value)
        point = strategy.point() if isinstance(strategy, Bayes) else None
        seconds = round(suggested - began, 4), round(time.perf_counter() - suggested, 4)
        trial = Trial(iteration, str(skip), value if finite else None, detail, point, *seconds)
        append_line(trace, json.dumps(asdict(trial), allow_nan=False))
        worst = max(worst, value) if finite else worst
        if isinstance(strategy, Bayes):
            strategy.restore(point)
        strategy.register(skip, value if finite else worst)
        best = _better(best, trial)
        if progress is not None:
            progress(trial, best)
    if best is None or best.value is None:
        raise SkipbenchError(f"no skip set of {trace} gave a finite value")
    return best


def _better(best: Trial | None, trial: Trial) -> Trial:
    if best is None or best.value is None:
        return trial
    return trial if trial.value is not None and trial.value < best.value else best


def _read(trace: Path, settings: dict[str, Any], limit: int) -> list[Trial]:
    trials: list[Trial] = []
    for number, line in read_lines(trace, repair=True):
        try:
            raw = json.loads(line)
            if number == 1:
                before = raw["settings"]
                keys = sorted(k for k in {*before, *settings} if before.get(k) != settings.get(k))
                if keys:
                    raise SkipbenchError(
                        f"{trace} is a search with other settings ({', '.join(keys)}); move it away or choose another folder"
                    )
            else:
                trials.append(Trial(**raw))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise SkipbenchError(f"{trace}, line {number}: not a trial ({error})") from error
    return trials[:limit]
