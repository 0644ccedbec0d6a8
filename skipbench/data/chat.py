"""Instructions and conversations."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, Unpack

from skipbench.data.draw import Drawn, Where, draw
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError

T = TypeVar("T")
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
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
    return _conversations(where, {}, int)


def spec_bench(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """Spec-Bench (Xia et al., 2024): six subtasks, of which MT-bench has two turns. The size counts
    questions.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    return _conversations(where, dict.fromkeys(MT_BENCH, "mt-bench"), int)


def speed_bench(prompt: str, leave_out: bool, **where: Unpack[Where]) -> list[Row]:
    """SPEED-Bench (arXiv:2604.09557), grouped by category; the throughput configurations by tier of
    entropy. The size counts questions.

    Args:
        leave_out: leaves out rows that hold a placeholder in place of their text.

    Raises:
        SkipbenchError: rows that cannot be drawn, or with placeholders.
    """
    size, throughput = where["size"], str(where["config"]).startswith("throughput")
    questions: list[list[Row]] = []
    for found in _conversations(
        where if size is not None and size < 1 else {**where, "size": None}, {}, str
    ):
        groups = {"entropy": found.groups["task"]} if throughput else found.groups
        row = replace(found, groups=groups)
        if row.after is None:
            questions.append([])
        questions[-1].append(row)
    sound = [turns for turns in questions if not any(PLACEHOLDER in t.prompt for t in turns)]
    if len(sound) < len(questions) and not (leave_out and sound):
        raise SkipbenchError(
            f"{len(questions) - len(sound)} of {len(questions)} questions of {where['name']} hold "
            "a placeholder: NVIDIA may not hand their text on. Fill them in with prepare_data.py "
            "of specdec_bench (github.com/NVIDIA/Model-Optimizer) and give dataset.path=FILE, or "
            "leave them out with dataset.leave_out=true"
        )
    if size is not None:
        sound = in_turns(sound, lambda turns: str(turns[0].groups))[:size]
    return [row for turns in sound for row in turns]


def _conversations(where: Where, tasks: dict[str, str], kind: type) -> list[Row]:
    """`kind` of the column of ids."""
    sample = _spread(
        where, lambda row: tasks.get(row.fields["category"], row.fields["category"]), kind
    )
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


def _spread(where: Where, group: Callable[[Drawn], str], kind: type) -> list[Drawn]:
    """All questions in their order; a size takes the groups in turns, since the file holds one
    after the other and its first rows would be of one alone.

    A smaller size is a prefix of a larger one.
    """
    size = where["size"]
    kinds = {"turns": list, "category": str, "id": kind}
    if size is None or size < 1:  # which `draw` refuses
        return draw(kinds, where)[0]
    return in_turns(draw(kinds, {**where, "size": None})[0], group)[:size]


def in_turns(rows: Sequence[T], group: Callable[[T], str]) -> list[T]:
    """The first of every group, then the second of every group, and so on."""
    seen = Counter[str]()
    ranked = []
    for row in rows:
        ranked.append((seen[group(row)], row))
        seen[group(row)] += 1
    ranked.sort(key=lambda pair: pair[0])  # stable: groups in the order of the file
    return [row for _, row in ranked]


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
