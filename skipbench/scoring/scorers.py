"""Scores of one completion. A scorer is a pure function of texts; generated programs are run by the
command `score`.
"""

import re
from collections.abc import Callable

from skipbench.data.mini.words import NAMES
from skipbench.data.rows import Reference
from skipbench.errors import SkipbenchError
from skipbench.scoring.answers import aime, gsm8k, mmlu_pro, nq
from skipbench.scoring.overlap import bleu, rouge
from skipbench.scoring.programs import EXECUTED, program_of
from skipbench.scoring.text import Scores, before_next, need

_NAMES = frozenset(NAMES)
_NAME = re.compile(r"\b[A-Z][a-z]+\b")
# Bounded, because int() refuses thousands of digits; nothing that goes on as a decimal number is an
# integer.
_INTEGER = re.compile(r"\s*([-+]?[0-9][0-9,]{0,30})(?![0-9,]|\.[0-9])")


def score(scorer: str, completion: str, prompt: str, reference: Reference) -> Scores:
    """Scores of `completion` by name, higher is better; `{}` where nothing is scored.

    Each is a share from 0 to 1, but BLEU, in percent.

    Raises:
        SkipbenchError: an unknown scorer, or a reference without what the scorer needs.
    """
    if scorer in EXECUTED:
        # A reference that cannot be used shows now, not after the run.
        program_of(scorer, completion, prompt, reference)
        return {}
    if scorer not in SCORERS:
        raise SkipbenchError(f"unknown {scorer=}; known: {', '.join([*SCORERS, *EXECUTED])}")
    return SCORERS[scorer](completion, prompt, reference)


def _has_words(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _stories(completion: str, prompt: str, reference: Reference) -> Scores:
    own = before_next(completion, "Story:")
    occurring = _NAMES & set(_NAME.findall(own))
    return {
        "names_kept": float(occurring == set(need(reference, "names", list))),
        "thing_kept": float(_has_words(own, need(reference, "thing", str))),
    }


def _math(completion: str, prompt: str, reference: Reference) -> Scores:
    answer = need(reference, "answer", int)
    # An answer ends with its only mark: what a model writes behind it belongs to another problem.
    _, mark, rest = before_next(completion, "Question:").partition("####")
    found = _INTEGER.match(rest) if mark else None
    return {"exact": float(found is not None and int(found[1].replace(",", "")) == answer)}


def _summary(completion: str, prompt: str, reference: Reference) -> Scores:
    facts = need(reference, "facts", list)
    own = before_next(completion, "Article:")
    share = sum(_has_words(own, fact) for fact in facts) / len(facts)
    return {"facts": share, "all_facts": float(share == 1.0)}


SCORERS: dict[str, Callable[[str, str, Reference], Scores]] = {
    **{"stories": _stories, "math": _math, "summary": _summary, "rouge": rouge, "gsm8k": gsm8k},
    **{"aime": aime, "mmlu-pro": mmlu_pro, "nq": nq, "bleu": bleu},
    "none": lambda completion, prompt, reference: {},
}
