"""Nodes of cells, which Hydra composes once per process and choice."""

import copy
import functools
import shlex
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from skipbench.config import catalog
from skipbench.errors import SkipbenchError

SWAPPED = ("model", "method", "dataset", "decoding", "engine", "search", "hardware", "scale")
"""Groups that differ from cell to cell; a choice of one sets keys of no other."""


class Nodes:
    """The nodes that Hydra composed, by the choices that made them. Used within
    `hydra_initialized`.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, ...], DictConfig] = {}

    def assemble(self, overrides: Sequence[str]) -> DictConfig:
        """One cell, from these nodes; Hydra composes what is new."""
        groups = [(word, _group(word)) for word in overrides]
        chosen = {group: tuple(w for w, of in groups if of == group) for group in (*SWAPPED, "")}
        keys = {group: (group, *chosen[""], *chosen[group]) for group in SWAPPED}
        root = ("", *chosen[""])
        if root in self._nodes and self._no_other_sets(chosen[""]):
            for group, key in keys.items():
                names = [word for word in chosen[group] if word.startswith(f"{group}=")]
                if key not in self._nodes and len(names) == 1:
                    within = [word for word in chosen[group] if word not in names]
                    self._nodes[key] = self._alone(group, names[0], within)
        if root not in self._nodes or not self._nodes.keys() >= set(keys.values()):
            words = [word for word, of in groups if of is not None]
            whole = hydra.compose("config", overrides=catalog.with_search_path(words))
            with open_dict(whole):
                self._nodes |= {key: whole.pop(group) for group, key in keys.items()}
            self._nodes[root] = whole
        config = copy.deepcopy(self._nodes[root])
        with open_dict(config):
            for group, key in keys.items():
                config[group] = self._nodes[key]
        values = [word for word, of in groups if of is None]
        parser = OverridesParser.create()
        for word, parsed in zip(values, parser.parse_overrides(values), strict=True):
            if parsed.is_sweep_override():
                raise SkipbenchError(unreadable(word))
            OmegaConf.update(config, parsed.key_or_group, parsed.value(), force_add=False)
        return config

    @functools.cached_property
    def _sources(self) -> tuple[ConfigLoaderImpl, CachingConfigRepository]:
        """Hydra's reader of files and schemas, each of which it reads once."""
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        words = catalog.with_search_path([])
        return loader, loader._parse_overrides_and_create_caching_repo("config", words)[1]

    def _no_other_sets(self, words: Sequence[str]) -> bool:
        """Whether no file of these choices, or of `conf/local`, sets keys of a swapped group."""
        for word in [*words, *(f"local={name}" for name in catalog.choices("local"))]:
            loaded = self._sources[1].load_config(word.replace("=", "/"))
            if loaded is None or not isinstance(loaded.config, DictConfig):
                return False
            others = [d for d in loaded.defaults_list or () if not (d.is_self() or d.is_override())]
            if others or loaded.config.keys() & set(SWAPPED):
                return False
        return True

    def _alone(self, group: str, choice: str, within: list[str]) -> DictConfig:
        """The node of a choice without all else, Hydra's own settings among it: 8 ms, not 200."""
        loader, sources = self._sources
        defaults = create_defaults_list(
            repo=sources,
            config_name=choice.replace("=", "/"),
            overrides_list=OverridesParser.create().parse_overrides(within),
            prepend_hydra=False,
            skip_missing=False,
        ).defaults
        node: DictConfig = loader._compose_config_from_defaults_list(defaults, sources)[group]
        return node


def nodes_here() -> Nodes:
    """Those of this process and its folders; a file that changes later is not read again."""
    return _nodes(*catalog.config_folders())


@functools.cache
def _nodes(*folders: Path) -> Nodes:
    return Nodes()


def _group(word: str) -> str | None:
    """The swapped group that a choice changes; empty for another choice, `None` for a value."""
    group, _, package = word.partition("=")[0].partition("@")
    if not any((folder / group).is_dir() for folder in catalog.config_folders()):
        return None
    owner = (package or group).partition(".")[0]
    return owner if owner in SWAPPED else ""


def unreadable(override: str) -> str:
    """What to do with an override that is not one value."""
    key, _, value = override.partition("=")
    plain = value.strip("\"'").replace('"', '\\"')
    whole = shlex.quote(f'{key}="{plain}"')
    return (
        f"{override}: not one value. A value with commas, semicolons or brackets is quoted twice, "
        f"as in {whole}; several values are a sweep, with -m"
    )
