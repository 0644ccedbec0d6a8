"""`dataset=prompts`: a file of the user's prompts, without reference answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from skipbench.data.rows import Row, numbered_lines, placed_rows, sample_rows
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import hashed
from skipbench.runs.reading import readable

ROLES = ("system", "user", "assistant", "tool")


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


def prompts(path: str, size: int | None, seed: int, shuffle: bool) -> list[Row]:
    """The prompts of a file, with ids that count from 1.

    Args:
        path: `.jsonl` or `.parquet` with a column `prompt` (a text) or `messages` (a list of `role`
            and `content`, the last one of the user), other columns are not read; or `.txt` with one
            prompt per line. Other arguments are those of `sample_rows`.

    Raises:
        SkipbenchError: a file that cannot be read, or a row without a prompt.
    """
    file = Path(path)
    with readable(file, "wanted text in UTF-8"):
        rows = list(_lines(file) if file.suffix == ".txt" and file.is_file() else _rows(file))
    if not rows:
        raise SkipbenchError(f"dataset.path={path} holds no prompt; give one per line")
    return sample_rows(rows, size, seed, shuffle)


def _lines(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig") as opened:
        texts = (line.rstrip("\n") for _, line in numbered_lines(file, opened))
        for number, line in enumerate(filter(str.strip, texts), 1):
            yield Row(f"prompts-{number}", line, source=hashed(line))


def _rows(file: Path) -> Iterator[Row]:
    columns = {"prompt": str, "messages": list}
    found = placed_rows(file, columns, either=True)
    for number, (place, row) in enumerate(found, 1):
        name = f"prompts-{number}"
        if "prompt" in row:
            yield Row(name, row["prompt"], source=hashed(row["prompt"]))
            continue
        messages = [_message(m, place) for m in row["messages"]]
        if messages[-1].role not in ("user", "tool"):
            raise SkipbenchError(
                f"{place}: the last message is of {messages[-1].role!r}; the model answers one "
                "of the user, so leave its answer out"
            )
        plain, chat = "\n\n".join(m.content for m in messages), msgspec.to_builtins(messages)
        yield Row(name, plain, source=hashed(chat, sort_keys=False), messages=tuple(chat))


def _message(found: object, place: str) -> _Message:
    try:
        return msgspec.convert(found, _Message)
    except msgspec.ValidationError as error:
        raise SkipbenchError(
            f"{place}: a message is {str(found)[:80]!r}; wanted an object with 'role', one of "
            f"{', '.join(ROLES)}, and 'content', a text"
        ) from error
