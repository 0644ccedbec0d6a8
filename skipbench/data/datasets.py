"""The generated datasets, TinyStories, and the stream of several datasets."""

import functools
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from skipbench.data.mini import FAMILIES, Example, body_hash, held_out
from skipbench.data.rows import Row, check_size
from skipbench.errors import SkipbenchError

_WORD = re.compile(r"\S+")


class Story(Struct):
    text: str


def mini(family: str, size: int, seed: int, bodies: Path | None) -> list[Row]:
    """`size` held-out examples of a mini dataset, grouped by whether the model was trained on their
    answer body.

    Args:
        bodies: sorted uint32 array of `body_hash` values beside the model's checkpoint (.npy);
            without it the rows have no groups.

    Raises:
        SkipbenchError: an unknown family, a size below 1, or a `bodies` file that cannot be used.
    """
    if family not in FAMILIES:
        raise SkipbenchError(f"unknown mini dataset {family=}; known: {', '.join(FAMILIES)}")
    check_size(size)
    examples = _first(family, seed, size)
    labels = _labels(bodies, [body_hash(family, e.body) for e in examples])
    return [
        Row(f"{family}-{i}", e.prompt, dict(e.reference), dict(groups))
        for i, (e, groups) in enumerate(zip(examples, labels, strict=True))
    ]


@functools.lru_cache(maxsize=16)
def _first(family: str, seed: int, size: int) -> tuple[Example, ...]:
    return tuple(islice(held_out(family, seed), size))


def _labels(bodies: Path | None, hashes: list[int]) -> list[dict[str, str]]:
    """The group of each hash: seen if it is in the file `bodies`; none without the file."""
    if bodies is None:
        return [{} for _ in hashes]
    import numpy as np  # slow to import, and most commands do not need it

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
    wanted = np.array(hashes, np.uint32)  # `np.isin` would sort all of them again
    seen = np.searchsorted(known, wanted, "right") > np.searchsorted(known, wanted)
    return [{"body": "seen" if one else "unseen"} for one in seen]


def tinystories(prefix_words: int, **where: Any) -> list[Row]:
    """Stories to continue: the first `prefix_words` words, whitespace kept, with the rest as
    `reference["text"]`.

    Each shot is a whole story. SWIFT published neither the wording nor the length of the prefix;
    both are ours. A story without a word after the prefix is left out; SkipbenchError for a prefix
    below 1 word, or no story longer than it.
    """
    from skipbench.data.draw import Where

    if prefix_words < 1:
        raise SkipbenchError(f"{prefix_words=} leaves an empty prompt; give 1 or more")
    stories, shots = (source := Where(**where)).draw(Story, whole=True)
    head = "".join(f"Story: {shot.text}\n\n" for shot in shots) + ("Story: " if shots else "")
    rows: list[Row] = []
    for story in stories:
        if len(rows) == source.size:
            break
        text = story.fields.text
        # The second word from the end of this slice ends the prompt: one more word must follow it.
        ends = [match.end() for match in islice(_WORD.finditer(text), prefix_words + 1)]
        if len(ends) > prefix_words:
            rows.append(story.row(head + text[: ends[-2]], {"text": text[ends[-2] :]}))
    if not rows:
        raise SkipbenchError(
            f"{prefix_words=} leaves none of the {len(stories)} stories: each has {prefix_words} "
            "words or fewer; give a shorter prefix"
        )
    return rows


def stream(parts: dict[str, list[Row]], size: int) -> list[Row]:
    """Tasks one after another, as in SWIFT's Figure 7: the first `size` conversations of each part,
    grouped by their task; a row of one turn is one. Raises SkipbenchError for no parts, or a size
    below 1.
    """
    if not parts or size < 1:
        raise SkipbenchError(
            f"a stream of {len(parts)} parts with dataset.size={size} has no rows; give 1 or "
            "more of both"
        )
    found = []
    for task, rows in parts.items():
        starts = [i for i, row in enumerate(rows) if row.after is None]
        end = starts[size] if len(starts) > size else len(rows)
        found += [replace(row, groups=row.groups | {"task": task}) for row in rows[:end]]
    return found
