"""What there is in `conf`: the choices of a group, the facts of the models, the axes of an
experiment. Composes nothing.
"""

import dataclasses
import functools
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig, OmegaConf

from skipbench.config.architecture import ALIASES, Shape, square
from skipbench.config.hardware import Hardware
from skipbench.config.model import HubModel, Model
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError

DEFAULT_METHOD = "auto"
"""The method of `generate`, `chat` and the Python API: it needs no search and no training. The
default of a measured cell stands in conf/config.yaml.
"""
_folders = [CONF]


def add_config_folder(folder: Path) -> None:
    """Adds a folder of configuration files; its choices stand beside those of `conf`."""
    if folder not in _folders:
        _folders.append(folder)


def config_folders() -> list[Path]:
    """`conf`, and the folders that were added."""
    return list(_folders)


def with_search_path(overrides: list[str]) -> list[str]:
    """The overrides, and the added configuration folders where Hydra looks for files."""
    folders = [f"file://{folder}" for folder in config_folders() if folder != CONF]
    return [*overrides, f"hydra.searchpath=[{','.join(folders)}]"] if folders else overrides


def file_of(group: str, name: str) -> Path:
    """The file of a choice; one of an added folder goes before."""
    return next(
        p for folder in reversed(_folders) if (p := folder / group / f"{name}.yaml").exists()
    )


def cell_command(*words: str, python: str = sys.executable) -> list[str]:
    """The command `cell` for another process, which is told the added folders."""
    folders = (w for folder in _folders if folder != CONF for w in ("--config-dir", str(folder)))
    return [python, "-m", "skipbench", *folders, "cell", *words]


def target_of(path: Path) -> str | None:
    """The `_target_` of a file of a choice, if it names one."""
    found = re.search(r"^_target_:\s*(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found and found[1]


def targets() -> set[str]:
    """Every `_target_` that a file of `conf`, or of an added folder, names."""
    files = (path for folder in _folders for path in folder.glob("*/*.yaml"))
    named = re.compile(r"""_target_:\s*["']?([\w.]+)""")
    return {name for path in files for name in named.findall(path.read_text(encoding="utf-8"))}


def choices(group: str) -> list[str]:
    """The names in a group of `conf`."""
    return sorted({p.stem for folder in _folders for p in (folder / group).glob("*.yaml")})


def model_facts(name: str) -> dict[str, Any]:
    """What `conf/model/<name>.yaml` says, with what it takes over from the file it names in its
    defaults.
    """
    raw = OmegaConf.load(file_of("model", name))
    assert isinstance(raw, DictConfig)
    base = next(str(d) for d in raw.pop("defaults"))
    if not base.startswith("_"):
        raw = OmegaConf.merge(model_facts(base), raw)
    facts = OmegaConf.to_container(raw)
    assert isinstance(facts, dict)
    if isinstance(facts.get("architecture"), str):
        facts["architecture"] = dict(raw.architecture)  # reading the node resolves it
    return {str(k): v for k, v in facts.items()}


@functools.cache
def known_models() -> dict[str, Model]:
    """The models whose sizes are known, by name: what their files say, with the defaults of the
    schema.

    Slow: every file of `conf/model` is parsed. Only advice after an error, and listings, need it.
    """
    facts = {name: model_facts(name) for name in choices("model")}
    return {
        name: msgspec.convert(found, HubModel)
        for name, found in facts.items()
        if found.get("architecture")
    }


@functools.cache
def _plain(path: Path, mtime_ns: int) -> Any:
    """What a file held when it was last written; for reading only."""
    return OmegaConf.to_container(OmegaConf.load(path))


def places() -> list[str]:
    """The choices of `hardware` on which cells can be run, whatever their files are called: by the
    schema that these take.
    """

    def takes(name: str) -> set[str]:
        facts = _plain(path := file_of("hardware", name), path.stat().st_mtime_ns)
        return {str(d) for d in facts.get("defaults", [])} if isinstance(facts, dict) else set()

    return [name for name in choices("hardware") if takes(name) & {"_slurm", "_local"}]


def known_hardware() -> dict[str, Hardware]:
    """The devices whose rates are known, by name.

    Raises:
        SkipbenchError: a file of `conf/hardware` with other keys, or values of another type.
    """
    found = {}
    for name in sorted(set(choices("hardware")) - set(places())):
        path = file_of("hardware", name)
        facts = _plain(path, path.stat().st_mtime_ns)
        assert isinstance(facts, dict)
        try:
            if unknown := set(facts) - {f.name for f in dataclasses.fields(Hardware)}:
                raise msgspec.ValidationError(f"unknown key {sorted(unknown)[0]}")
            found[name] = msgspec.convert(facts, Hardware)
        except msgspec.ValidationError as error:
            raise SkipbenchError(f"{path} is not as config/hardware.py says: {error}") from error
    return found


def shape_of(name: str) -> Shape:
    """The architecture of a model in `conf/model`, of an alias of one, or of `LAYERSxHIDDEN`.

    Raises:
        SkipbenchError: there is none of that name.
    """
    made = square(name)
    if made is not None:
        return made
    known = [m for m in choices("model") if m not in ("path", "planted", "tiny")]
    found = ALIASES.get(name, name)
    if found not in known:
        raise SkipbenchError(
            f"unknown shape {name!r}; known: {', '.join(sorted([*known, *ALIASES]))}, or "
            "LAYERSxHIDDEN as 24x256"
        )
    return Shape(**model_facts(found)["architecture"])


@functools.cache
def samples_in_paper(dataset: str, paper: str) -> int | None:
    """How many instances of `dataset` a paper decodes; None where it does not say, or takes all."""
    if dataset not in choices("dataset"):
        return None
    raw = OmegaConf.to_container(OmegaConf.load(file_of("dataset", dataset)))
    assert isinstance(raw, dict)
    size = (raw.get("variants") or {}).get(paper, {}).get("size", raw.get("size"))
    return None if size is None else int(size)


def axes(experiment: str) -> dict[str, str]:
    """The grid of an experiment: for every axis its values, separated by commas."""
    params = OmegaConf.load(file_of("experiment", experiment)).hydra.sweeper.params
    return {str(axis): str(values) for axis, values in params.items()}


def paper_side(experiment: str) -> dict[str, Any]:
    """What `published` of an experiment says: `cases`, each a grid over the common axes, and
    `groups`, the samples' groups.
    """
    raw = OmegaConf.to_container(OmegaConf.load(file_of("experiment", experiment)))
    assert isinstance(raw, dict)
    return {str(k): v for k, v in (raw.get("published") or {}).items()}
