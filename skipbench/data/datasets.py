"""The datasets of generated and of short stories, and the stream of several.

Each returns rows that are ready to be run, and is what a file of `conf/dataset/` calls.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Unpack

from skipbench.data.draw import Where, draw
from skipbench.data.mini import FAMILIES, Example, body_hash, held_out
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError

_WORD = re.compile(r"\S+")


def mini(family: str, size: int, seed: int, bodies: Path | None) -> list[Row]:
    """`size` held-out examples of a mini dataset, grouped by whether a model was trained on their
    answer body.

    `bodies` is the sorted uint32 array of `body_hash` values beside the model's checkpoint (.npy);
    without it nothing is known of the training, and the rows have no groups.

    Raises:
        SkipbenchError: an unknown family, a size below 1, or a `bodies` file that cannot be used.
    """
    if family not in FAMILIES:
        raise SkipbenchError(f"unknown mini dataset {family=}; known: {', '.join(FAMILIES)}")
    if size < 1:
        raise SkipbenchError(f"{size=} leaves no rows; give a size of 1 or more")
    trained_on = None if bodies is None else _membership(Path(bodies))
    rows = []
    for index, example in enumerate(_first(family, seed, size)):
        groups = {}
        if trained_on is not None:
            groups["body"] = "seen" if trained_on(body_hash(family, example.body)) else "unseen"
        rows.append(Row(f"{family}-{index}", example.prompt, dict(example.reference), groups))
    return rows


@functools.lru_cache(maxsize=16)
def _first(family: str, seed: int, size: int) -> tuple[Example, ...]:
    return tuple(islice(held_out(family, seed), size))


def _membership(bodies: Path) -> Callable[[int], bool]:
    import numpy as np  # most commands never come here, and it is slow to import

    try:
        known = np.load(bodies, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SkipbenchError(
            f"cannot read bodies={bodies} ({error}); give the model's train_bodies.npy"
        ) from error
    usable = isinstance(known, np.ndarray) and known.dtype == np.uint32 and known.ndim == 1
    if not usable or np.any(known[1:] < known[:-1]):
        raise SkipbenchError(
            f"bodies={bodies} is not a sorted one-dimensional uint32 array; give the "
            "train_bodies.npy that was written with the model"
        )

    def contains(value: int) -> bool:
        at = int(np.searchsorted(known, np.uint32(value)))
        return at < len(known) and int(known[at]) == value

    return contains


def tinystories(prompt: str, prefix_words: int, **where: Unpack[Where]) -> list[Row]:
    """Stories to continue: the first `prefix_words` words, whitespace kept, with the rest as
    `reference["text"]`.

    Each shot is a whole story. SWIFT published neither the wording nor the length of the prefix;
    both are ours. A story without a word after the prefix is left out; the number in an id is the
    story's place in the dataset, from 0.

    Raises:
        SkipbenchError: rows that cannot be drawn, a prefix below 1 word or no story longer than it.
    """
    if prefix_words < 1:
        raise SkipbenchError(f"{prefix_words=} leaves an empty prompt; give 1 or more")
    size = where["size"]
    stories, shots = draw(
        {"text": str}, {**where, "size": None} if size is None or size > 0 else where
    )
    head = "".join(f"Story: {shot['text']}\n\n" for shot in shots) + ("Story: " if shots else "")
    rows: list[Row] = []
    for story in stories:
        if len(rows) == size:
            break
        text = story.fields["text"]
        # The second word from the end of this slice ends the prompt: one more word must follow it.
        ends = [match.end() for match in islice(_WORD.finditer(text), prefix_words + 1)]
        if len(ends) > prefix_words:
            cut = ends[-2]
            name = f"{where['name']}-{story.index}"
            rows.append(Row(name, head + text[:cut], {"text": text[cut:]}, {}, source=story.source))
    if not rows:
        raise SkipbenchError(
            f"{prefix_words=} leaves none of the {len(stories)} stories: each has {prefix_words} "
            "words or fewer; give a shorter prefix"
        )
    return rows


def stream(parts: dict[str, list[Row]], size: int) -> list[Row]:
    """Tasks one after another, as in SWIFT's Figure 7: the first `size` rows of each part, grouped
    by their task.

    Raises:
        SkipbenchError: no parts, or a size below 1.
    """
    if not parts or size < 1:
        raise SkipbenchError(
            f"a stream of {len(parts)} parts with dataset.size={size} has no rows; give 1 or "
            "more of both"
        )
    return [
        replace(row, groups=row.groups | {"task": task})
        for task, rows in parts.items()
        for row in _conversations(rows, size)
    ]


def _conversations(rows: list[Row], size: int) -> list[Row]:
    """The rows of the first `size` conversations; a row of one turn is one."""
    starts = [i for i, row in enumerate(rows) if row.after is None]
    return rows if len(starts) <= size else rows[: starts[size]]
