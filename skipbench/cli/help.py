"""`--help`, and `--help KEY`: what a key means, from the documentation of what reads it."""

import ast
import dataclasses
import importlib.util
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from skipbench.cli.commands import COMMANDS
from skipbench.cli.parser import Command, declared, help_of, texts
from skipbench.config.catalog import choices, file_of
from skipbench.config.explain import did_you_mean
from skipbench.config.schemas import SCHEMAS
from skipbench.config.signature import schema_of, source_of
from skipbench.errors import SkipbenchError
from skipbench.report.definitions import DEFINITIONS

GROUPS = (
    "model",
    "method",
    "dataset",
    "decoding",
    "engine",
    "search",
    "experiment",
    "scale",
    "hardware",
)
TEXT = """\
skipbench: layer-skipping self-speculative decoding, measured against vanilla on one engine.

usage: python -m skipbench [key=value ...]                 one cell: model x method x dataset
       python -m skipbench -m method=a,b [key=value ...]   a sweep; also -m experiment=swift-table8
       python -m skipbench COMMAND [key=value ...]

Running the same command again finishes what is missing and recomputes nothing.

commands
{commands}

choices (group=choice; all of them: list GROUP, or --help GROUP)
{groups}

keys
  limit=20 seed=0 results=FOLDER dry_run=true decoding.temperature=0.7 dataset.max_new_tokens=128
  model.path=FOLDER_OR_HUB_ID model.dtype=float32|bfloat16|float16 model.device=cpu|cuda|auto
  engine.threads=1 hydra/launcher=slurm
  --help KEY explains one, as in --help method.interval; --help columns the columns of the tables
  --cfg job --resolve prints all keys of a cell with their values

flags
  --json                  results for machines: of a cell, a sweep, dry_run=true, table, compare
  -m, --multirun          a sweep over comma-separated values
  --config-dir DIR        a folder of configuration files of your own, such as those of a new method
  --cfg job [--resolve]   print the composed configuration
  --version; --shell-completion; --info defaults: Hydra's own
"""


def print_help(words: list[str]) -> None:
    """Prints the help, or what it says of one key, group or command.

    Raises:
        SkipbenchError: no such key.
    """
    keys = [w.partition("=")[0] for w in words]
    sys.stdout.write("\n\n".join(describe(key) for key in keys) + "\n" if keys else _overview())


def _overview() -> str:
    listed = [(name, help_of(kind)) for name, kind in COMMANDS.items() if name != "cell"]
    commands = "\n".join(f"  {name:<9} {text}" for name, text in listed)
    rows = []
    for group in GROUPS:
        names = choices(group)
        shown = ", ".join(names[:6])
        rows.append(f"  {group:<11} {shown}{f', ... ({len(names)})' if len(names) > 6 else ''}")
    return TEXT.format(commands=commands, groups="\n".join(rows))


def describe(key: str) -> str:
    """Describes a key, a group or a command, with defaults and choices.

    Raises:
        SkipbenchError: no such key.
    """
    if key in COMMANDS:
        return _command(COMMANDS[key])
    if key == "columns":
        return "\n".join(["columns of the tables", *map(_column, DEFINITIONS)])
    if key in GROUPS:
        lines = [
            f"  {name:<20} {first_comment(file_of(key, name))}".rstrip() for name in choices(key)
        ]
        return "\n".join([f"{key}=CHOICE, one of", *lines])
    entries = [text for name, text in documented() if name == key]
    entries += [_column(key)] if key in DEFINITIONS else []
    if not entries:
        known = sorted({name for name, _ in documented()})
        raise SkipbenchError(
            f"unknown key {key!r}.{did_you_mean(key, known)} --help lists groups and commands"
        )
    return "\n".join(dict.fromkeys(entries))


def _command(command: type[Command]) -> str:
    """Describes a command: its keys with their defaults, and its flags."""
    keys, flags = declared(command)
    words = dict(flags)
    for name in keys:
        default = getattr(command(), name)
        words[f"{name}={'' if default in (None, ()) else default}"] = name
    meanings = texts(command)
    lines = [f"  {word:<17} {meanings[name]}" for word, name in words.items() if name in meanings]
    rest = ["  KEY=VALUE         a setting of a cell: --help KEY"] if command.SETTINGS else []
    return "\n".join([f"{command.__name__.lower()}: {help_of(command)}", *lines, *rest])


def _column(name: str) -> str:
    """A column of the tables with its definition."""
    return textwrap.fill(
        f"{name}: {DEFINITIONS[name]}", 100, initial_indent="  ", subsequent_indent="      "
    )


def documented() -> Iterator[tuple[str, str]]:
    """Every key with a line on it: default, and the documentation beside the field or in the
    constructor's docstring.
    """
    for (group, _), schema in SCHEMAS.items():
        yield from _of_schema(schema, f"{group}." if group else "", group or "")
    for group, prefix in (("method", "method"), ("stop", "method.stop")):
        for choice in choices(group):
            target = re.search(
                r"^_target_:\s*(\S+)", file_of(group, choice).read_text(), re.MULTILINE
            )
            if target is None:
                continue
            texts = _argument_texts(target[1])
            for field in dataclasses.fields(schema_of(target[1])):
                if field.name not in ("_target_", "name"):
                    yield _line(
                        f"{prefix}.{field.name}",
                        field,
                        texts.get(field.name, ""),
                        f"{group}={choice}",
                    )


def _of_schema(schema: type, prefix: str, owner: str) -> Iterator[tuple[str, str]]:
    texts = _field_texts(schema)
    for field in dataclasses.fields(schema):
        if isinstance(field.default_factory, type) and dataclasses.is_dataclass(
            field.default_factory
        ):
            yield from _of_schema(
                field.default_factory, f"{prefix}{field.name}.", owner or field.name
            )
        else:
            yield _line(f"{prefix}{field.name}", field, texts.get(field.name, ""), owner)


def _line(key: str, field: "dataclasses.Field[object]", text: str, owner: str) -> tuple[str, str]:
    if field.default_factory is not dataclasses.MISSING:
        default: object = field.default_factory()
    else:
        default = field.default
    kind = getattr(field.type, "__name__", str(field.type))
    told = "must be given" if default in (dataclasses.MISSING, "???") else f"default {default}"
    return key, f"{key}{f' ({owner})' if owner else ''}: {kind}, {told}. {text}".rstrip()


def _field_texts(schema: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of those that it extends."""
    texts: dict[str, str] = {}
    for owner in reversed(schema.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        spec = importlib.util.find_spec(owner.__module__)
        assert spec is not None and spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        body = next(
            n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner.__name__
        )
        for node, after in itertools.pairwise(body):
            text = (
                after.value.value
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                else None
            )
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(text, str)
            ):
                texts[node.target.id] = " ".join(text.split())
    return texts


def _argument_texts(target: str) -> dict[str, str]:
    """The `Args:` of a class's constructor, or of a function."""
    module, _, name = target.rpartition(".")
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    node = next(n for n in tree.body if getattr(n, "name", None) == name)
    documents = [ast.get_docstring(node) or ""]  # type: ignore[arg-type]  # classes and functions only
    if isinstance(node, ast.ClassDef):
        documents += [
            ast.get_docstring(n) or ""
            for n in node.body
            if isinstance(n, ast.FunctionDef) and n.name == "__init__"
        ]
    texts: dict[str, str] = {}
    for document in documents:
        section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", document, re.MULTILINE)
        for names, text in re.findall(
            r"^ {4}([\w, ]+): ((?:.*\n?)(?: {8,}.*\n?)*)",
            section[1] if section else "",
            re.MULTILINE,
        ):
            texts |= {n.strip(): " ".join(text.split()) for n in names.split(",")}
    return texts


def first_comment(path: Path) -> str:
    """The first comment of a configuration file, which says what the choice is."""
    found = re.search(r"^# (?!@)(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""
