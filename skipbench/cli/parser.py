"""The words of a command line, read as a command declares them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from skipbench.cli.command import Command, Names, declared, help_of
from skipbench.config.catalog import as_choices
from skipbench.config.configurable import in_words
from skipbench.config.documented import documented
from skipbench.config.explain import did_you_mean, meant
from skipbench.config.schemas import known_settings
from skipbench.errors import SkipbenchError

C = TypeVar("C", bound=Command)


def results_of(settings: Sequence[str]) -> Path:
    """The results folder of settings that are not composed."""
    given = [word.partition("=")[2] for word in settings if word.startswith("results=")]
    folder = given[-1] if given else "results"
    return Path(folder[1:-1] if re.fullmatch(r"(['\"]).*\1", folder) else folder)


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
            value = value if sign else _value(next(rest, None), word, keys)
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
        wanted = in_words(get_type_hints(command, include_extras=True)[key])
        raise SkipbenchError(f"{key}={values[key]}; wanted {wanted}") from error


def _value(word: str | None, flag: str, keys: Mapping[str, Any]) -> str:
    """The word behind `--key`. Raises SkipbenchError where it is another key's, or missing."""
    key, sign, _ = (word or "").partition("=")
    name = re.split("[./@]", key.lstrip("+~"))[0]
    if word is None or word.startswith("--") or (sign and name in {*keys, *known_settings()}):
        raise SkipbenchError(f"{flag} needs a value, as in {flag} VALUE")
    return word


def _not_taken(command: type[Command], word: str, key: str, keys: list[str]) -> SkipbenchError:
    name, taken, hint = command.__name__.lower(), ", ".join(keys) or "no key", ""
    if command.SETTINGS:
        taken = f"{taken}, and settings of a cell (--help)"
        every = [*dict.fromkeys(entry.key for entry in documented())]
        replaced = key in command.NEEDS  # what chat reads in place of prompt=
        hint = f" It {command.NEEDS}" if replaced else did_you_mean(key, every)
    return SkipbenchError(
        f"{name} does not take {word}; it takes {taken}.{did_you_mean(key, keys) or hint}"
    )
