"""The parser of all commands: a command is a declaration of its keys, flags and bare words."""

import re
from collections.abc import Mapping, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from skipbench.config.catalog import as_choices
from skipbench.config.derived import model_words
from skipbench.config.explain import did_you_mean, meant
from skipbench.config.schemas import known_settings
from skipbench.errors import SkipbenchError

C = TypeVar("C", bound="Command")
T = TypeVar("T")
Names = tuple[str, ...]
GROUPS = (
    *("model", "method", "dataset", "decoding", "engine"),
    *("search", "experiment", "scale", "hardware"),
)


class Command(Struct):
    """Base of the declarations.

    A subclass is the command of its name in lower case; its docstring is the command's help: what
    it does, and an example. A field of type `bool` is a flag, any other a key; a string in its
    annotation says what it means, `Meta` its bounds, and the words for what is wanted (`title`).

    Attributes:
        words: bare words, in order.
        settings: overrides of a cell.
        given: all words KEY=VALUE, keys of the command among them.
    """

    words: Names = ()
    settings: Names = ()
    given: Names = ()

    SETTINGS: ClassVar[bool] = True  # takes other keys as settings of a cell
    GROUPS: ClassVar[Names] = GROUPS  # those of settings that matter to it, for help and completion
    WORDS: ClassVar[tuple[int, int | None]] = (0, 0)  # bare words, minimum and maximum
    BARE: ClassVar[Names] = ()  # keys that may stand last as `--key`, without a value
    NEEDS: ClassVar[str] = ""  # message about a wrong number of bare words, after the name

    def model_settings(self) -> list[str]:
        """The settings, where `model=` may also be a folder, a GGUF file or a hub id."""
        return [
            word
            for one in self.settings
            for word in (model_words(one[6:]) if one.startswith("model=") else [one])
        ]


def results_of(settings: Sequence[str]) -> Path:
    """The results folder of settings that are not composed."""
    given = [word.partition("=")[2] for word in settings if word.startswith("results=")]
    folder = given[-1] if given else "results"
    return Path(folder[1:-1] if re.fullmatch(r"(['\"]).*\1", folder) else folder)


def help_of(command: type[Command]) -> tuple[str, list[str]]:
    """What a command does, and examples, from its documentation."""
    what, _, examples = (getdoc(command) or "").replace("\n", " ").partition(":  ")
    return what, examples.split(" | ")


def annotated(command: type[Command], kind: type[T]) -> dict[str, T]:
    """The `str` or `Meta` in the annotations of a command's fields, by field."""
    hints = get_type_hints(command, include_extras=True)
    extras = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
    return {name: part for name, parts in extras for part in parts if isinstance(part, kind)}


def declared(command: type[Command]) -> tuple[dict[str, Any], dict[str, str]]:
    """Types of a command's keys by name, and fields of its flags by word (`--render-only`)."""
    kinds = get_type_hints(command)
    own = [name for name in command.__struct_fields__ if name not in Command.__struct_fields__]
    return (
        {name: kinds[name] for name in own if kinds[name] is not bool},
        {f"--{name.replace('_', '-')}": name for name in own if kinds[name] is bool},
    )


def parse(command: type[C], arguments: Sequence[str]) -> C:
    """Reads the words of a command line: `KEY=VALUE`, `--flag`, `--key VALUE`, bare words.

    Raises SkipbenchError for an unknown flag or key, a value of another type or out of its bounds,
    and a wrong number of bare words.
    """
    name, (keys, flags) = command.__name__.lower(), declared(command)
    values: dict[str, Any] = {}
    words, settings, given = list[str](), list[str](), list[str]()
    rest, dashed = iter(arguments), [f"--{key}" for key in keys]
    for word in rest:
        key, sign, value = word.partition("=")
        if (long := key[2:].replace("-", "_")) in keys and key.startswith("--"):
            bare = long in command.BARE
            value = value if sign else _value(next(rest, "" if bare else None), word, keys)
            key, sign = long, "="
            word = f"{key}={value}"
        if word in flags:
            values[flags[word]] = True
        elif re.match(r"--|-[a-z]", word):
            raise SkipbenchError(
                f"unknown flag {word!r} of {name}.{did_you_mean(word, [*flags, *dashed])} "
                f"Flags: {', '.join(flags) or 'none'}"
            )
        elif not sign or not re.fullmatch(r"[+~]?[a-z_][\w./@]*", key):
            words.append(word)
        else:
            given.append(word)
            if key in keys:
                if not value and Path in (keys[key], *get_args(keys[key])):
                    raise SkipbenchError(f"{key} needs a value, as in {key}=FILE")
                values[key] = value
            elif command.SETTINGS and re.split("[./@]", key.lstrip("+~"))[0] in known_settings():
                settings.append(word)
            else:
                raise _not_taken(command, word, key, [*keys])
    minimum, maximum = command.WORDS
    if not minimum <= len(words) <= (len(words) if maximum is None else maximum):
        if command.NEEDS:
            hint = meant(as_choices(words[0])) if words and command.SETTINGS else ""
            raise SkipbenchError(f"{name} {command.NEEDS}.{hint}".removesuffix("."))
        hint = meant(as_choices(words[0])) or did_you_mean(words[0], [*keys, *flags])
        example = help_of(command)[1][0]
        raise SkipbenchError(f"{name}: {words[0]!r} is no KEY=VALUE.{hint} As in {example}")
    lists = {
        key: [part for part in values[key].strip("[]").split(",") if part]
        for key, kind in keys.items()
        if kind == Names and key in values
    }
    parts = {**values, **lists, "words": words, "settings": settings, "given": given}
    try:
        return msgspec.convert(parts, command, strict=False, dec_hook=lambda kind, v: kind(v))
    except msgspec.ValidationError as error:
        key = str(error).rpartition("$.")[2].rstrip("`")
        wanted = annotated(command, Meta)[key].title
        raise SkipbenchError(f"{key}={values[key]}; wanted {wanted}") from error


def _value(word: str | None, flag: str, keys: Mapping[str, Any]) -> str:
    """The word behind `--key`. Raises SkipbenchError where it is another key's, or missing."""
    key, sign, _ = (word or "").partition("=")
    name = re.split("[./@]", key.lstrip("+~"))[0]
    if word is None or word.startswith("--") or (sign and name in {*keys, *known_settings()}):
        raise SkipbenchError(f"{flag} needs a value, as in {flag} VALUE")
    return word


def _not_taken(command: type[Command], word: str, key: str, keys: list[str]) -> SkipbenchError:
    from skipbench.cli.help import documented

    name, taken, hint = command.__name__.lower(), ", ".join(keys) or "no key", ""
    if command.SETTINGS:
        taken = f"{taken}, and settings of a cell (--help)"
        every = [*dict.fromkeys(entry.key for entry in documented())]
        replaced = key in command.NEEDS  # what chat reads in place of prompt=
        hint = f" It {command.NEEDS}" if replaced else did_you_mean(key, every)
    return SkipbenchError(
        f"{name} does not take {word}; it takes {taken}.{did_you_mean(key, keys) or hint}"
    )


def template(name: str, **parts: object) -> str:
    """A text of `cli/texts` with its `{parts}` filled in."""
    return (Path(__file__).parent / "texts" / name).read_text(encoding="utf-8").format(**parts)
