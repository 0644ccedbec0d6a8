"""WMT news translation from German to English."""

from typing import Any

from msgspec import Struct

from skipbench.data.draw import Where
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError


class Sentence(Struct):
    pair: dict[str, str]


def german_english(**where: Any) -> list[Example]:
    """WMT14 and WMT16: German sentences, with the English one in `reference["translation"]`.
    Wording and shots are ours: SWIFT published neither.

    Raises SkipbenchError for a pair that lacks a language.
    """
    source = Where(**where)
    sample, shots = source.draw(Sentence)
    for fields in (*shots, *(row.fields for row in sample)):
        if not all(isinstance(fields.pair.get(language), str) for language in ("de", "en")):
            raise SkipbenchError(f"{source.name}: a row lacks 'de' or 'en'")
    head = "".join(f"German: {s.pair['de']}\nEnglish: {s.pair['en']}\n\n" for s in shots)
    pairs = [(row, row.fields.pair) for row in sample]
    return [
        row.row(f"{head}German: {pair['de']}\nEnglish:", {"translation": pair["en"]})
        for row, pair in pairs
    ]
