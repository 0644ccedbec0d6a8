"""The order of a run that may stop early, and when it stops."""

from collections import Counter
from collections.abc import Sequence

from skipbench.bench.prompts import Prompt
from skipbench.metrics.interval import half_width
from skipbench.metrics.summary import speedups
from skipbench.runs.record import Sample


def spread(prompts: Sequence[Prompt]) -> list[int]:
    """Indices with the groups in turns, since a file may hold one after the other; the turns of a
    conversation stay together.
    """
    seen, ranks = Counter[str](), list[int]()
    for prompt in prompts:
        if prompt.row.after is None:
            group = str(sorted((k, v) for k, v in prompt.row.groups.items() if k != "turn"))
            rank = seen[group]
            seen[group] += 1
        ranks.append(rank)  # a later turn has its first turn's
    return sorted(range(len(prompts)), key=lambda i: ranks[i])


def narrow(samples: Sequence[Sample], until_ci: float | None) -> bool:
    """Checks whether the speedup's interval is as narrow as asked for."""
    return until_ci is not None and half_width(list(speedups(samples).values())) < until_ci
