"""Resolvers of the configuration files."""

import dataclasses
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from skipbench.config.catalog import shape_of
from skipbench.config.paths import PACKAGE
from skipbench.config.signature import schema_of
from skipbench.errors import SkipbenchError


def register() -> None:
    """Makes the resolvers known to OmegaConf."""
    OmegaConf.register_new_resolver("package", lambda path: str(PACKAGE / path), replace=True)
    OmegaConf.register_new_resolver("basename", lambda path: Path(path).name, replace=True)
    OmegaConf.register_new_resolver(
        "shape", lambda name: dataclasses.asdict(shape_of(str(name))), replace=True
    )
    OmegaConf.register_new_resolver("variant", _variant, replace=True)
    OmegaConf.register_new_resolver("setting", _setting, replace=True)


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
