"""Stop rules and trees that a run is replayed with, best first."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from skipbench.decode.stopping import Adaptive, Fixed
from skipbench.metrics.costs import Costs
from skipbench.metrics.replay_rules import Baseline, Kept, Rule, sum_of, texts_of
from skipbench.runs.record import Sample

THRESHOLDS = (0.0, *(n / 20 for n in range(4, 20)), 0.98)
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
TREES = ((), (2, 1, 1, 1), (3, 2, 1, 1), (4, 3, 2, 1), (6, 4, 2, 1), (10, 5, 3, 1))
"""Widths that are tried where the run's own tree is as wide."""
KNOWN = 0.9
"""Share of its rounds that a replay must find in the records to be trusted."""


@dataclass(frozen=True)
class Replay:
    """A stop rule and a tree, and what they would do; `words` choose them on the command line."""

    words: str
    speedup: float
    M: float
    alpha: float
    known: float


def search(samples: Sequence[Sample], costs: Costs, tree: Sequence[int] = ()) -> list[Replay]:
    """Every rule with every tree that is nowhere wider than the run's own, fastest first.

    Raises:
        SkipbenchError: the records do not hold what a replay needs.
    """
    texts, base, kept = texts_of(samples, costs.layers), Baseline.of(samples, costs), Kept(costs)
    longest = max((r.steps for s in samples for r in s.method.rounds), default=0)
    trees = [w for w in dict.fromkeys((tuple(tree), *TREES)) if _within(w, tree)]
    found = []
    for words, make in rules(longest):
        for widths in trees:
            outcome, speedup = sum_of(texts, make, widths, kept, base)
            own = f" method.tree=[{','.join(map(str, widths))}]" if tree else ""
            found.append(
                Replay(
                    words + own,
                    speedup,
                    outcome.emitted / max(1, outcome.rounds),
                    outcome.accepted / max(1, outcome.steps),
                    1 - outcome.unknown / max(1, outcome.rounds),
                )
            )
    return sorted(found, key=lambda one: -one.speedup)


def rules(longest: int) -> Iterator[tuple[str, Callable[[], Rule]]]:
    """Fixed and adaptive rules of up to `longest` steps, with the words that choose them."""
    for steps in range(1, longest + 1):
        for threshold in THRESHOLDS:
            yield (
                f"stop@method.stop=fixed method.stop.max_steps={steps} "
                f"method.stop.threshold={threshold:g}",
                partial(Fixed, steps, threshold),
            )
        for target in TARGETS:
            yield (
                f"stop@method.stop=adaptive method.stop.max_steps={steps} "
                f"method.stop.target={target:g}",
                partial(Adaptive, max_steps=steps, target=target),
            )


def _within(widths: Sequence[int], own: Sequence[int]) -> bool:
    if not widths or not own:
        return not widths
    return all(a <= b for a, b in zip(widths, own, strict=True))
