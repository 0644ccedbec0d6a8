"""Composition: overrides in, `RunConfig` out; only the sweeper sees a `DictConfig` as well."""

import contextlib
import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import msgspec
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from skipbench.config import catalog
from skipbench.config.configurable import kinds_of, typed
from skipbench.config.derived import derived
from skipbench.config.explain import explain, hydra_initialized
from skipbench.config.nodes import nodes_here
from skipbench.config.paths import CONF, PACKAGE, cache_folder
from skipbench.config.run_config import Config, RunConfig
from skipbench.config.schemas import node_of, register
from skipbench.config.signature import schema_of
from skipbench.errors import SkipbenchError

OURS = {"experiment", "local", "hydra", *Config.__struct_fields__} - {*RunConfig.__struct_fields__}
"""Top-level keys that choose cells; a cell itself does not have them."""
IGNORED = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir")
"""Keys of Hydra's own folders, in which nothing is written here."""
FAILURES = (HydraException, OmegaConfBaseException, AssertionError, yaml.YAMLError)
"""Errors of Hydra for a wrong override; the last one for a key below one that is null."""


def _variant(key: str, default: Any = MISSING, *, _parent_: DictConfig) -> Any:
    """The value of a key in the variant that `prompt` names, for a dataset of the papers."""
    variants, chosen, name = (_parent_[of] for of in ("variants", "prompt", "name"))
    if chosen not in variants:
        known, full = ", ".join(map(str, variants)), _parent_._get_full_key("prompt")
        raise SkipbenchError(f"{full}={chosen}; {name} has: {known}")
    if (value := variants[chosen].get(key, default)) == MISSING:
        raise SkipbenchError(f"variant {chosen} of {name} has no {key}")
    return value


def _setting(path: str, *, _parent_: DictConfig, _root_: DictConfig) -> Any:
    """The paper's value for the model (`model.settings.<path>`), else the method's default."""
    value, key = OmegaConf.select(_root_, f"model.settings.{path}"), path.rpartition(".")[2]
    return node_of(schema_of(_parent_["_target_"]))[key] if value is None else value


def _tuned(value: Any, *, _node_: Any, _parent_: DictConfig, _root_: DictConfig) -> Any:
    """The value of a method's setting; with `preset=paper` the paper's."""
    paper = _root_["preset"] == "paper"
    return node_of(schema_of(_parent_["_target_"]))[_node_._key()] if paper else value


RESOLVERS: dict[str, Callable[..., Any]] = {
    "package": lambda path: str(PACKAGE / path),
    "cache": lambda name: str(cache_folder() / name),
    "basename": lambda path: Path(path).name,
    "shape": lambda name: msgspec.structs.asdict(catalog.shape_of(str(name))),
    "variant": _variant,
    "setting": _setting,
    "tuned": _tuned,
    "by_device": lambda gpu, cpu, *, _root_: cpu if _root_["model"]["device"] == "cpu" else gpu,
}
for name, resolver in RESOLVERS.items():
    OmegaConf.register_new_resolver(name, resolver, replace=True)
register(*catalog.BUILT_IN)


def use_config_dir(folder: Path) -> None:
    """Adds a folder of choices. Raises SkipbenchError where there is none."""
    if not folder.is_dir():
        raise SkipbenchError(f"--config-dir {folder}: no such folder")
    catalog.add_config_folder(folder.resolve())
    register(folder.resolve())


def compose(overrides: Sequence[str]) -> RunConfig:
    """The configuration of one cell.

    Raises SkipbenchError for an unknown key or choice, and a wrong or missing value.
    """
    return compose_cells([overrides])[0]


def compose_cells(cells: Sequence[Sequence[str]]) -> list[RunConfig]:
    """`compose` of many cells, from nodes that Hydra composes once per process."""
    configs = list[RunConfig]()
    nodes = nodes_here()
    with hydra_initialized():
        for cell in cells:
            overrides = [checked(word) for word in cell]
            with hydra_errors(overrides):
                try:
                    config = nodes.assemble(overrides)
                except FAILURES:  # for Hydra's own words
                    config = hydra.compose("config", overrides=catalog.with_search_path(overrides))
                configs.append(to_run_config(config))
    return configs


def checked(word: str) -> str:
    """An override without Hydra's `+`: a key that the schemas lack is an error, never added.

    Raises SkipbenchError where it deletes a key, has none, or names a folder of Hydra's.
    """
    if word.startswith("~"):
        raise SkipbenchError(f"{word}: a key cannot be deleted; set it to null where it may be")
    word = word.lstrip("+")
    key = word.partition("=")[0]
    if key in IGNORED:
        raise SkipbenchError(f"{word}: records go below results=FOLDER; leave Hydra's folder out")
    if not key.strip():
        raise SkipbenchError(f"{word!r} is no override; wanted KEY=VALUE, as in method=uniform")
    value = word[len(key) + 1 :]
    # Hydra would take the apostrophe of a folder it's for the beginning of a quoted text
    within = re.fullmatch(r"[^'\"\[\]{}(),;]+['\"][^\[\]{}(),;]*", value)
    return f"{key}={catalog.quoted(value)}" if within else word


@contextlib.contextmanager
def hydra_errors(overrides: Sequence[str]) -> Iterator[None]:
    """Turns Hydra's errors into `explain`'s line."""
    try:
        yield
    except FAILURES as error:
        raise SkipbenchError(explain(error, list(overrides))) from error


def to_run_config(config: DictConfig) -> RunConfig:
    """Resolves a composed configuration.

    Raises SkipbenchError for a value that is missing, or cannot be used.
    """
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    _check_finite(plain)
    typed(plain["preset"], kinds_of(Config)["preset"], "preset")
    if isinstance(stop := plain["method"].get("stop"), str):
        rules = "|".join(catalog.choices("stop"))
        raise SkipbenchError(
            f"method.stop={stop}; a stop rule is chosen by stop@method.stop={rules}"
        )
    # `search.iterations=` on an experiment reaches its cells of every method
    if config.search.own and plain["method"].get("skip") == "stored":
        plain["search_dataset"] = _without_variants(_search_dataset(config, plain))
    plain["method"] = _checked(plain["method"], "method")
    if "devices" in (plain["hardware"] or ()):
        places = "|".join(catalog.places())
        raise SkipbenchError(f"this hardware is a datasheet, for predict; a run takes {places}")
    kept = {str(k): _without_variants(v) for k, v in plain.items() if k not in OURS}
    run = RunConfig.from_dict(kept)
    return msgspec.structs.replace(run, model=derived(run.model))


def _checked(node: dict[str, Any], key: str) -> dict[str, Any]:
    """The settings of what a node builds, and of its parts, in the types of their classes."""
    parts = {k: v for k, v in node.items() if isinstance(v, dict) and "_target_" in v}
    node = node | {name: _checked(part, f"{key}.{name}") for name, part in parts.items()}
    checked: dict[str, Any] = msgspec.to_builtins(typed(node, schema_of(node["_target_"]), key))
    return checked


def _check_finite(value: Any, key: str = "") -> None:
    """Refuses a setting that is NaN or infinite: no key means anything by it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SkipbenchError(f"{key}={value}; wanted a finite number")
    parts = dict(enumerate(value)) if isinstance(value, list) else value
    for name, part in parts.items() if isinstance(parts, dict) else ():
        _check_finite(part, f"{key}.{name}".lstrip("."))


def _search_dataset(config: DictConfig, plain: Mapping[Any, Any]) -> Any:
    """Of a cell's own search; keys of the cell's dataset do not carry over to another one, so that
    all cells share the search on that.
    """
    if (on := config.search.on) is None:
        return plain["dataset"]
    with hydra_initialized():
        other = nodes_here().assemble([f"dataset={on}"])
    config = copy.deepcopy(config)
    with open_dict(config):
        config.dataset = other.dataset
    return OmegaConf.to_container(config.dataset, resolve=True)


def _without_variants(node: Any) -> Any:
    """Without the table of variants, of which the keys hold the chosen one."""
    if not isinstance(node, dict):
        return node
    return {
        k: _without_variants(v) for k, v in node.items() if k != "variants" or "prompt" not in node
    }


def run_hydra(job: Callable[[DictConfig], Any]) -> list[DictConfig]:
    """Reads `sys.argv` as Hydra does (cell, sweep, `--cfg`, `--info`, completion), and calls `job`
    per cell of a sweep. Returns a single cell, to be run after Hydra, which would print a line of
    its own about an error.
    """
    alone: list[DictConfig] = []

    def run_or_keep(config: DictConfig) -> Any:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return job(config)
        alone.append(config)
        return None

    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(run_or_keep)()
    return alone
