"""Errors of composition in a user's words: the key, what is allowed, what was probably meant."""

import contextlib
import difflib
import re
from collections.abc import Iterator

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from skipbench.config.catalog import choices, groups, places
from skipbench.config.nodes import nodes_here, unreadable
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError

LIKE, APART = 0.55, 0.15
"""Likeness from which a known word is meant, and how much less than the nearest one's it may be."""


def explain(error: Exception, overrides: list[str]) -> str:
    """Returns one line for an error that Hydra or OmegaConf raised for these overrides."""
    cause: BaseException | None = error
    met = list[object]()  # OmegaConf chains errors in a circle under a debugger
    while cause is not None and cause not in met:
        if isinstance(cause, SkipbenchError):
            return str(cause)
        met.append(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    whole = str(error)
    if several := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'", whole):
        return unreadable(several[1])
    if choice := re.search(r"Could not find '([\w/.-]+)/([\w.-]*)'", whole):
        path, name = choice.groups()
        advice = f"{did_you_mean(name, choices(path))} Allowed here: {', '.join(choices(path))}"
        return f"unknown {path.rpartition('/')[2]} {name!r}.{advice}"
    if missing := re.search(r"Missing mandatory value: (\S+)", whole):
        name = missing[1] if "." in missing[1] else getattr(error, "full_key", missing[1])
        return f"{name} must be given, as in {name}=VALUE"
    known = known_keys([o for o in overrides if re.split("[=@]", o)[0] in groups()])
    for key in (override.partition("=")[0].lstrip("+~") for override in overrides):
        if key not in known and "@" not in key and not key.startswith("hydra"):
            parent = key.rpartition(".")[0]
            beside = [k for k in known if k.rpartition(".")[0] == parent]
            if parent == "hardware" and not beside:
                return f"unknown key {key!r}. Choose a place first, as hardware={places()[0]}"
            beside = beside or [k for k in known if "." not in k]
            return (
                f"unknown key {key!r}.{did_you_mean(key, known)} Allowed here: {', '.join(beside)}"
            )
    return " ".join(str(error.__cause__ or error).split())


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
        except (HydraException, OmegaConfBaseException, yaml.YAMLError):
            composed = nodes_here().assemble([])
    keys = groups()

    def walk(node: object, prefix: str) -> None:
        for name, value in node.items() if isinstance(node, dict) else ():
            if name != "_target_":
                keys.add(f"{prefix}{name}")
                walk(value, f"{prefix}{name}.")

    walk(OmegaConf.to_container(composed), "")
    return sorted(keys - {"hydra", "stop"}, key=lambda k: (k.count("."), k))
