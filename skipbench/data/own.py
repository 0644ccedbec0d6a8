"""`dataset=prompts`: a file of the user's prompts, without reference answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from skipbench.data.rows import NOT_EMPTY, Example, placed_rows, sample_rows
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import hashed

WANTED = (
    "a prompt, or messages: a list of objects with a role (system, user, assistant or tool) and "
    "content, a text"
)


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class _Prompt(msgspec.Struct):
    prompt: Annotated[str, NOT_EMPTY] | None = None
    messages: Annotated[list[_Message], NOT_EMPTY] | None = None


def prompts(path: str, size: int | None, seed: int, shuffle: bool) -> list[Example]:
    """The prompts of a file, with ids that count from 1; arguments as of `sample_rows`. Raises
    SkipbenchError for a file that cannot be read, or a row without a prompt.

    `.jsonl` and `.parquet` have a column `prompt` (a text) or `messages` (a list of `role` and
    `content`, the last one of the user); `.txt` has a prompt per line.
    """
    file = Path(path)
    rows = list(_lines(file) if file.suffix == ".txt" and file.is_file() else _rows(file))
    if not rows:
        raise SkipbenchError(f"dataset.path={path} holds no prompt; give one per line")
    return sample_rows(rows, size, seed, shuffle)


def _lines(file: Path) -> Iterator[Example]:
    try:
        texts = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(f"{file}: {error}; wanted text in UTF-8") from error
    for number, line in enumerate(filter(str.strip, texts), 1):
        yield Example(f"prompts-{number}", line, source=hashed(line))


def _rows(file: Path) -> Iterator[Example]:
    for number, (place, row) in enumerate(placed_rows(file, _Prompt, WANTED), 1):
        name = f"prompts-{number}"
        if row.prompt is not None:
            yield Example(name, row.prompt, source=hashed(row.prompt))
            continue
        if row.messages is None:
            raise SkipbenchError(f"{place}: wanted {WANTED}")
        if (last := row.messages[-1].role) not in ("user", "tool"):
            raise SkipbenchError(f"{place}: the last message is of {last!r}; leave its answer out")
        plain = "\n\n".join(message.content for message in row.messages)
        chat = msgspec.to_builtins(row.messages)
        yield Example(name, plain, source=hashed(chat, sort_keys=False), messages=tuple(chat))
