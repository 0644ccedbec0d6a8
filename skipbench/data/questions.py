"""Questions with a short answer: one of several options, or a few words."""

from typing import Any

from msgspec import Struct

from skipbench.data.draw import Where
from skipbench.data.rows import Example


class Choice(Struct):
    question: str
    options: list[str]
    answer: str
    category: str


class Question(Struct):
    question: str
    answers: list[str]


def mmlu_pro(**where: Any) -> list[Example]:
    """MMLU-Pro in KnapSpec's wording (its `data.py`); options are lettered from A.

    Raises SkipbenchError for an answer that is not the letter of an option.
    """
    rows = []
    for row in Where(**where).draw(Choice)[0]:
        options = {chr(ord("A") + i): text for i, text in enumerate(row.fields.options)}
        if row.fields.answer not in options:
            raise row.refused(f"the answer {row.fields.answer!r} is none of {', '.join(options)}")
        listed = "".join(f"{letter}. {text}\n" for letter, text in options.items())
        text = (
            f"Question:\n{row.fields.question}\n\nOptions:\n{listed}\n"
            "Answer the question by selecting the correct option. "
            'Think step by step and then provide your final answer in the format: "Answer: '
            '[OPTION]".'
        )
        category = {"category": row.fields.category}
        rows.append(row.row(text, {"answer": row.fields.answer}, category))
    return rows


def nq(**where: Any) -> list[Example]:
    """Natural Questions (open domain); `reference["answers"]` holds all accepted answers. Wording
    and shots are ours: SWIFT published neither.
    """
    sample, shots = Where(**where).draw(Question)
    head = "".join(f"Question: {s.question}\nAnswer: {s.answers[0]}\n\n" for s in shots)
    return [
        r.row(f"{head}Question: {r.fields.question}\nAnswer:", {"answers": r.fields.answers})
        for r in sample
    ]
