"""Sums in words and competition problems; the answer is a number."""

import re
from typing import Unpack

from skipbench.data.draw import Where, draw
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError


def gsm8k(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """GSM8K (Cobbe et al., 2021): questions with their worked answers as shots; with
    `prompt="chat"` the question alone.

    Neither SWIFT nor Self-SD published its wording; `Question:` and `Answer:` are ours, in the
    manner of their prompts for articles. `reference["answer"]` is the number behind `####`, without
    thousands separators.

    Raises:
        SkipbenchError: rows that cannot be drawn, or an answer without `####`.
    """
    sample, shots = draw({"question": str, "answer": str}, where)
    head = "".join(f"Question: {s['question']}\nAnswer: {s['answer']}\n\n" for s in shots)
    rows = []
    for row in sample:
        question = row.fields["question"]
        _, found, number = row.fields["answer"].rpartition("####")
        if not found:
            raise SkipbenchError(
                f"{where['name']} row {row.index}: the answer has no '#### NUMBER'; correct the row"
            )
        text = f"{head}{question}" if prompt == "chat" else f"{head}Question: {question}\nAnswer:"
        reference = {"answer": number.strip().replace(",", "")}
        rows.append(Row(f"{where['name']}-{row.index}", text, reference, {}, source=row.source))
    return rows


def aime(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """AIME problems in KnapSpec's wording (its `data.py`), whose answer is an integer from 0 to
    999.

    Raises:
        SkipbenchError: rows that cannot be drawn, or an answer that begins with no integer.
    """
    sample, _ = draw({"problem": str, "answer": str}, where)
    rows = []
    for row in sample:
        number = re.match(r"\s*(\d+)", row.fields["answer"])  # one answer of 2025 carries a unit
        if number is None:
            raise SkipbenchError(
                f"{where['name']} row {row.index}: the answer {row.fields['answer']!r} is no "
                "integer"
            )
        text = (
            "Solve the following math problem. Make sure to put the answer (and only the "
            "answer) inside \\boxed{}.\n\n"
            f"{row.fields['problem']}\n <think> Let's think step by step. </think>\n"
        )
        reference = {"answer": str(int(number[1]))}
        rows.append(Row(f"{where['name']}-{row.index}", text, reference, {}, source=row.source))
    return rows
