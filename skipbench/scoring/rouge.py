"""ROUGE of a summary, as Self-SD's published notebook computes it: rouge-score with its stemmer,
F-measure.
"""

import functools
from typing import Any

from skipbench.scoring.text import Scores, before_next, need

# The L of Self-SD's Table 17 is sentence-level: it lies as far below ROUGE-1 as rougeL does, which
# reads a summary as one line. So nothing here needs a sentence splitter.
_TYPES = ("rouge1", "rouge2", "rougeL")


@functools.cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # loads nltk, which takes a second

    return RougeScorer(_TYPES, use_stemmer=True)


def rouge(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    """ROUGE-1, -2 and -L against `reference["summary"]`, up to the next article of a few-shot
    prompt.

    Self-SD cuts at a line break and `Article:`, except where they open the completion; here nothing
    is left then.
    """
    summary = need(reference, "summary", str)
    own = before_next(completion, "Article:", "Summarize the following text")
    return {name: float(value.fmeasure) for name, value in _scorer().score(summary, own).items()}
