"""Replays a run with other stop rules and trees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from skipbench.contrib.artifact.costs import CachedCosts, Costs
from skipbench.contrib.artifact.replay import project
from skipbench.contrib.artifact.replay_rules import Rule, replay, texts_of
from skipbench.decode.stopping import Adaptive, Fixed
from skipbench.runs.record import Sample

THRESHOLDS = (0.0, *(n / 20 for n in range(4, 20)), 0.98)
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
TREES = ((), (2, 1, 1, 1), (3, 2, 1, 1), (4, 3, 2, 1), (6, 4, 2, 1), (10, 5, 3, 1))
"""Widths that are tried where the run's own tree is as wide."""
KNOWN = 0.9  # share of its rounds that a replay must find in the records to be trusted


@dataclass(frozen=True)
class Replay:
    """A stop rule and a tree, as `words` of the command line, and their replayed quantities."""

    words: str
    speedup: float
    M: float
    alpha: float
    known: float


def search(samples: Sequence[Sample], costs: Costs, tree: Sequence[int] = ()) -> list[Replay]:
    """Every rule with every tree that is nowhere wider than the run's own, fastest first. Raises
    SkipbenchError if the records do not hold what a replay needs.
    """
    texts, base = texts_of(samples, costs.layers), project(samples, costs)
    cached = CachedCosts(costs)
    longest = max((r.steps for s in samples for r in s.method.rounds), default=0)
    trees = [
        widths
        for widths in dict.fromkeys((tuple(tree), *TREES))
        if not widths or (tree and all(a <= b for a, b in zip(widths, tree, strict=True)))
    ]
    replays = []
    for words, make in rules(longest):
        for widths in trees:
            outcome = replay(texts, make(), widths, cached)
            own = f" method.tree=[{','.join(map(str, widths))}]" if tree else ""
            rounds, steps = max(1, outcome.rounds), max(1, outcome.steps)
            M, alpha, known = outcome.emitted / rounds, outcome.accepted / steps, outcome.unknown
            replays.append(Replay(words + own, outcome.speedup(base), M, alpha, 1 - known / rounds))
    return sorted(replays, key=lambda one: -one.speedup)


def rules(longest: int) -> Iterator[tuple[str, Callable[[], Rule]]]:
    """Fixed and adaptive rules of up to `longest` steps, with their words."""
    for steps in range(1, longest + 1):
        head = f"stop@method.stop={{}} method.stop.max_steps={steps} method.stop."
        for bound in THRESHOLDS:
            yield head.format("fixed") + f"threshold={bound:g}", partial(Fixed, steps, bound)
        for target in TARGETS:
            rule = partial(Adaptive, max_steps=steps, target=target)
            yield head.format("adaptive") + f"target={target:g}", rule
