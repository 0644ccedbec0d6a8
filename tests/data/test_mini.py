"""The generator of the mini datasets: what a seed fixes, and what training can never have seen."""

from functools import cache
from itertools import islice

import pytest

from skipbench.data.mini import (
    FAMILIES,
    Generated,
    held_out,
    is_held_out,
    training_document,
)
from skipbench.scoring.programs import program_of
from skipbench.scoring.sandbox import bubblewrap, run_program
from skipbench.scoring.scorers import score

DOCUMENTS = 20_000
WEIGHTS = {**dict.fromkeys(FAMILIES, 0.24), "drill": 0.04}
SCORERS = {
    "mini-stories": "stories",
    "mini-math": "math",
    "mini-code": "code",
    "mini-summary": "summary",
}


@cache  # drawing is slow: an unseen body with a held-out prompt is one draw in 256
def examples(family: str, count: int) -> list[Generated]:
    return list(islice(held_out(family, 1), count))


@cache
def first() -> list[Generated]:
    return [training_document(index, WEIGHTS) for index in range(3000)]


@pytest.fixture(scope="module")
def training() -> list[Generated]:
    return [training_document(index, WEIGHTS) for index in range(DOCUMENTS)]


@pytest.mark.slow
def test_an_index_fixes_a_training_document(training: list[Generated]) -> None:
    for index in (0, 7, DOCUMENTS - 1):
        assert training_document(index, WEIGHTS) == training[index]
    assert {example.family for example in training} == set(WEIGHTS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_held_out_prompts_and_every_second_body_are_never_trained_on(
    family: str, training: list[Generated]
) -> None:
    found = examples(family, 40)
    prompts = {example.prompt for example in found}
    assert len(prompts) == len(found) and all(map(is_held_out, prompts))
    assert not prompts & {example.prompt for example in training}
    trained = {example.body for example in training if example.family == family}
    assert not {example.body for example in found[1::2]} & trained


def test_the_fold_rule_keeps_every_training_prompt_out_of_the_held_out_fold() -> None:
    # one prompt in 256 is held out: without the rule a dozen would be among these
    assert not any(is_held_out(one.prompt) for one in first() if one.family != "drill")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mini-code"])
def test_the_canonical_body_has_full_marks(family: str) -> None:
    for example in examples(family, 40):
        scores = score(SCORERS[family], example.body, example.prompt, example.reference)
        assert scores and set(scores.values()) == {1.0}, example


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("count", "broken"), [pytest.param(40, False, marks=pytest.mark.slow), (3, False), (3, True)]
)
def test_code_passes_its_own_tests_unless_it_is_broken(count: int, broken: bool) -> None:
    for example in examples("mini-code", 40)[:count]:
        body = "    return None\n" if broken else example.body
        program = program_of("code", body, example.prompt, example.reference)
        outcome = run_program(program, bubblewrap(), 20.0)
        assert outcome.ok == (not broken), (outcome, example)
        assert not broken or outcome.detail == "AssertionError"


def test_a_math_body_has_true_steps_and_ends_with_the_answer() -> None:
    for example in examples("mini-math", 40):
        *steps, last = example.body.split(".")
        assert last == f" #### {example.reference['answer']}"
        for step in steps:
            left, _, right = step.partition(" = ")
            a, operator, b = left.split()
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
            assert value == int(right) >= 0
