"""`track=`: what a run writes, a line per prompt and its metrics, goes to a tracker, too."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import asdict

from skipbench.config.extensions import load
from skipbench.config.run_config import RunConfig
from skipbench.console import complain
from skipbench.errors import SkipbenchError
from skipbench.runs.measures import Metrics
from skipbench.runs.record import Sample

Log = Callable[[Mapping[str, float], int], None]
"""Gets numbers by name, and after how many prompts they are."""


def line(sample: Sample) -> dict[str, float]:
    """The numbers of a prompt; none of one that failed."""
    if sample.lossless == "failed":
        return {}
    method, speedup = sample.method, sample.end_to_end
    numbers = {
        "speedup": speedup,
        "tokens": len(method.tokens),
        "tokens_per_round": method.emitted / len(method.rounds) if method.rounds else None,
        "identical": float(sample.lossless == "identical"),
    }
    numbers |= {f"seconds/{phase}": s for phase, s in asdict(method.seconds).items()}
    return {name: value for name, value in numbers.items() if value is not None}


def results_of(metrics: Metrics) -> dict[str, float]:
    """The main numbers of a run that is done."""
    speedup, ends = metrics.speedup.headline
    low, high = ends or (None, None)
    numbers = {"speedup": speedup, "speedup_low": low, "speedup_high": high, "M": metrics.M}
    numbers |= {"alpha": metrics.alpha, "tau": metrics.tau, "tokens_per_s": metrics.tokens_per_s}
    return {f"run/{name}": value for name, value in numbers.items() if value is not None}


@contextlib.contextmanager
def tracked(config: RunConfig, name: str) -> Iterator[Log]:
    """Opens the run `name` in the tracker of the configuration, and ends it; without one, nothing
    is logged. A tracker that fails is named, and the run goes on without it.

    Raises:
        SkipbenchError: its package is not installed, or it refuses, as without a login.
    """
    if config.track is None:
        yield lambda numbers, step: None
        return
    try:
        log, end = load("tracker", config.track)(config, name)
    except Exception as error:  # of any library
        missing = f"needs its package: pip install {config.track}"
        why = missing if isinstance(error, ImportError) else f"cannot begin: {error}"
        raise SkipbenchError(f"track={config.track} {why}") from error
    working = True

    def safe(act: Callable[[], None]) -> None:
        nonlocal working
        try:
            if working:
                act()
        except Exception as error:  # of a library or a server, which the records do not depend on
            working = False
            complain(f"track={config.track} failed, the run goes on without it: {error}")

    try:
        yield lambda numbers, step: safe(lambda: log(numbers, step))
    finally:
        safe(end)
