"""What is written of every key and choice: by the schema or class that reads it."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_type_hints

from skipbench.config.catalog import choices, file_of, target_of
from skipbench.config.schemas import SCHEMAS
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


def _entries(schema: type, path: str, prefix: str, owner: str) -> Iterator[Entry]:
    texts, kinds = settings(path), get_type_hints(schema)
    for field in dataclasses.fields(schema):
        made = field.default_factory
        if isinstance(made, type) and dataclasses.is_dataclass(made):
            below = f"{made.__module__}.{made.__name__}"
            yield from _entries(made, below, f"{prefix}{field.name}.", owner or field.name)
        elif "=" not in owner or field.name not in ("_target_", "name"):
            default = field.default if made is dataclasses.MISSING else made()
            required = default in (dataclasses.MISSING, "???")
            kind = getattr(kinds[field.name], "__name__", str(kinds[field.name]))
            value = None if required else str(default)
            yield Entry(f"{prefix}{field.name}", owner, kind, value, texts[field.name].text)


def described(path: Path) -> str:
    """First comment of a choice's file, else its target's docstring."""
    comment = re.search(r"^# (?!@)(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    target = None if comment else target_of(path)
    return comment[1] if comment else summary(target) if target else ""
