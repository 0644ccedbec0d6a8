"""How answers are read, beside math-verify (extra `dev`) and lm-evaluation-harness (extra
`oracles`): own texts of the kinds in which they agree and differ. docs/metrics.md has the counts.
"""

from decimal import Decimal
from typing import Any

import pytest

from skipbench.scoring.scorers import score

NONE = "no number"
FLEXIBLE = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"  # of its task gsm8k, the last match
GSM8K = [  # text, read here, by math-verify, by lm-eval's flexible-extract
    ("She sells 9 eggs at $2, which makes $18.\n#### 18", "18", "18", "18"),
    ("The answer is 1,234.50.", "1234.5", "1234.5", "1234.5"),
    ("It is -5 degrees", "-5", "-5", "-5"),
    ("It is .75", "0.75", "0.75", "0.75"),
    ("eighteen", NONE, NONE, NONE),
    ("#### 56\n\nThe answer is: 85", "56", "85", "85"),  # the mark counts here
    ("#### 18 eggs (9 a day)", "18", "18", "9"),
    ("so he slept 18/3 hours.", "6", "6", "3"),
    ("It is 22 / 8", "2.75", "2.75", "8"),
    ("So he pays 16 + 4 =", "4", "20", "4"),
    ("the answer is 2 in 4 weeks", "4", "2", "4"),
    ("It is $\\boxed{11}$.", "11", "11", NONE),
    ("It is 9{,}500 m.", "9500", "9", "500"),
    ("the codec utf-8", "8", NONE, "-8"),
    ("Total: 3,4", "4", "3.4", "34"),
]
AIME = [  # text, read here, by math-verify
    (r"It is $\boxed{204}$.", "204", "204"),
    (r"so $\boxed{336^\circ}$", "336", "336"),
    (r"$\boxed{x = 5}$", "5", "5"),
    (r"$\boxed{1,200 \text{ km}}$", "1200", "1200"),
    (r"$\boxed{073}$", "73", "73"),
    (r"$\boxed{240.0}$", "240", "240"),
    (r"$\boxed{\frac{408}{2}}$", NONE, "204"),  # nothing is computed here
    (r"the answer is 204", NONE, "204"),  # nor read without a box
    (r"$\boxed{12}$, no, $\boxed{13}$", "13", "13"),
]
CASES = [("gsm8k", *case) for case in GSM8K] + [("aime", *case) for case in AIME]


@pytest.mark.parametrize(("scorer", "text", "number"), [case[:3] for case in CASES])
def test_what_is_read_here(scorer: str, text: str, number: str) -> None:
    for other in ("7", number):
        found = number != NONE and score(scorer, text, "", {"answer": other})["exact"]
        assert bool(found) == (other == number != NONE)


@pytest.mark.parametrize(("text", "number"), [(case[1], case[3]) for case in CASES])
def test_what_math_verify_reads(text: str, number: str) -> None:
    math_verify: Any = pytest.importorskip("math_verify")
    found = math_verify.parse(text)
    assert math_verify.verify(math_verify.parse("7"), found) is False
    if number == NONE:
        assert not found
    else:
        assert math_verify.verify(math_verify.parse(number), found)


@pytest.mark.parametrize(("text", "number"), [(case[0], case[3]) for case in GSM8K])
def test_what_lm_eval_reads(text: str, number: str) -> None:
    lm_eval: Any = pytest.importorskip("lm_eval.filters.extraction")
    ((found,),) = lm_eval.RegexFilter(FLEXIBLE, -1).apply([[text]], [{}])
    plain = found.replace(",", "").strip("$").rstrip(".")
    assert (Decimal(plain) if plain.strip("[invald]") else NONE) == (
        NONE if number == NONE else Decimal(number)
    )
