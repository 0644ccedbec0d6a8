"""Helpers of all scorers: the end of a completion, and checks of a reference."""

import re
from typing import TypeVar

from skipbench.data.rows import Reference
from skipbench.errors import SkipbenchError

Scores = dict[str, float]
_T = TypeVar("_T")


def need(reference: Reference, key: str, kind: type[_T]) -> _T:
    """The value of `key`; SkipbenchError if it is missing, empty or of another type."""
    value = reference.get(key)
    if type(value) is not kind or (isinstance(value, str) and not value.strip()) or value == []:
        raise malformed(reference, key, f"a {kind.__name__} with content")
    return value


def malformed(reference: Reference, key: str, needed: str) -> SkipbenchError:
    """The error of a reference whose `key` does not hold what is `needed`."""
    return SkipbenchError(
        f"the reference has {key}={reference.get(key)!r}, but this scorer needs {needed} there "
        f"(the reference has {', '.join(reference) or 'nothing'}); choose the scorer that "
        "belongs to the dataset"
    )


def before_next(completion: str, *openings: str) -> str:
    """`completion` up to the first line but the first of all that opens with one of `openings`:
    the next example. A number (`Question 2:`) and Markdown may stand around them.
    """
    words = "|".join(
        re.escape(o[:-1]) + r"(?: ?\d+)?\**:" if o.endswith(":") else re.escape(o) for o in openings
    )
    return re.split(rf"\n[ \t#*]*(?:{words})", completion, maxsplit=1)[0]


def first_line(completion: str) -> str:
    """The first line that is not empty, without the space around it."""
    return completion.strip().partition("\n")[0].rstrip()
