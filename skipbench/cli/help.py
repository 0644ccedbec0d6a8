"""`--help`, and `--help KEY`: what a key means, from the documentation of what reads it."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_type_hints

from click import HelpFormatter

from skipbench.cli.command import CHOSEN_BY, Command, annotated, declared, help_of
from skipbench.cli.commands import COMMANDS
from skipbench.config.catalog import choices, file_of
from skipbench.config.configurable import in_words
from skipbench.config.documented import Entry, described, documented
from skipbench.config.explain import did_you_mean
from skipbench.console import out
from skipbench.errors import SkipbenchError
from skipbench.report.columns import COLUMNS, Column


def print_help(words: list[str]) -> None:
    """Prints the help, or what it says of these keys. Raises SkipbenchError for an unknown one."""
    if words:
        sys.stdout.write("\n\n".join(describe(w.partition("=")[0]) for w in words) + "\n")
        return
    commands = [(name, help_of(kind)[0]) for name, kind in COMMANDS.items() if name != "runrow"]
    rows = []
    for group, key in CHOSEN_BY.items():
        more = f", ... ({count})" if (count := len(names := choices(group))) > 6 else ""
        rows.append((key, ", ".join(names[:6]) + more))
    text = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    sys.stdout.write(text.format(commands=_columns(commands), groups=_columns(rows)))


def describe(key: str) -> str:
    """Describes a key, a group or a command. Raises SkipbenchError for any other word."""
    if key in COMMANDS:
        return _command(COMMANDS[key])
    if key == "columns":
        text = _columns(map(_defined, COLUMNS))
        return f"columns of the tables, with their keys in columns=\n{text}"
    if (group := key.partition("@")[0]) in CHOSEN_BY:
        rows = ((name, described(file_of(group, name))) for name in choices(group))
        lines = [f"  {name:<20} {text}".rstrip() for name, text in rows]
        return "\n".join([f"{CHOSEN_BY[group]}=CHOICE, one of", *lines])
    owners: dict[Entry, list[str]] = {}
    for entry in documented():
        if entry.key == key:
            owners.setdefault(entry._replace(owner=""), []).append(entry.owner)
    entries = [str(e._replace(owner=", ".join(of))) for e, of in owners.items()]
    named = (column for column in COLUMNS if key in (column.key, column.heading))
    entries += [_columns([_defined(column)]) for column in named]
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


def _defined(column: Column) -> tuple[str, str]:
    key = "" if column.key == column.heading else f" ({column.key})"
    return column.heading + key, column.definition


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    """Words with their texts, as wide as the terminal."""
    formatter = HelpFormatter(width=min(out.width, 100))
    with formatter.indentation():
        formatter.write_dl([*rows], col_max=24)
    return formatter.getvalue().rstrip()
