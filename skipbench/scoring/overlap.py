"""Scores of the words that two texts share: ROUGE of a summary, BLEU of a translation, and BLEU of
all translations together.

ROUGE is rouge-score's F-measure with its stemmer, as Self-SD's published notebook computes it; BLEU
is sacrebleu's in percent, with its defaults (13a tokens, mixed case, exponential smoothing).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from skipbench.data.rows import Reference
from skipbench.metrics.summary import mean_scores, score_summary
from skipbench.runs.measures import Metrics
from skipbench.runs.record import VANILLA, Texts, Turn
from skipbench.scoring.text import Scores, before_next, first_line, need


@functools.cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # loads nltk, which takes a second

    # The L of Self-SD's Table 17 is sentence-level: it lies as far below ROUGE-1 as rougeL does,
    # which reads a summary as one line. So nothing here needs a sentence splitter.
    return RougeScorer(("rouge1", "rouge2", "rougeL"), use_stemmer=True)


def rouge(completion: str, reference: Reference) -> Scores:
    """ROUGE-1, -2 and -L against `reference["summary"]`, up to the next article of the prompt."""
    summary = need(reference, "summary", str)
    text = before_next(completion, "Article:", "Summarize the following text")
    return {name: float(value.fmeasure) for name, value in _rouge().score(summary, text).items()}


@functools.cache
def _bleu(effective_order: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    # WMT's texts are tokenised, which sacrebleu warns of and which does not change the comparison
    # of two arms: force.
    return BLEU(effective_order=effective_order, force=True)


def bleu(completion: str, reference: Reference) -> Scores:
    """BLEU of the first line against `reference["translation"]`, over a short sentence's orders."""
    translation = need(reference, "translation", str)
    found = _bleu(True).sentence_score(first_line(completion), [translation])
    return {"sentence_bleu": min(found.score, 100.0)}  # its rounding may end above


def corpus_bleu(completions: Sequence[str], references: Sequence[Reference]) -> Scores:
    """BLEU of all first lines together: the number that papers print."""
    translations = [need(reference, "translation", str) for reference in references]
    found = _bleu(False).corpus_score([*map(first_line, completions)], [translations])
    return {"bleu": min(found.score, 100.0)}


CORPUS_SCORERS = {"bleu": corpus_bleu}


def corpus_scored(
    scorer: str, metrics: Metrics, turns: Sequence[Turn], arm: str, texts: Mapping[int, Texts]
) -> Metrics:
    """The metrics of an arm with those of a corpus scorer, of turns that did not fail, beside the
    means. Raises SkipbenchError for a reference without the entries of the scorer.
    """

    def scores(members: Sequence[Turn], arm: str) -> dict[str, float | None]:
        own = [texts[turn.index] for turn in members]
        said, wanted = [t.arms[arm] for t in own], [t.reference for t in own]
        whole = CORPUS_SCORERS[scorer](said, wanted) if own else {}
        return {**mean_scores(members, arm), **whole}

    sound = [turn for turn in turns if turn.arms[arm].lossless != "failed"]
    ours, theirs = (score_summary(sound, name, scores) for name in (arm, VANILLA))
    return replace(metrics, score=ours, vanilla=replace(metrics.baseline, score=theirs))
