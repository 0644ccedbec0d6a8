"""Scores that are of all completions together, not means over samples."""

from collections.abc import Iterable, Sequence
from typing import Any

from skipbench.metrics.scores import ArmScores, mean_scores, score_summary
from skipbench.runs.completions import Completion
from skipbench.runs.record import Sample
from skipbench.scoring.bleu import corpus_bleu

CORPUS_SCORERS = {"bleu": corpus_bleu}
ARMS = ("vanilla", "method")


def corpus_scores(scorer: str, completions: Iterable[Completion]) -> ArmScores:
    """Scores of both arms, `{"vanilla": {...}, "method": {...}}`; `{}` for a scorer without one, or
    no completions.

    Raises:
        SkipbenchError: a reference without what the scorer needs.
    """
    found = list(completions)
    if scorer not in CORPUS_SCORERS or not found:
        return {}
    references = [c.reference for c in found]
    return {
        arm: CORPUS_SCORERS[scorer]([getattr(c, arm) for c in found], references) for arm in ARMS
    }


def corpus_summary(
    scorer: str, samples: Sequence[Sample], completions: Sequence[Completion]
) -> dict[str, Any]:
    """What `metrics.json` holds under `score`: the means over the samples that did not fail, and
    the corpus scores of the same.
    """
    by_index = {c.index: c for c in completions}

    def scores(members: Sequence[Sample]) -> ArmScores:
        means = mean_scores(members)
        corpus = corpus_scores(scorer, [by_index[s.index] for s in members])
        return {arm: means[arm] | corpus.get(arm, {}) for arm in ARMS}

    return score_summary([s for s in samples if s.lossless != "failed"], scores)
