"""What there is in `conf`: the choices of a group, the facts of the models, the axes of an experiment. Composes nothing."""

import dataclasses
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from skipbench.config.hardware import Hardware
from skipbench.config.model import HubModel
from skipbench.errors import SkipbenchError
from skipbench.lm.shape import ALIASES, Shape, square
from skipbench.runs.provenance import PACKAGE

CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"

OmegaConf.register_new_resolver("shape", lambda name: shape_of(str(name)), replace=True)


def choices(group: str) -> list[str]:
    """The names in a group of `conf`."""
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


def model_facts(name: str) -> dict[str, Any]:
    """What `conf/model/<name>.yaml` says, with what it takes over from the file it names in its defaults."""
    raw = OmegaConf.load(CONF / "model" / f"{name}.yaml")
    assert isinstance(raw, DictConfig)
    base = next(str(d) for d in raw.pop("defaults"))
    if not base.startswith("_"):
        raw = OmegaConf.merge(model_facts(base), raw)
    facts = OmegaConf.to_container(raw)
    assert isinstance(facts, dict)
    if isinstance(facts.get("architecture"), str):
        facts["architecture"] = dict(raw.architecture)  # reading the node resolves it
    return {str(k): v for k, v in facts.items()}


def known_models() -> dict[str, dict[str, Any]]:
    """The models whose sizes are known, by name: what their files say, with the defaults of the schema."""
    found = {}
    for name in choices("model"):
        facts = {"dtype": HubModel.dtype.value, "quantization": "none", "gated": False} | model_facts(name)
        if facts.get("architecture"):
            found[name] = facts | {"architecture": dataclasses.asdict(Shape(**facts["architecture"]))}
    return found


def places() -> list[str]:
    """The choices of `hardware` on which cells can be run, whatever their files are called: by the schema that these take."""

    def takes(name: str) -> set[str]:
        raw = OmegaConf.load(CONF / "hardware" / f"{name}.yaml")
        return {str(d) for d in raw.get("defaults", [])} if isinstance(raw, DictConfig) else set()

    return [name for name in choices("hardware") if takes(name) & {"_slurm", "_local"}]


def known_hardware() -> dict[str, dict[str, Any]]:
    """The devices whose rates are known, by name: `devices`, `memory_bytes`, `bandwidth` and `flops` as in `config/hardware.py`.

    Raises:
        SkipbenchError: a file of `conf/hardware` with other keys, or values of another type.
    """
    found = {}
    for name in sorted(set(choices("hardware")) - set(places())):
        path = CONF / "hardware" / f"{name}.yaml"
        try:
            facts = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(Hardware), OmegaConf.load(path)))
        except OmegaConfBaseException as error:
            raise SkipbenchError(f"{path} is not as config/hardware.py says: {error}") from error
        assert isinstance(facts, dict)
        found[name] = {str(k): v for k, v in facts.items()}
    return found


def shape_of(name: str) -> dict[str, Any]:
    """The architecture of a model in `conf/model`, of an alias of one, or of `LAYERSxHIDDEN`.

    Raises:
        SkipbenchError: there is none of that name.
    """
    made = square(name)
    if made is not None:
        return dataclasses.asdict(made)
    known = [m for m in choices("model") if m not in ("path", "planted", "tiny")]
    found = ALIASES.get(name, name)
    if found not in known:
        raise SkipbenchError(
            f"unknown shape {name!r}; known: {', '.join(sorted([*known, *ALIASES]))}, or LAYERSxHIDDEN as 24x256"
        )
    return dataclasses.asdict(Shape(**model_facts(found)["architecture"]))


def axes(experiment: str) -> dict[str, str]:
    """The grid of an experiment: for every axis its values, separated by commas."""
    params = OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml").hydra.sweeper.params
    return {str(axis): str(values) for axis, values in params.items()}


def paper_side(experiment: str) -> dict[str, Any]:
    """What `published` of an experiment says: `cases`, each a grid over the common axes, and `groups`, the samples' groups."""
    raw = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml"))
    assert isinstance(raw, dict)
    return {str(k): v for k, v in (raw.get("published") or {}).items()}
