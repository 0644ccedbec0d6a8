"""Articles, reports and books to be summarised, in the wording of the papers that use them."""

from typing import Unpack

from skipbench.data.draw import Where, draw
from skipbench.data.rows import Row


def article(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """CNN/DailyMail and XSum as Self-SD (arXiv:2309.08168) and SWIFT (arXiv:2410.06916) show them
    to base models.

    Every shot is an article with its summary, whose lines are joined without a space, as the
    published code does. One XSum document is empty, and stays as it does there.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    sample, shots = draw({"text": str, "summary": str}, where, may_be_empty=("text",))
    head = ""
    for shot in shots:
        summary = shot["summary"].replace("\n", "")
        head += f"Article: {shot['text']}\nSummary: {summary}\n"
    return [
        Row(
            f"{where['name']}-{row.index}",
            f"{head}Article: {row.fields['text']}\nSummary:",
            {"summary": row.fields["summary"]},
            {},
            source=row.source,
        )
        for row in sample
    ]


def long_text(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """GovReport, PG-19 and BookSum as KnapSpec asks for their summary.

    A text without a column `summary` in `where["columns"]`, such as a novel, has nothing to be
    scored against.

    Raises:
        SkipbenchError: rows that cannot be drawn.
    """
    kinds = {"text": str} | ({"summary": str} if "summary" in where["columns"] else {})
    sample, _ = draw(kinds, where)
    rows = []
    for row in sample:
        text = f"Summarize the following text:\n\n{row.fields['text']}\n\nSummary:"
        reference = {k: v for k, v in row.fields.items() if k == "summary"}
        rows.append(Row(f"{where['name']}-{row.index}", text, reference, {}, source=row.source))
    return rows
