"""What is written of every key and choice: by the schema or class that reads it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from omegaconf import MISSING

from skipbench.config.catalog import choices, file_of, target_of
from skipbench.config.configurable import Settings, in_words, kinds_of
from skipbench.config.schemas import SCHEMAS, node_of
from skipbench.config.signature import schema_of, settings, summary


class Entry(NamedTuple):
    """One key: which choice or group it belongs to, its type, default and documentation."""

    key: str
    owner: str
    kind: str
    default: str | None  # `None` where it must be given
    text: str

    def __str__(self) -> str:
        owner = f" ({self.owner})" if self.owner else ""
        default = "must be given" if self.default is None else f"default {self.default}"
        return f"{self.key}{owner}: {self.kind}, {default}. {self.text}".rstrip()


def documented() -> Iterator[Entry]:
    """Every key, as its schema, or the class that the choice names, documents it."""
    for (group, _), schema in SCHEMAS.items():
        path = f"{schema.__module__}.{schema.__name__}"
        yield from _entries(schema, path, f"{group}." if group else "", group or "")
    for group, prefix in (("method", "method."), ("stop", "method.stop.")):
        for choice in choices(group):
            file = file_of(group, choice)
            if (target := target_of(file)) is not None:
                yield from _entries(schema_of(target), target, prefix, f"{group}={choice}")


def _entries(schema: type[Settings], path: str, prefix: str, owner: str) -> Iterator[Entry]:
    texts, kinds, node = settings(path), kinds_of(schema), node_of(schema)
    for name, default in node.items():
        kind = kinds[name]
        if isinstance(kind, type) and issubclass(kind, Settings) and isinstance(default, dict):
            below = f"{kind.__module__}.{kind.__name__}"
            yield from _entries(kind, below, f"{prefix}{name}.", owner or name)
        elif "=" not in owner or name not in ("_target_", "name"):
            value = None if default == MISSING else str(default)
            yield Entry(f"{prefix}{name}", owner, _in_words(kind), value, texts[name].text)


def _in_words(kind: Any) -> str:
    """A type with its bounds."""
    words = in_words(kind) or getattr(kind, "__name__", "Any")
    optional = type(None) in get_args(kind) and "null" not in words
    return f"{words} or null" if optional else words


def described(path: Path) -> str:
    """First comment of a choice's file, else its target's docstring."""
    comment = re.search(r"^# (?!@)(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    target = None if comment else target_of(path)
    return comment[1] if comment else summary(target) if target else ""
