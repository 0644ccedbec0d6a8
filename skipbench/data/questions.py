"""Questions with a short answer: one of several options, or a few words."""

from typing import Unpack

from skipbench.data.draw import Where, draw
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError


def mmlu_pro(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """MMLU-Pro in KnapSpec's wording (its `data.py`); options are lettered from A.

    Raises:
        SkipbenchError: rows that cannot be drawn, or an answer that is not the letter of an option.
    """
    sample, _ = draw({"question": str, "options": list, "answer": str, "category": str}, where)
    rows = []
    for row in sample:
        letters = [chr(ord("A") + i) for i in range(len(row.fields["options"]))]
        if row.fields["answer"] not in letters:
            raise SkipbenchError(
                f"{where['name']} row {row.index}: the answer {row.fields['answer']!r} is "
                f"none of {', '.join(letters)}"
            )
        options = "".join(
            f"{a}. {text}\n" for a, text in zip(letters, row.fields["options"], strict=True)
        )
        text = (
            f"Question:\n{row.fields['question']}\n\nOptions:\n{options}\n"
            "Answer the question by selecting the correct option. "
            'Think step by step and then provide your final answer in the format: "Answer: '
            '[OPTION]".'
        )
        reference = {"answer": row.fields["answer"]}
        groups = {"category": row.fields["category"]}
        rows.append(Row(f"{where['name']}-{row.index}", text, reference, groups, source=row.source))
    return rows


def nq(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """Natural Questions (open domain): a question and, in `reference["answers"]`, all accepted
    answers.

    SWIFT published neither wording nor shots for it; both are ours.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    sample, shots = draw({"question": str, "answers": list}, where)
    head = "".join(f"Question: {s['question']}\nAnswer: {s['answers'][0]}\n\n" for s in shots)
    return [
        Row(
            f"{where['name']}-{row.index}",
            f"{head}Question: {row.fields['question']}\nAnswer:",
            {"answers": row.fields["answers"]},
            {},
            source=row.source,
        )
        for row in sample
    ]
