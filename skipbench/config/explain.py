"""Errors of composition in a user's words: the key, what is allowed, what was probably meant."""

import contextlib
import difflib
import re
from collections.abc import Iterator

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from skipbench.config.catalog import choices, file_of, groups, target_of
from skipbench.config.nodes import nodes_here, unreadable
from skipbench.config.paths import CONF
from skipbench.config.schemas import FROM_SIGNATURE, fault_of
from skipbench.config.signature import settings
from skipbench.errors import SkipbenchError

WANTED = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
SHORT = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""Other programs' names of precisions."""
LIKE, APART = 0.55, 0.15
"""Likeness from which a known word is meant, and how much less than the nearest one's it may be."""
OF_SCHEMAS = ("full_key", "object_type", "reference_type", "_")
"""Beginnings of the lines in which OmegaConf names schemas."""


def explain(error: Exception, overrides: list[str]) -> str:
    """Returns one line for an error that Hydra or OmegaConf raised for these overrides."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SkipbenchError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    for override in overrides:
        group, _, name = override.partition("=")
        if (
            group in FROM_SIGNATURE
            and name in choices(group)
            and (fault := fault_of(file_of(group, name)))
        ):
            return fault
    whole = str(error)
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    several = r"Ambiguous value for argument '(.*)'|Sweep parameters '(.*)' requires"
    if not_one := re.search(several, whole):
        return unreadable(not_one[1] or not_one[2])
    detail = str(error.__cause__ or error)
    lines = [line for line in map(str.strip, detail.splitlines()) if line]
    text = " ".join(line for line in lines if not line.startswith(OF_SCHEMAS))
    if choice := re.search(r"Could not find '([\w/.-]+)/([\w.-]*)'", text):
        path, name = choice.groups()
        advice = f"{did_you_mean(name, choices(path))} Allowed here: {', '.join(choices(path))}"
        return f"unknown {path.rpartition('/')[2]} {name!r}.{advice}"
    if explanation := _unknown_key(error, text, overrides):
        return explanation
    refused = r"could not be converted|Invalid value|not a valid|is not supported"
    if (key := re.search(r"full_key: (\S+)", detail)) and re.search(refused, text):
        return f"{key[1]}: {text[0].lower()}{text[1:]}{_wanted(text)}"
    if missing := re.search(r"Missing mandatory value: (\S+)", whole):
        of_error = not isinstance(error, InterpolationToMissingValueError)
        name = (of_error and getattr(error, "full_key", None)) or missing[1]
        return f"{name} must be given, as in {name}=VALUE"
    return text


def did_you_mean(word: str, known: list[str]) -> str:
    """A hint with the nearest known words, with a space before it; empty where none is near. A key
    that is whole but for its group, such as dtype for model.dtype, is nearest.
    """
    if not (close := [key for key in known if key == word or key.endswith(f".{word}")][:3]):
        close = difflib.get_close_matches(word, known, 3, LIKE)
        like = [difflib.SequenceMatcher(None, near, word).ratio() for near in close]
        close = [near for near, one in zip(close, like, strict=True) if one > like[0] - APART]
    return meant(close)


def meant(words: list[str]) -> str:
    """The hint on these words; empty without any."""
    return f" Did you mean {' or '.join(words)}?" if words else ""


def _unknown_key(error: Exception, text: str, overrides: list[str]) -> str | None:
    below_null = isinstance(error, AssertionError)
    if "Could not override" not in str(error) and "not in" not in text and not below_null:
        return None
    # most specific first
    for override in sorted(overrides, key=lambda o: len(o.partition("=")[0]), reverse=True):
        key = override.partition("=")[0].lstrip("+~").partition("@")[0]
        if key and (below_null or key in str(error)):
            groups = [o for o in overrides if o != override and "." not in o.partition("=")[0]]
            if key not in (known := known_keys(groups)):
                return _unknown(key, known)
    return None


def _unknown(key: str, known: list[str]) -> str:
    parent = key.rpartition(".")[0]
    if parent.partition(".")[0] == "hydra":
        return f"unknown key {key!r}; --cfg hydra prints Hydra's own"
    if parent and parent not in known:
        return _unknown(parent, known)
    if siblings := [k for k in known if k.rpartition(".")[0] == parent]:
        owners = _owners(parent, key.rpartition(".")[2])
        hint = f" It is a key of {', '.join(owners)}." if owners else did_you_mean(key, known)
        return f"unknown key {key!r}.{hint} Allowed here: {', '.join(siblings)}"
    advice = "it is one value, or null"
    if names := choices(parent):
        advice = f"it is null, choose one first, as {parent}={names[0]}"
    return f"unknown key {key!r}: {parent} has no keys; {advice}"


def _owners(parent: str, name: str) -> list[str]:
    """The choices that have a key: `method=clasp` has `interval`."""
    group = "stop" if parent == "method.stop" else parent
    files = {c: file_of(group, c) for c in choices(group)} if group in FROM_SIGNATURE else {}
    prefix = "stop@method.stop" if group == "stop" else group
    return [
        f"{prefix}={choice}"
        for choice, file in files.items()
        if (target := target_of(file)) and fault_of(file) is None and name in settings(target)
    ]


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
    """Every key that these overrides compose, of the default ones where they do not compose."""
    with hydra_initialized():
        try:
            composed = nodes_here().assemble(overrides)
        except (HydraException, OmegaConfBaseException):
            composed = nodes_here().assemble([])
    keys = groups()

    def walk(node: object, prefix: str) -> None:
        for name, value in node.items() if isinstance(node, dict) else ():
            if name != "_target_":
                keys.add(f"{prefix}{name}")
                walk(value, f"{prefix}{name}.")

    walk(OmegaConf.to_container(composed), "")
    return sorted(keys - {"hydra", "stop"}, key=lambda k: (k.count("."), k))
