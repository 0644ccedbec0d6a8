"""Articles, reports and books to be summarised, in the wording of the papers that use them."""

from typing import Any

from msgspec import Struct

from skipbench.data.draw import Where
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError


class Text(Struct):
    text: str


class Summarised(Text):
    summary: str


def article(**where: Any) -> list[Example]:
    """CNN/DailyMail and XSum in the prompts of Self-SD (arXiv:2309.08168) and SWIFT
    (arXiv:2410.06916) for base models.

    Every shot is an article with its summary, whose lines are joined without a space, as in the
    published code. One XSum document is empty there, and here too.
    """
    sample, shots = Where(**where).draw(Summarised, may_be_empty=("text",))
    parts = [(shot.text, shot.summary.replace("\n", "")) for shot in shots]
    head = "".join(f"Article: {text}\nSummary: {summary}\n" for text, summary in parts)
    return [
        r.row(f"{head}Article: {r.fields.text}\nSummary:", {"summary": r.fields.summary})
        for r in sample
    ]


def long_text(min_words: int = 0, **where: Any) -> list[Example]:
    """GovReport, PG-19 and BookSum in KnapSpec's prompt for a summary. Without a column `summary`
    in `columns`, as for novels, there is no reference. SkipbenchError if no text has `min_words`.
    """
    source, rows = Where(**where), list[Example]()
    kind = Summarised if "summary" in source.columns else Text
    for row in source.draw(kind, whole=min_words > 0)[0]:
        if len(rows) == source.size:
            break
        if len(row.fields.text.split()) < min_words:
            continue
        text = f"Summarize the following text:\n\n{row.fields.text}\n\nSummary:"
        summary = {"summary": row.fields.summary} if isinstance(row.fields, Summarised) else None
        rows.append(row.row(text, summary))
    if not rows:
        raise SkipbenchError(f"dataset.min_words={min_words} leaves no text of {source.name}")
    return rows
