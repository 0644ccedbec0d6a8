"""Exact match of a final answer: the last number, a boxed integer, a letter, a short text.

Each score is 0 or 1.
"""

import re
import string
from decimal import Decimal

from skipbench.data.rows import Reference
from skipbench.scoring.text import Scores, before_next, first_line, malformed, need

# A minus after a digit or a bracket subtracts. Commas belong to a number only before each third
# digit from its end.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<!\w)-?\.[0-9]+"
)
_MARK_LINE = re.compile(r"####[^\n]*")
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|(?<!\\)[{}]")
_STYLED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
# bounded, because int() refuses thousands of digits
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}(?:\.0*)?")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?")
# `A` and `I` are words too: as an answer only a reason follows them in lower case.
_WORD = r"(?!\s+(?!(?:as|because|for|since|which)\b)[a-z])"
_LETTER = rf"(?<![\w'\u2019\\-])([B-HJ]|[AI]{_WORD})(?![\w'\u2019-])"
_LONE = re.compile(_LETTER)
# All repeats are bounded, so that a text that loops is read in linear time.
_SAID = re.compile(
    r"(?:(?i:\banswer|\bchoice|\boption)\W{0,4}?(?:(?i:is)\b|[:=])|\\boxed\s?\{)"
    r"(?i:\W{1,9}(?:the\s)?(?:option|choice|letter)\b)?(?:\\[a-z]{1,8}\s?\{|[\s*_$:({\[\"']){0,9}"
    + _LETTER
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def last_number(text: str) -> Decimal | None:
    """The last number in `text`: `$1,234.50`, `-3`, `18.`, `1{,}234`; None without one."""
    plain = text.replace("\\$", "").replace("$", "").replace("{,}", ",").replace("\u2212", "-")
    found = _NUMBER.findall(plain)
    return Decimal(found[-1].replace(",", "")) if found else None


def gsm8k(completion: str, prompt: str, reference: Reference) -> Scores:
    """Compares the last number with `reference["answer"]`, up to the next question or the first
    line with `####`, which ends an answer of the dataset and of a model that follows its examples.
    """
    answer = last_number(need(reference, "answer", str))
    if answer is None:
        raise malformed(reference, "answer", "a number")
    text = before_next(completion, "Question:", "Q:")
    mark = _MARK_LINE.search(text)
    return _exact(last_number(text[: mark.end()] if mark else text) == answer)


def _exact(right: bool) -> Scores:
    return {"exact": float(right)}


def boxed(text: str) -> list[str]:
    r"""Contents of every closed, non-empty `\boxed{...}` in `text`, in order; braces may nest."""
    opened: list[re.Match[str]] = []
    found = []
    for token in _BRACES.finditer(text):
        if token[0].endswith("{"):
            opened.append(token)
        elif opened:
            start = opened.pop()
            if start[0] != "{":
                found.append((start.start(), text[start.end() : token.start()].strip()))
    return [content for _, content in sorted(found) if content]


def latex_integer(text: str) -> int | None:
    r"""`text` as an integer, else `None`.

    Read are `073`, `\text{204}`, `1{,}024`, `x = 5`, `336^\circ`, `25 \text{ cm}`.
    """
    plain = _STYLED.sub(lambda m: m[1] if any(c.isdigit() for c in m[1]) else "", text)
    plain = _DEGREES.sub("", plain).rpartition("=")[2]
    for noise in ("{,}", "\\,", "\\!", "\\;", "\\ ", "\\$", ",", "~", "$", "{", "}"):
        plain = plain.replace(noise, "")
    plain = plain.strip()
    return int(plain.partition(".")[0]) if _INTEGER.fullmatch(plain) else None


def aime(completion: str, prompt: str, reference: Reference) -> Scores:
    r"""Compares the last `\boxed{...}` with the integer `reference["answer"]`."""
    answer = latex_integer(need(reference, "answer", str))
    if answer is None:
        raise malformed(reference, "answer", "an integer")
    texts = boxed(before_next(completion, "Solve the following math problem"))
    return _exact(bool(texts) and latex_integer(texts[-1]) == answer)


def mmlu_pro(completion: str, prompt: str, reference: Reference) -> Scores:
    """Compares the letter with `reference["answer"]`: the last one in a phrase such as "the answer
    is B", else the last one that stands alone.
    """
    answer = need(reference, "answer", str)
    if not re.fullmatch("[A-J]", answer):
        raise malformed(reference, "answer", "a letter from A to J")
    text = before_next(completion, "Question:", "Q:")
    letters = _SAID.findall(text) or _LONE.findall(text)
    return _exact(letters[-1:] == [answer])


def squad_normalised(text: str) -> str:
    """`text` as SQuAD's evaluation compares it: no case, punctuation, articles or doubled space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def nq(completion: str, prompt: str, reference: Reference) -> Scores:
    """Compares the first line with `reference["answers"]` after SQuAD's normalisation."""
    answers = need(reference, "answers", list)
    if not all(isinstance(a, str) and a.strip() for a in answers):
        raise malformed(reference, "answers", "a list of texts with content")
    text = squad_normalised(first_line(completion))
    return _exact(text != "" and text in map(squad_normalised, answers))
