"""WMT news translation from German to English."""

from typing import Unpack

from skipbench.data.draw import Where, draw
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError


def german_english(prompt: str, **where: Unpack[Where]) -> list[Row]:
    """WMT14 and WMT16: a German sentence, and its English translation in
    `reference["translation"]`.

    SWIFT published neither wording nor shots for them; both are ours.

    Raises:
        SkipbenchError: rows that cannot be drawn, or a pair that lacks a language.
    """
    sample, shots = draw({"pair": dict}, where)
    for fields in [*shots, *(row.fields for row in sample)]:
        if not isinstance(fields["pair"].get("de"), str) or not isinstance(
            fields["pair"].get("en"), str
        ):
            raise SkipbenchError(
                f"{where['name']}: a row of column {where['columns']['pair']!r} lacks 'de' or 'en'"
            )
    head = "".join(f"German: {s['pair']['de']}\nEnglish: {s['pair']['en']}\n\n" for s in shots)
    return [
        Row(
            f"{where['name']}-{row.index}",
            f"{head}German: {row.fields['pair']['de']}\nEnglish:",
            {"translation": row.fields["pair"]["en"]},
            {},
            source=row.source,
        )
        for row in sample
    ]
