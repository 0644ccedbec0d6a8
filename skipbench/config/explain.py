"""Errors of composition in the words of a user: the key, what is allowed, and what was probably
meant.
"""

import contextlib
import difflib
import re
from collections.abc import Iterator

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from skipbench.config.catalog import choices, config_folders, with_search_path
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError


def explain(error: Exception, overrides: list[str]) -> str:
    """Returns one line for an error that Hydra or OmegaConf raised for these overrides."""
    if (own := _own(error)) is not None:
        return str(own)
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    if found := re.search(
        r"Ambiguous value for argument '(.*)'|Sweep parameters '(.*)' requires", str(error)
    ):
        return unreadable(found[1] or found[2])
    text = _text(error)
    for explanation in (
        _unknown_choice(text),
        _unknown_key(error, text, overrides),
        _wrong_type(error, text),
    ):
        if explanation is not None:
            return explanation
    if found := re.search(r"Missing mandatory value: (\S+)", str(error)):
        key = (
            found[1]
            if isinstance(error, InterpolationToMissingValueError)
            else getattr(error, "full_key", found[1])
        )
        return f"{key} must be given, as in {key}=VALUE"
    return text


def unreadable(override: str) -> str:
    """What to do with an override that is not one value."""
    key, _, value = override.partition("=")
    quoted = value.replace('"', "").replace("'", "")
    return (
        f"{override}: not one value. A value with commas, semicolons or brackets is quoted twice, "
        f"as in '{key}=\"{quoted}\"'; several values are a sweep, with -m"
    )


WANTED = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
}
SHORT = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""Other programs' names of precisions."""


def did_you_mean(word: str, known: list[str]) -> str:
    """A hint with the nearest known words, with a space before it; empty where none is near."""
    close = difflib.get_close_matches(word, known, 3, 0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _own(error: BaseException | None) -> SkipbenchError | None:
    while error is not None:
        if isinstance(error, SkipbenchError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _text(error: Exception) -> str:
    """The message without the names of schemas."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    return " ".join(
        line
        for line in lines
        if not line.startswith(("full_key", "object_type", "reference_type", "_"))
    )


def _unknown_choice(text: str) -> str | None:
    found = re.search(r"Could not find '([\w/.-]+)/([\w.-]*)'", text)
    if found is None:
        return None
    group, name = found[1].rpartition("/")[2] or found[1], found[2]
    known = choices(found[1])
    return f"unknown {group} {name!r}.{did_you_mean(name, known)} Allowed here: {', '.join(known)}"


def _unknown_key(error: Exception, text: str, overrides: list[str]) -> str | None:
    below_null = isinstance(error, AssertionError)
    if "Could not override" not in str(error) and "not in" not in text and not below_null:
        return None
    # most specific first
    for override in sorted(overrides, key=lambda o: len(o.partition("=")[0]), reverse=True):
        key = override.partition("=")[0].lstrip("+~").partition("@")[0]
        if key and (below_null or key in str(error)):
            known = known_keys(
                [o for o in overrides if o != override and "." not in o.partition("=")[0]]
            )
            if key not in known:
                return _unknown(key, known)
    return None


def _unknown(key: str, known: list[str]) -> str:
    parent = key.rpartition(".")[0]
    if parent.partition(".")[0] == "hydra":
        return f"unknown key {key!r}; --cfg hydra prints Hydra's own"
    if parent and parent not in known:
        return _unknown(parent, known)
    siblings = [k for k in known if k.rpartition(".")[0] == parent]
    if not siblings:
        first = next(iter(choices(parent)), None)
        advice = (
            f"it is null, choose one first, as {parent}={first}"
            if first
            else "it is one value, or null"
        )
        return f"unknown key {key!r}: {parent} has no keys; {advice}"
    return f"unknown key {key!r}.{did_you_mean(key, known)} Allowed here: {', '.join(siblings)}"


def _wrong_type(error: Exception, text: str) -> str | None:
    """The key before OmegaConf's message, which names only the value."""
    found = re.search(r"full_key: (\S+)", str(error.__cause__ or error))
    if found is None or not re.search(
        r"could not be converted|Invalid value|not a valid|is not supported", text
    ):
        return None
    return f"{found[1]}: {text[0].lower()}{text[1:]}{_wanted(text)}"


def _wanted(text: str) -> str:
    """What to write in place of a value that OmegaConf refused; empty where its message says so."""
    if kind := re.search(r"could not be converted to (Integer|Float|Boolean)", text):
        return f"; wanted {WANTED[kind[1]]}"
    choice = re.search(r"Invalid value '(.*)', expected one of \[(.*)\]", text)
    if choice is None:
        return ""
    if choice[1] in SHORT:
        return f". Did you mean {SHORT[choice[1]]}?"
    return "." + did_you_mean(choice[1], choice[2].split(", "))


@contextlib.contextmanager
def hydra_initialized() -> Iterator[None]:
    """Within it Hydra composes; inside a run of Hydra it is so already."""
    if GlobalHydra.instance().is_initialized():
        yield
        return
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="skipbench"):
        yield


def known_keys(overrides: list[str]) -> list[str]:
    """Every key of the configuration that these overrides compose; of the default one where they do
    not.
    """
    with hydra_initialized():
        try:
            config = OmegaConf.to_container(
                hydra.compose("config", overrides=with_search_path(overrides))
            )
        except (HydraException, OmegaConfBaseException):
            config = OmegaConf.to_container(hydra.compose("config"))

    def walk(node: object, prefix: str) -> list[str]:
        if not isinstance(node, dict) or not node:
            return [prefix]
        names = {
            f"{prefix}.{name}" if prefix else str(name): v
            for name, v in node.items()
            if name != "_target_"
        }
        return ([prefix] if prefix else []) + [
            key for name, value in names.items() for key in walk(value, name)
        ]

    groups = {p.name for folder in config_folders() for p in folder.iterdir() if p.is_dir()}
    return sorted({*walk(config, ""), *groups} - {"hydra", "stop"}, key=lambda k: (k.count("."), k))
