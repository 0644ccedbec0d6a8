"""Composition: overrides in, `RunConfig` out.

Only this room, and the sweeper, see a `DictConfig`.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from skipbench.config.catalog import (
    add_config_folder,
    choices,
    config_folders,
    shape_of,
    with_search_path,
)
from skipbench.config.decoding import check_decoding
from skipbench.config.derived import derived
from skipbench.config.explain import explain, hydra_initialized
from skipbench.config.paths import CONF, PACKAGE
from skipbench.config.run_config import RunConfig
from skipbench.config.schemas import register
from skipbench.config.signature import schema_of
from skipbench.errors import SkipbenchError

OURS = ("experiment", "local", "published", "scale", "models")
"""Top-level keys that choose cells; a cell itself does not have them."""
SWAPPED = ("model", "method", "dataset")
"""Groups that differ from cell to cell of an experiment.

Their nodes are composed once per choice.
"""
IGNORED = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir")
"""Keys of Hydra's own folders, in which nothing is written here."""
FAILURES = (HydraException, OmegaConfBaseException, AssertionError)
"""Errors of Hydra for a wrong override; the last one for a key below one that is null."""


def _variant(key: str, default: Any = MISSING, *, _parent_: DictConfig) -> Any:
    """The value of a key in the variant that `prompt` names, for a dataset of the papers."""
    variants = _parent_["variants"]
    if _parent_["prompt"] not in variants:
        known = ", ".join(map(str, variants))
        raise SkipbenchError(
            f"{_parent_._get_full_key('prompt')}={_parent_['prompt']}; {_parent_['name']} "
            f"has: {known}"
        )
    value = variants[_parent_["prompt"]].get(key, default)
    if value == MISSING:
        raise SkipbenchError(f"variant {_parent_['prompt']} of {_parent_['name']} has no {key}")
    return value


def _setting(path: str, *, _parent_: DictConfig, _root_: DictConfig) -> Any:
    """The paper's value for the model at hand (`model.settings.<path>`), else the default of the
    method's signature.
    """
    value = OmegaConf.select(_root_, f"model.settings.{path}")
    if value is not None:
        return value
    return getattr(schema_of(_parent_["_target_"]), path.rpartition(".")[2])


RESOLVERS: dict[str, Callable[..., Any]] = {
    "package": lambda path: str(PACKAGE / path),
    "basename": lambda path: Path(path).name,
    "shape": lambda name: asdict(shape_of(str(name))),
    "variant": _variant,
    "setting": _setting,
}
for name, resolver in RESOLVERS.items():
    OmegaConf.register_new_resolver(name, resolver, replace=True)
register(CONF)


def use_config_dir(folder: Path) -> None:
    """Adds a folder of configuration files: its choices stand beside those of `conf`, and its
    methods get schemas.

    Raises:
        SkipbenchError: no such folder.
    """
    if not folder.is_dir():
        raise SkipbenchError(f"--config-dir {folder}: no such folder")
    add_config_folder(folder.resolve())
    register(folder.resolve())


def compose(overrides: Sequence[str]) -> RunConfig:
    """The configuration of one cell.

    Raises:
        SkipbenchError: an unknown key or choice, a value of a wrong type, or a value that is
            missing.
    """
    return compose_cells([overrides])[0]


def compose_cells(cells: Sequence[Sequence[str]]) -> list[RunConfig]:
    """The configurations of many cells.

    Hydra composes each choice of model, method and dataset once per process; cells are put together
    from these nodes.

    Raises:
        SkipbenchError: as `compose`.
    """
    configs: list[RunConfig] = []
    files = (p for f in config_folders() for deep in ("*", "*/*") for p in f.glob(f"{deep}.yaml"))
    nodes = _nodes(tuple(sorted((str(path), path.stat().st_mtime_ns) for path in files)))
    with hydra_initialized():
        for cell in cells:
            overrides = [checked(word) for word in cell]
            with explained(overrides):
                try:
                    config = _assemble(overrides, nodes)
                except FAILURES:  # for Hydra's own words
                    config = hydra.compose("config", overrides=with_search_path(overrides))
                configs.append(to_run_config(config))
    return configs


Nodes = dict[tuple[str, ...], DictConfig]
"""The nodes that Hydra composed, by the choices that made them."""


@functools.lru_cache(maxsize=1)
def _nodes(written: tuple[tuple[str, int], ...]) -> Nodes:
    """The cache of this process, empty after a change of a file: Hydra takes ten times as long to
    compose a cell as to put it together from its nodes.
    """
    return {}


def _assemble(overrides: list[str], cache: Nodes) -> DictConfig:
    """One cell, from cached nodes; Hydra composes only if one of them is new."""
    groups = [(word, _group(word)) for word in overrides]
    chosen = {group: tuple(w for w, of in groups if of == group) for group in (*SWAPPED, "")}
    keys = {group: (group, *chosen[""], *chosen[group]) for group in SWAPPED}
    root = ("", *chosen[""])
    if root not in cache or not cache.keys() >= set(keys.values()):
        words = [word for word, of in groups if of is not None]
        whole = hydra.compose("config", overrides=with_search_path(words))
        with open_dict(whole):
            cache |= {key: whole.pop(group) for group, key in keys.items()}
        cache[root] = whole
    config = copy.deepcopy(cache[root])
    with open_dict(config):
        for group, key in keys.items():
            config[group] = cache[key]
    values = [word for word, of in groups if of is None]
    for parsed in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, parsed.key_or_group, parsed.value(), force_add=False)
    return config


def _group(word: str) -> str | None:
    """The swapped group that an override changes by a choice; empty for another choice, `None` for
    a value.
    """
    group, _, package = word.partition("=")[0].partition("@")
    if not any((folder / group).is_dir() for folder in config_folders()):
        return None
    owner = (package or group).partition(".")[0]
    return owner if owner in SWAPPED else ""


def checked(word: str) -> str:
    """An override without Hydra's `+`: a key that the schemas lack is an error, never added.

    Raises:
        SkipbenchError: the override deletes a key, has none, or names a folder of Hydra's.
    """
    if word.startswith("~"):
        raise SkipbenchError(f"{word}: a key cannot be deleted; set it to null where it may be")
    word = word.lstrip("+")
    key = word.partition("=")[0]
    if key in IGNORED:
        raise SkipbenchError(f"{word}: records go below results=FOLDER; leave Hydra's folder out")
    if not key.strip():
        raise SkipbenchError(f"{word!r} is no override; wanted KEY=VALUE, as in method=uniform")
    return word


@contextlib.contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """Turns Hydra's errors into one line that names the key, what is allowed, and the likely
    intent.
    """
    try:
        yield
    except FAILURES as error:
        raise SkipbenchError(explain(error, list(overrides))) from error


def to_run_config(config: DictConfig) -> RunConfig:
    """Resolves a composed configuration.

    Raises:
        SkipbenchError: a value that must be given is missing, or cannot be used.
    """
    plain = OmegaConf.to_container(config, resolve=True, enum_to_str=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    check_decoding(**plain["decoding"])
    _check_finite(plain)
    if isinstance(stop := plain["method"].get("stop"), str):
        raise SkipbenchError(
            f"method.stop={stop}; a stop rule is chosen by "
            f"stop@method.stop={'|'.join(choices('stop'))}"
        )
    if plain["search"]["own"]:
        plain["search_dataset"] = _without_variants(_search_dataset(config, plain))
    kept = {str(k): _without_variants(v) for k, v in plain.items() if k not in (*OURS, "hydra")}
    run = RunConfig.from_dict(kept)
    return replace(run, model=derived(run.model))


def _check_finite(value: Any, key: str = "") -> None:
    """Raises SkipbenchError for a setting that is NaN or infinite: no key means anything by it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SkipbenchError(f"{key}={value}; wanted a finite number")
    parts = dict(enumerate(value)) if isinstance(value, list) else value
    for name, part in parts.items() if isinstance(parts, dict) else ():
        _check_finite(part, f"{key}.{name}".lstrip("."))


def _search_dataset(config: DictConfig, plain: Mapping[Any, Any]) -> Any:
    """Where a cell's own search draws its prompts.

    Keys of the cell's dataset, such as its length, do not carry over to another one: all cells
    share the search on that.
    """
    on = plain["search"]["on"]
    if on is None:
        return plain["dataset"]
    with hydra_initialized():
        other = hydra.compose("config", overrides=with_search_path([f"dataset={on}"]))
    config = copy.deepcopy(config)
    with open_dict(config):
        config.dataset = other.dataset
    return OmegaConf.to_container(config.dataset, resolve=True, enum_to_str=True)


def _without_variants(node: Any) -> Any:
    """Drops the table of variants: the keys hold what the chosen one says, and the others are not
    part of the run.
    """
    if not isinstance(node, dict):
        return node
    return {
        k: _without_variants(v) for k, v in node.items() if k != "variants" or "prompt" not in node
    }


def run_hydra(job: Callable[[DictConfig], Any]) -> None:
    """Reads `sys.argv` as Hydra does (single cell, sweep, `--cfg`, `--info`, completion) and calls
    `job` per cell.

    A single cell runs after Hydra has returned, which would print a line of its own about an error.
    """
    alone: list[DictConfig] = []

    def run_or_keep(config: DictConfig) -> Any:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return job(config)
        alone.append(config)
        return None

    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(run_or_keep)()
    for config in alone:
        job(config)
