"""The generated datasets, TinyStories, and the stream of several datasets."""

import functools
import re
from dataclasses import replace
from itertools import islice
from typing import Any

from msgspec import Struct

from skipbench.data.mini import Generated, held_out
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError

_WORD = re.compile(r"\S+")


class Story(Struct):
    text: str


def mini(family: str, size: int, seed: int) -> list[Example]:
    """`size` held-out examples of a mini dataset, one of `FAMILIES`."""
    examples = enumerate(_first(family, seed, size))
    return [Example(f"{family}-{i}", e.prompt, dict(e.reference)) for i, e in examples]


@functools.lru_cache(maxsize=16)
def _first(family: str, seed: int, size: int) -> tuple[Generated, ...]:
    return tuple(islice(held_out(family, seed), size))


def tinystories(prefix_words: int, **where: Any) -> list[Example]:
    """Stories to continue: the first `prefix_words` words, whitespace kept, with the rest as
    `reference["text"]`.

    Each shot is a whole story. SWIFT published neither the wording nor the length of the prefix;
    both are ours. A story without a word after the prefix is left out; SkipbenchError where none is
    longer than it.
    """
    from skipbench.data.draw import Where

    stories, shots = (source := Where(**where)).draw(Story, whole=True)
    head = "".join(f"Story: {shot.text}\n\n" for shot in shots) + ("Story: " if shots else "")
    rows: list[Example] = []
    for story in stories:
        if len(rows) == source.size:
            break
        text = story.fields.text
        # The second word from the end of this slice ends the prompt: one more word must follow it.
        ends = [match.end() for match in islice(_WORD.finditer(text), prefix_words + 1)]
        if len(ends) > prefix_words:
            rows.append(story.row(head + text[: ends[-2]], {"text": text[ends[-2] :]}))
    if not rows:
        raise SkipbenchError(f"{prefix_words=} leaves none of the {len(stories)} stories")
    return rows


def stream(parts: dict[str, list[Example]], size: int) -> list[Example]:
    """Tasks one after another, as in SWIFT's Figure 7: the first `size` conversations of each part,
    grouped by their task; a row of one turn is one.
    """
    found = []
    for task, rows in parts.items():
        starts = [i for i, row in enumerate(rows) if row.after is None]
        end = starts[size] if len(starts) > size else len(rows)
        found += [replace(row, groups=row.groups | {"task": task}) for row in rows[:end]]
    return found
