"""Math word problems and competition problems; the answer is a number."""

import re
from typing import Any

from msgspec import Struct

from skipbench.data.draw import Where
from skipbench.data.rows import Example


class Question(Struct):
    question: str
    answer: str


class Problem(Struct):
    problem: str
    answer: str


def gsm8k(**where: Any) -> list[Example]:
    """GSM8K (Cobbe et al., 2021): questions with their worked answers as shots; with
    `prompt="chat"` the question alone.

    Neither SWIFT nor Self-SD published its wording; `Question:` and `Answer:` are ours, in the
    manner of their prompts for articles. `reference["answer"]` is the number after `####`, without
    thousands separators; SkipbenchError for an answer without `####`.
    """
    source = Where(**where)
    sample, shots = source.draw(Question)
    head = "".join(f"Question: {s.question}\nAnswer: {s.answer}\n\n" for s in shots)
    rows = []
    for row in sample:
        question = row.fields.question
        _, mark, number = row.fields.answer.rpartition("####")
        if not mark:
            raise row.refused("the answer has no '#### NUMBER'; correct the row")
        asked = question if source.prompt == "chat" else f"Question: {question}\nAnswer:"
        rows.append(row.row(head + asked, {"answer": number.strip().replace(",", "")}))
    return rows


def aime(**where: Any) -> list[Example]:
    """AIME problems in KnapSpec's wording (its `data.py`); answers are integers from 0 to 999, else
    the row is refused with a SkipbenchError.
    """
    rows = []
    for row in Where(**where).draw(Problem)[0]:
        number = re.match(r"\s*(\d+)", row.fields.answer)  # one answer of 2025 carries a unit
        if number is None:
            raise row.refused(f"the answer {row.fields.answer!r} is no integer")
        text = (
            "Solve the following math problem. Make sure to put the answer (and only the "
            "answer) inside \\boxed{}.\n\n"
            f"{row.fields.problem}\n <think> Let's think step by step. </think>\n"
        )
        rows.append(row.row(text, {"answer": str(int(number[1]))}))
    return rows
