"""BLEU in percent, by sacrebleu with its defaults (13a tokens, mixed case, exponential
smoothing).
"""

import functools
from collections.abc import Sequence
from typing import Any

from skipbench.scoring.text import Scores, first_line, need


@functools.cache
def _metric(effective_order: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    # WMT's texts are tokenised, which sacrebleu warns of and which does not change the comparison
    # of two arms: force.
    return BLEU(effective_order=effective_order, force=True)


def bleu(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    """BLEU of the first line against `reference["translation"]`, over the orders that a short
    sentence has.
    """
    translation = need(reference, "translation", str)
    return {
        "sentence_bleu": _percent(
            _metric(True).sentence_score(first_line(completion), [translation]).score
        )
    }


def corpus_bleu(completions: Sequence[str], references: Sequence[dict[str, Any]]) -> Scores:
    """BLEU of all first lines together: the number that papers print."""
    translations = [need(reference, "translation", str) for reference in references]
    return {
        "bleu": _percent(
            _metric(False).corpus_score([*map(first_line, completions)], [translations]).score
        )
    }


def _percent(value: float) -> float:
    return min(value, 100.0)  # a perfect score comes out of sacrebleu a rounding error above
