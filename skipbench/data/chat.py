"""Instructions and conversations."""

from collections import Counter
from collections.abc import Callable
from typing import Unpack

from skipbench.data.draw import Drawn, Where, draw
from skipbench.data.rows import Row

# The eight categories of MT-bench, which Spec-Bench holds as one subtask.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)


def mt_bench(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """MT-bench: two turns a question, grouped by category. The sample's size counts questions, not
    turns.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    return _conversations(where, {})


def spec_bench(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """Spec-Bench (Xia et al., 2024): six subtasks, of which MT-bench has two turns. The size counts
    questions.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    return _conversations(where, dict.fromkeys(MT_BENCH, "mt-bench"))


def _conversations(where: Where, tasks: dict[str, str]) -> list[Row]:
    sample = _spread(where, lambda row: tasks.get(row.fields["category"], row.fields["category"]))
    rows = []
    for row in sample:
        groups = {"task": tasks.get(row.fields["category"], row.fields["category"])}
        turns = row.fields["turns"]
        names = [f"{where['name']}-{row.fields['id']}"]
        names += [f"{names[0]}/{turn}" for turn in range(2, len(turns) + 1)]
        for i, text in enumerate(turns):
            rows.append(
                Row(
                    names[i],
                    text,
                    {},
                    groups | ({"turn": str(i + 1)} if len(turns) > 1 else {}),
                    after=names[i - 1] if i else None,
                    source=row.source,
                )
            )
    return rows


def _spread(where: Where, group: Callable[[Drawn], str]) -> list[Drawn]:
    """All questions in their order; a size takes the groups in turns, since the file holds one
    after the other and its first rows would be of one alone.

    A smaller size is a prefix of a larger one.
    """
    size = where["size"]
    kinds = {"turns": list, "category": str, "id": int}
    if size is None or size < 1:  # which `draw` refuses
        return draw(kinds, where)[0]
    rows = draw(kinds, {**where, "size": None})[0]
    seen = Counter[str]()
    ranked = []
    for row in rows:
        ranked.append((seen[group(row)], row))
        seen[group(row)] += 1
    ranked.sort(key=lambda pair: pair[0])  # stable: groups in the order of the file
    return [row for _, row in ranked[:size]]


def alpaca(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """Alpaca's instructions in the wording that its authors trained on (Taori et al., 2023).

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    sample, _ = draw({"instruction": str, "input": str}, where, may_be_empty=("input",))
    rows = []
    for row in sample:
        told, more = row.fields["instruction"], row.fields["input"]
        context = ", paired with an input that provides further context" if more else ""
        given = f"### Input:\n{more}\n\n" if more else ""
        text = (
            f"Below is an instruction that describes a task{context}. "
            "Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{told}\n\n{given}### Response:"
        )
        rows.append(Row(f"{where['name']}-{row.index}", text, {}, {}, source=row.source))
    return rows
