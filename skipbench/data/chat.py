"""Instructions and conversations."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from msgspec import Struct

from skipbench.data.draw import Where
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
# The eight categories of MT-bench, which Spec-Bench holds as one subtask.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)


class Question(Struct):
    turns: list[str]
    category: str


class Numbered(Question):
    id: int


class Named(Question):
    id: str


class Instruction(Struct):
    instruction: str
    input: str


def mt_bench(prompt: str, **where: Any) -> list[Row]:
    """MT-bench: two turns per question, grouped by category. The size counts questions, not turns.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    source = Where(**where)
    return _balanced(_conversations(Numbered, source), source.size, _task)


def spec_bench(prompt: str, **where: Any) -> list[Row]:
    """Spec-Bench (Xia et al., 2024): six subtasks, of which MT-bench has two turns. The size counts
    questions.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    source, tasks = Where(**where), dict.fromkeys(MT_BENCH, "mt-bench")
    return _balanced(_conversations(Numbered, source, tasks), source.size, _task)


def speed_bench(prompt: str, leave_out: bool, **where: Any) -> list[Row]:
    """SPEED-Bench (arXiv:2604.09557), grouped by category; the throughput configurations by tier of
    entropy. The size counts questions.

    Args:
        leave_out: leaves out rows that hold a placeholder in place of their text.

    Raises:
        SkipbenchError: rows that cannot be drawn, or with placeholders.
    """
    source = Where(**where)
    questions = _conversations(Named, source)
    if str(source.config).startswith("throughput"):
        questions = [
            [replace(turn, groups={"entropy": turn.groups["task"]}) for turn in turns]
            for turns in questions
        ]
    sound = [turns for turns in questions if not any(PLACEHOLDER in t.prompt for t in turns)]
    if len(sound) < len(questions) and not (leave_out and sound):
        raise SkipbenchError(
            f"{len(questions) - len(sound)} of {len(questions)} questions of {source.name} hold "
            "a placeholder: NVIDIA may not hand their text on. Fill them in with prepare_data.py "
            "of specdec_bench (github.com/NVIDIA/Model-Optimizer) and give dataset.path=FILE, or "
            "leave them out with dataset.leave_out=true"
        )
    return _balanced(sound, source.size, lambda turns: str(turns[0].groups))


def _conversations(
    kind: type[Numbered] | type[Named], source: Where, tasks: Mapping[str, str] | None = None
) -> list[list[Row]]:
    """The turns of every question; `tasks` renames categories."""
    conversations = []
    for row in source.draw(kind, whole=True)[0]:
        category, turns = row.fields.category, row.fields.turns
        task = {"task": (tasks or {}).get(category, category)}
        first = f"{row.name}-{row.fields.id}"
        names = [first, *(f"{first}/{turn}" for turn in range(2, len(turns) + 1))]
        conversations.append([
            Row(
                names[i],
                text,
                groups=task | ({"turn": str(i + 1)} if len(turns) > 1 else {}),
                after=names[i - 1] if i else None,
                source=row.source,
            )
            for i, text in enumerate(turns)
        ])  # fmt: skip
    return conversations


def _task(turns: list[Row]) -> str:
    return turns[0].groups["task"]


def _balanced(
    questions: list[list[Row]], size: int | None, group: Callable[[list[Row]], str]
) -> list[Row]:
    """All questions in file order, or `size` of them drawn from the groups in turns: a file holds
    one group after the other.

    A smaller size is a prefix of a larger one.
    """
    if size is not None:
        ranks: dict[str, Iterator[int]] = defaultdict(itertools.count)
        questions = sorted(questions, key=lambda turns: next(ranks[group(turns)]))[:size]
    return [row for turns in questions for row in turns]


def alpaca(prompt: str, **where: Any) -> list[Row]:
    """Alpaca's instructions in the wording that its authors trained on (Taori et al., 2023).

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    rows = []
    for row in Where(**where).draw(Instruction, may_be_empty=("input",))[0]:
        more = row.fields.input
        context = ", paired with an input that provides further context" if more else ""
        given = f"### Input:\n{more}\n\n" if more else ""
        text = (
            f"Below is an instruction that describes a task{context}. "
            "Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{row.fields.instruction}\n\n{given}### Response:"
        )
        rows.append(row.row(text))
    return rows
