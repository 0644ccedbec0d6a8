"""Scores of completions over many samples: means per arm, per group, and whether the arms agree."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from skipbench.runs.measures import GroupScores, Score, Scores
from skipbench.runs.record import Sample

ArmScores = dict[str, Scores]
"""Scores by arm, vanilla and method."""


def mean_scores(sound: Sequence[Sample]) -> ArmScores:
    """Of each arm, the mean of each scorer over the samples that it scored."""
    return {
        arm: _arm_scores([s.score.get(arm, {}) for s in sound]) for arm in ("vanilla", "method")
    }


def score_equal(sound: Sequence[Sample]) -> bool | None:
    """Whether each sample scores the same in both arms, not only their mean; None where nothing is
    scored.
    """
    scored = [s.score for s in sound if s.score]
    return all(score.get("vanilla") == score.get("method") for score in scored) if scored else None


def score_summary(
    sound: Sequence[Sample], scores: Callable[[Sequence[Sample]], ArmScores]
) -> Score:
    """`scores` of all samples, and by every label of every group.

    Args:
        scores: gives `{"vanilla": {name: value}, "method": {name: value}}` of some of the samples.
    """
    by: dict[str, dict[str, GroupScores]] = {}
    for group, label in sorted({pair for s in sound for pair in s.groups.items()}):
        members = [s for s in sound if s.groups.get(group) == label]
        by.setdefault(group, {})[label] = GroupScores(**scores(members), samples=len(members))
    return Score(**scores(sound), by=by)


def _arm_scores(scores: Sequence[dict[str, float]]) -> Scores:
    names = sorted({name for of in scores for name in of})
    finite = {
        name: [of[name] for of in scores if name in of and math.isfinite(of[name])]
        for name in names
    }
    return {name: fmean(values) for name, values in finite.items() if values}
