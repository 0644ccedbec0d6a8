"""`dataset=prompts`: a file of the user's prompts, without reference answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from skipbench.data.chat import ROLES, plain_message, plain_text
from skipbench.data.rows import NOT_EMPTY, Example, placed_rows, sample_rows
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import hashed

WANTED = f"a prompt, or messages: a list of objects with a role ({', '.join(ROLES)}) and content"
Messages = Annotated[list[dict[str, Any]], NOT_EMPTY]


class _Prompt(msgspec.Struct):
    prompt: Annotated[str, NOT_EMPTY] | Messages | None = None
    messages: Messages | None = None
    tools: Messages | None = None
    conversations: Any = None


def prompts(path: str, size: int | None, seed: int, shuffle: bool) -> list[Example]:
    """The prompts of a file, with ids that count from 1; arguments as of `sample_rows`. Raises
    SkipbenchError for a file that cannot be read, or a row without a prompt.

    `.jsonl` and `.parquet` have a column `prompt`, a text, or `messages`, a list of `role`,
    `content` and whatever else the chat template knows, the last one of the user or a tool, in
    either column; and, if need be, `tools`. `.txt` has a prompt per line.
    """
    file = Path(path)
    rows = list(_lines(file) if file.suffix.lower() == ".txt" and file.is_file() else _rows(file))
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
        name, found = f"prompts-{number}", row.messages if row.prompt is None else row.prompt
        filled = _filled if file.suffix.lower() == ".parquet" else list
        given = {"tools": filled(row.tools)} if row.tools else {}
        if found is None:
            known = "; conversations are ShareGPT's: write each as messages without the last answer"
            raise SkipbenchError(f"{place}: wanted {WANTED}{known if row.conversations else ''}")
        if isinstance(found, str):
            source = hashed([found, given] if given else found)
            yield Example(name, found, source=source, template=given)
            continue
        try:
            chat = [plain_message(one) for one in filled(found)]
            if wrong := [one["role"] for one in chat if one["role"] not in ROLES]:
                raise SkipbenchError(f"role {wrong[0]!r}")
        except SkipbenchError as error:
            raise SkipbenchError(f"{place}: {error}; wanted {WANTED}") from error
        if (last := chat[-1]["role"]) not in ("user", "tool", "function"):
            raise SkipbenchError(f"{place}: the last message is of {last!r}; leave its answer out")
        source = hashed([chat, given] if given else chat, sort_keys=False)
        yield Example(name, plain_text(chat), messages=tuple(chat), template=given, source=source)


def _filled(value: Any) -> Any:
    """Without the nulls that parquet has where another row has a field."""
    if isinstance(value, dict):
        return {key: _filled(one) for key, one in value.items() if one is not None}
    return [_filled(one) for one in value] if isinstance(value, list) else value
