"""`--help`, and `--help KEY`: what a key means, from the documentation of what reads it."""

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, get_type_hints

from click import HelpFormatter

from skipbench.cli.commands import COMMANDS
from skipbench.cli.parser import GROUPS, Command, annotated, declared, help_of, template
from skipbench.config.catalog import choices, file_of, target_of
from skipbench.config.configurable import in_words
from skipbench.config.explain import did_you_mean
from skipbench.config.schemas import FROM_SIGNATURE, SCHEMAS, fault_of
from skipbench.config.signature import schema_of, settings, summary
from skipbench.console import out
from skipbench.errors import SkipbenchError
from skipbench.report.definitions import DEFINITIONS


def print_help(words: list[str]) -> None:
    """Prints the help, or what it says of these keys. Raises SkipbenchError for an unknown one."""
    if words:
        sys.stdout.write("\n\n".join(describe(w.partition("=")[0]) for w in words) + "\n")
        return
    commands = [(name, help_of(kind)[0]) for name, kind in COMMANDS.items() if name != "cell"]
    rows = []
    for group in GROUPS:
        more = f", ... ({count})" if (count := len(names := choices(group))) > 6 else ""
        rows.append((group, ", ".join(names[:6]) + more))
    sys.stdout.write(template("help.txt", commands=_columns(commands), groups=_columns(rows)))


def describe(key: str) -> str:
    """Describes a key, a group or a command. Raises SkipbenchError for any other word."""
    if key in COMMANDS:
        return _command(COMMANDS[key])
    if key == "columns":
        return f"columns of the tables\n{_columns(DEFINITIONS.items())}"
    if key in GROUPS:
        rows = ((name, described(file_of(key, name))) for name in choices(key))
        lines = [f"  {name:<20} {text}".rstrip() for name, text in rows]
        return "\n".join([f"{key}=CHOICE, one of", *lines])
    entries = [str(entry) for entry in documented() if entry.key == key]
    entries += [_columns([(key, DEFINITIONS[key])])] if key in DEFINITIONS else []
    if not entries:
        known = sorted({entry.key for entry in documented()})
        raise SkipbenchError(
            f"unknown key {key!r}.{did_you_mean(key, known)} --help lists groups and commands"
        )
    return "\n".join(dict.fromkeys(entries))


def _command(command: type[Command]) -> str:
    """What a command does, its examples, and its keys and flags."""
    (what, examples), (keys, flags) = help_of(command), declared(command)
    meanings, kinds = annotated(command, str), get_type_hints(command, include_extras=True)
    rows = [(flag, meanings.get(name, "")) for flag, name in flags.items()]
    for name in keys:
        default = getattr(command(), name)
        wanted = f" ({limits})" if (limits := in_words(kinds[name])) else ""
        word = f"{name}={'' if default in (None, ()) else default}"
        rows.append((word, f"{meanings.get(name, '')}{wanted}"))
    if command.SETTINGS:
        groups = "=, ".join(command.GROUPS)
        text = f"settings of a cell: {groups}=, seed=, ...; list and --help KEY say what they take"
        rows.append(("KEY=VALUE", text))
    usage = [f"  python -m skipbench {example}" for example in examples]
    listed = ["", _columns(rows)] if rows else []
    return "\n".join([f"{command.__name__.lower()}: {what}", *usage, *listed])


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    """Words with their texts, as wide as the terminal."""
    formatter = HelpFormatter(width=min(out.width, 100))
    with formatter.indentation():
        formatter.write_dl([*rows], col_max=24)
    return formatter.getvalue().rstrip()


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
    """Every key, as its schema, or the class or function that the choice names, documents it."""
    for (group, _), schema in SCHEMAS.items():
        path = f"{schema.__module__}.{schema.__name__}"
        yield from _entries(schema, path, f"{group}." if group else "", group or "")
    for group, prefix in (("method", "method."), ("stop", "method.stop.")):
        for choice in choices(group):
            file = file_of(group, choice)
            if (target := target_of(file)) is not None and fault_of(file) is None:
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
    """First comment of a choice's file, else its target's docstring; or why it is broken."""
    if path.parent.name in FROM_SIGNATURE and (fault := fault_of(path)):
        return f"broken: {fault}"
    comment = re.search(r"^# (?!@)(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    target = None if comment else target_of(path)
    return comment[1] if comment else summary(target) if target else ""
