"""Scores of one completion. A scorer is a pure function of texts; generated programs are run by the
command `score`.

An answer is compared exactly: the last number, a boxed integer, a letter, a short text.
"""

import re
import string
from collections.abc import Callable
from decimal import Decimal

from skipbench.data.mini.texts import WORDS
from skipbench.data.rows import Reference
from skipbench.errors import SkipbenchError
from skipbench.runs.measures import Metrics
from skipbench.scoring.overlap import bleu, rouge
from skipbench.scoring.programs import EXECUTED, program_of
from skipbench.scoring.text import Scores, before_next, first_line, malformed, need

# A minus after a digit or a bracket subtracts. Commas belong to a number only before each third
# digit from its end. A fraction is one number.
_NUMBER = re.compile(
    r"((?:(?<![\w)\]])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"|(?<!\w)-?\.[0-9]+)(?: ?/ ?([1-9][0-9]*)(?![\w/]|[.,][0-9]))?"
)
_BARE = re.compile(r"\\(boxed|fbox)\s*([-+]?[0-9][0-9.,]*)")
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|(?<!\\)[{}]")
_STYLED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
# bounded, because int() refuses thousands of digits
_LATEX_INTEGER = re.compile(r"[-+]?[0-9]{1,30}(?:\.0*)?")
_INTEGER = re.compile(r"\s*([-+]?[0-9][0-9,]{0,30})(?![0-9,]|\.[0-9])")  # no decimal number
_SIZES = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|bf|rm|[lL]arge|[hH]uge)(?![A-Za-z])"
)
_NOISE = re.compile(r"\{,\}|\\[,!; $]|[,~${}]")
_BRACKETED = re.compile(r"[\s${}]*[(\[]([^()\[\],]*)[)\]][\s${}]*")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?")
# `A` and `I` are words too: as an answer only a reason follows them in lower case.
_WORD = r"(?!\s+(?!(?:as|because|for|since|which)\b)[a-z])"
_LETTER = rf"(?<![\w'\u2019\\-])([B-HJ]|[AI]{_WORD})(?![\w'\u2019-])"
# All repeats are bounded, so that a text that loops is read in linear time.
_SAID = re.compile(
    r"(?:(?i:\banswer|\bchoice|\boption)\W{0,4}?(?:(?i:is)\b|[:=])|\\boxed\s?\{)"
    r"(?i:\W{1,9}(?:the\s)?(?:option|choice|letter)\b)?(?:\\[a-z]{1,8}\s?\{|[\s*_$:({\[\"']){0,9}"
    + _LETTER
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(scorer: str, completion: str, prompt: str, reference: Reference) -> Scores:
    """Scores of `completion` by name, higher is better: shares, but BLEU in percent; `{}`
    where nothing is scored. Raises SkipbenchError for an unknown scorer or an unfit reference.
    """
    if scorer in EXECUTED:
        # A reference that cannot be used shows now, not after the run.
        program_of(scorer, completion, prompt, reference)
        return {}
    if scorer not in SCORERS:
        raise SkipbenchError(f"unknown {scorer=}; known: {', '.join([*SCORERS, *EXECUTED])}")
    return SCORERS[scorer](completion, reference)


def waits_for_score(scorer: str, metrics: Metrics | None) -> bool:
    """True if a run with this scorer still needs the command `score`."""
    if scorer not in EXECUTED or not metrics or not metrics.samples:
        return False
    return not (metrics.score and metrics.score.means)


def numbers(text: str) -> list[Decimal]:
    """The numbers in `text`: `$1,234.50`, `-3`, `18.`, `1{,}234`, `18/3`."""
    plain = text.replace("\\$", "").replace("$", "").replace("{,}", ",").replace("\u2212", "-")
    found = _NUMBER.findall(plain)
    return [Decimal(number.replace(",", "")) / Decimal(below or 1) for number, below in found]


def _gsm8k(completion: str, reference: Reference) -> Scores:
    """Compares the first number behind the first `####`, else the last number, with the answer."""
    wanted = numbers(need(reference, "answer", str))
    if not wanted:
        raise malformed(reference, "answer", "a number")
    text = before_next(completion, "Question:", "Q:")
    before, _, behind = text.partition("####")
    marked = numbers(behind.partition("\n")[0])
    return _exact((marked or numbers(before)[-1:])[:1] == wanted[-1:])


def _exact(right: bool) -> Scores:
    return {"exact": float(right)}


def boxed(text: str) -> list[str]:
    r"""Contents of every closed, non-empty `\boxed{...}` in `text`, in order; braces may nest, and
    a number may stand without them.
    """
    opened: list[re.Match[str]] = []
    found, text = [], _BARE.sub(r"\\\1{\2}", text)
    for token in _BRACES.finditer(text):
        if token[0].endswith("{"):
            opened.append(token)
        elif opened and (start := opened.pop())[0] != "{":
            found.append((start.start(), text[start.end() : token.start()].strip()))
    return [content for _, content in sorted(found) if content]


def latex_integer(text: str) -> int | None:
    r"""Integer as in `073`, `(73)`, `\text{204}`, `1{,}024`, `x = 5`, `25 \text{ cm}`, or None."""
    plain = _STYLED.sub(lambda m: m[1] if any(c.isdigit() for c in m[1]) else "", text)
    plain = _SIZES.sub("", _DEGREES.sub("", plain).rpartition("=")[2])
    bracketed = _BRACKETED.fullmatch(plain)
    plain = _NOISE.sub("", bracketed[1] if bracketed else plain).strip()
    return int(plain.partition(".")[0]) if _LATEX_INTEGER.fullmatch(plain) else None


def _aime(completion: str, reference: Reference) -> Scores:
    r"""Compares the last `\boxed{...}` with the integer `reference["answer"]`."""
    answer = latex_integer(need(reference, "answer", str))
    if answer is None:
        raise malformed(reference, "answer", "an integer")
    texts = boxed(before_next(completion, "Solve the following math problem"))
    return _exact(bool(texts) and latex_integer(texts[-1]) == answer)


def _mmlu_pro(completion: str, reference: Reference) -> Scores:
    """Compares the last letter in a phrase such as "the answer is B", else the last one alone."""
    answer = need(reference, "answer", str)
    if not re.fullmatch("[A-J]", answer):
        raise malformed(reference, "answer", "a letter from A to J")
    text = before_next(completion, "Question:", "Q:")
    letters = _SAID.findall(text) or re.findall(_LETTER, text)
    return _exact(letters[-1:] == [answer])


def squad_normalised(text: str) -> str:
    """`text` as SQuAD's evaluation compares it: no case, punctuation, articles or doubled space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _nq(completion: str, reference: Reference) -> Scores:
    """Compares the first line with `reference["answers"]` after SQuAD's normalisation."""
    answers = need(reference, "answers", list)
    if not all(isinstance(a, str) and a.strip() for a in answers):
        raise malformed(reference, "answers", "a list of texts with content")
    text = squad_normalised(first_line(completion))
    return _exact(text != "" and text in map(squad_normalised, answers))


def _has_words(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _stories(completion: str, reference: Reference) -> Scores:
    text = before_next(completion, "Story:")
    occurring = {*WORDS["names"]} & {*re.findall(r"\b[A-Z][a-z]+\b", text)}
    return {
        "names_kept": float(occurring == set(need(reference, "names", list))),
        "thing_kept": float(_has_words(text, need(reference, "thing", str))),
    }


def _math(completion: str, reference: Reference) -> Scores:
    answer = need(reference, "answer", int)
    # An answer ends with its only mark: the rest belongs to another problem.
    _, mark, rest = before_next(completion, "Question:").partition("####")
    found = _INTEGER.match(rest) if mark else None
    return _exact(found is not None and int(found[1].replace(",", "")) == answer)


def _summary(completion: str, reference: Reference) -> Scores:
    facts, text = need(reference, "facts", list), before_next(completion, "Article:")
    share = sum(_has_words(text, fact) for fact in facts) / len(facts)
    return {"facts": share, "all_facts": float(share == 1.0)}


SCORERS: dict[str, Callable[[str, Reference], Scores]] = {
    **{"stories": _stories, "math": _math, "summary": _summary, "rouge": rouge, "gsm8k": _gsm8k},
    **{"aime": _aime, "mmlu-pro": _mmlu_pro, "nq": _nq, "bleu": bleu},
    "none": lambda completion, reference: {},
}
