"""The generator of the mini datasets: what a seed fixes, and what training can never have seen."""

from functools import cache
from itertools import islice

import pytest

from skipbench.data.mini import (
    FAMILIES,
    Example,
    body_hash,
    held_out,
    is_held_out,
    training_document,
)
from skipbench.scoring.programs import program_of
from skipbench.scoring.sandbox import run_program
from skipbench.scoring.scorers import score

DOCUMENTS = 20_000
WEIGHTS = {**dict.fromkeys(FAMILIES, 0.24), "drill": 0.04}
SCORERS = {
    "mini-stories": "stories",
    "mini-math": "math",
    "mini-code": "code",
    "mini-summary": "summary",
}


def fresh(family: str, count: int, seed: int = 1) -> list[Example]:
    return list(islice(held_out(family, seed), count))


# Drawing is slow: an unseen body with a held-out prompt is one draw in 256.
examples = cache(fresh)


@cache
def first() -> list[Example]:
    return [training_document(index, WEIGHTS) for index in range(3000)]


@pytest.fixture(scope="module")
def training() -> list[Example]:
    return [training_document(index, WEIGHTS) for index in range(DOCUMENTS)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_a_seed_fixes_the_held_out_examples(family: str) -> None:
    first, again, other = fresh(family, 10), fresh(family, 5), fresh(family, 5, seed=2)
    assert again == first[:5] != other


@pytest.mark.slow
def test_an_index_fixes_a_training_document(training: list[Example]) -> None:
    for index in (0, 7, DOCUMENTS - 1):
        assert training_document(index, WEIGHTS) == training[index]
    assert {example.family for example in training} == set(WEIGHTS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_held_out_prompts_are_distinct_and_never_trained_on(
    family: str, training: list[Example]
) -> None:
    prompts = [example.prompt for example in examples(family, 40)]
    assert len(set(prompts)) == len(prompts)
    assert all(map(is_held_out, prompts))
    assert not set(prompts) & {example.prompt for example in training}


def test_the_fold_rule_keeps_every_training_prompt_out_of_the_held_out_fold() -> None:
    # one prompt in 256 is held out: without the rule a dozen would be among these
    assert not any(is_held_out(one.prompt) for one in first() if one.family != "drill")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_every_second_body_is_never_trained_on(family: str, training: list[Example]) -> None:
    trained = {example.body for example in training if example.family == family}
    assert not {example.body for example in examples(family, 40)[1::2]} & trained


def test_bodies_of_the_other_half_may_be_trained_on() -> None:
    # mini-code has few bodies: were none of these among the training documents, `seen` would mean
    # nothing.
    trained = {example.body for example in first() if example.family == "mini-code"}
    assert {example.body for example in examples("mini-code", 40)[::2]} & trained


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mini-code"])
def test_the_canonical_body_has_full_marks(family: str) -> None:
    for example in examples(family, 40):
        scores = score(SCORERS[family], example.body, example.prompt, example.reference)
        assert scores and set(scores.values()) == {1.0}, example


@pytest.mark.slow
@pytest.mark.usefixtures("isolated")
def test_canonical_code_passes_its_own_tests() -> None:
    for example in examples("mini-code", 40):
        program = program_of("code", example.body, example.prompt, example.reference)
        outcome = run_program(program, timeout_s=20.0)
        assert outcome.ok, (outcome, example)


@pytest.mark.usefixtures("isolated")
def test_broken_code_fails_its_tests() -> None:
    for example in examples("mini-code", 40)[:3]:
        program = program_of("code", "    return None\n", example.prompt, example.reference)
        outcome = run_program(program, timeout_s=20.0)
        assert (outcome.ok, outcome.reason, outcome.detail) == (False, "failed", "AssertionError")


def test_a_math_body_ends_with_the_answer() -> None:
    for example in examples("mini-math", 40):
        assert example.body.endswith(f" #### {example.reference['answer']}")


def test_the_steps_of_a_math_body_are_true() -> None:
    for example in examples("mini-math", 40):
        *steps, _ = example.body.split(".")
        for step in steps:
            left, _, right = step.partition(" = ")
            a, operator, b = left.split()
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
            assert value == int(right) >= 0


def test_a_body_hash_is_32_bits_and_depends_on_the_family() -> None:
    assert 0 <= body_hash("mini-math", "x") < 1 << 32
    assert body_hash("mini-math", "x") != body_hash("mini-code", "x")
