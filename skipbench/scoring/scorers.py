"""Scores of one completion. A scorer is a pure function of texts; only `code` runs a program."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from skipbench.data.mini.words import NAMES
from skipbench.errors import SkipbenchError
from skipbench.scoring.sandbox import run_program

Scores = dict[str, float]
_T = TypeVar("_T")
_NAMES = frozenset(NAMES)
_NAME = re.compile(r"\b[A-Z][a-z]+\b")
# Bounded, because int() refuses thousands of digits; nothing that goes on as a decimal number is an integer.
_INTEGER = re.compile(r"\s*([-+]?[0-9][0-9,]{0,30})(?![0-9,]|\.[0-9])")
_NEXT_STATEMENT = re.compile(r"\n(?=\S)")


def score(scorer: str, completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    """Scores of `completion` by name, each between 0 and 1, higher is better; `{}` where nothing is scored.

    Raises:
        SkipbenchError: an unknown scorer, or a reference without what the scorer needs.
    """
    if scorer not in SCORERS:
        raise SkipbenchError(f"unknown {scorer=}; known: {', '.join(SCORERS)}")
    return SCORERS[scorer](completion, prompt, reference)


def _need(reference: dict[str, Any], key: str, kind: type[_T]) -> _T:
    value = reference.get(key)
    if type(value) is not kind or value in ("", []):
        raise SkipbenchError(
            f"the reference has {key}={value!r}, but this scorer needs a {kind.__name__} with content there "
            f"(the reference has {', '.join(reference) or 'nothing'}); choose the scorer that belongs to the dataset"
        )
    return value


def _has_words(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _stories(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    occurring = _NAMES & set(_NAME.findall(completion))
    return {
        "names_kept": float(occurring == set(_need(reference, "names", list))),
        "thing_kept": float(_has_words(completion, _need(reference, "thing", str))),
    }


def _math(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    answer = _need(reference, "answer", int)
    _, mark, rest = completion.rpartition("####")
    found = _INTEGER.match(rest) if mark else None
    return {"exact": float(found is not None and int(found[1].replace(",", "")) == answer)}


def _summary(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    facts = _need(reference, "facts", list)
    share = sum(_has_words(completion, fact) for fact in facts) / len(facts)
    return {"facts": share, "all_facts": float(share == 1.0)}


def _code(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    tests = _need(reference, "tests", str)
    # A model goes on after the function; the first line is never cut, for it continues the prompt.
    body = _NEXT_STATEMENT.split(completion, maxsplit=1)[0]
    return {"pass@1": float(run_program(f"{prompt}{body}\n{tests}").ok)}


def _none(completion: str, prompt: str, reference: dict[str, Any]) -> Scores:
    return {}


SCORERS: dict[str, Callable[[str, str, dict[str, Any]], Scores]] = {
    "stories": _stories,
    "math": _math,
    "summary": _summary,
    "code": _code,
    "none": _none,
}
