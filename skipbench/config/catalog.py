"""Contents of `conf` without composition: choices, facts of models, axes of an experiment."""

import contextlib
import functools
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from omegaconf import OmegaConf

from skipbench.config import extensions
from skipbench.config.architecture import ALIASES, Shape, square
from skipbench.config.configurable import typed
from skipbench.config.hardware import Hardware
from skipbench.config.model import HubModel, Model
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError

BUILT_IN = [folder for folder in (CONF, *extensions.CONF) if folder.is_dir()]
"""The folders of choices of the package."""
BASE_60 = re.compile(r"[-+]?([1-9][\d_]*(:[0-5]?\d)+|\d[\d_]*(:[0-5]?\d)+\.[\d_]*)$")
_folders = [*BUILT_IN]
_has_auto = any((folder / "method" / "auto.yaml").exists() for folder in BUILT_IN)
DEFAULT_METHOD = "auto" if _has_auto else "prompt-lookup"
"""Of `generate`, `chat` and the Python API; that of a measured cell is in conf/config.yaml."""


class Case(msgspec.Struct, frozen=True):
    """A part of an experiment's grid, with its row of the paper's table."""

    axes: dict[str, object] = {}
    keys: dict[str, object] = {}
    reason: str | None = None
    note: str | None = None


class PaperSide(msgspec.Struct, frozen=True):
    """`published` of an experiment: `cases`, grids over the common axes, and samples' `groups`."""

    plain: list[dict[str, object]] = msgspec.field(name="cases", default_factory=list)
    groups: dict[str, str] = {}
    ranked: bool = False

    @property
    def cases(self) -> list[Case]:
        """Its cases, typed; every other entry is an axis."""
        known = Case.__struct_fields__
        axes = [{k: v for k, v in plain.items() if k not in known} for plain in self.plain]
        pairs = zip(self.plain, axes, strict=True)
        return [msgspec.convert({**plain, "axes": own}, Case) for plain, own in pairs]


class _Sized(msgspec.Struct, frozen=True):
    size: int | None = None
    variants: dict[str, "_Sized"] = {}


class _Sweeper(msgspec.Struct, frozen=True):
    params: dict[str, object]


class _Hydra(msgspec.Struct, frozen=True):
    sweeper: _Sweeper


class Experiment(msgspec.Struct, frozen=True):
    """An experiment: the grid of its cells, and what it says of the paper's table."""

    hydra: _Hydra
    published: PaperSide = PaperSide()

    @property
    def axes(self) -> dict[str, str]:
        """For every axis its values, separated by commas."""
        return {axis: str(values) for axis, values in self.hydra.sweeper.params.items()}


def add_config_folder(folder: Path) -> None:
    """Adds the choices of a folder to those of the package; raises as `check_base`."""
    check_base(folder)
    if folder not in _folders:
        _folders.append(folder)


def check_base(folder: Path) -> None:
    """Raises SkipbenchError for a file with a number like 12:00:00 without quotes, which YAML reads
    to the base 60, as 43200.
    """
    for path in sorted(folder.glob("**/*.yaml")):
        text, found = path.read_text(encoding="utf-8"), list[Any]()
        with contextlib.suppress(yaml.YAMLError):  # said where the file is used
            found = [*yaml.scan(text)] if re.search(r"\d:\d", text) else []
        for token in found:
            if getattr(token, "plain", False) and BASE_60.match(token.value):
                line = token.start_mark.line
                raise SkipbenchError(
                    f"{path}, line {line + 1}: {text.splitlines()[line].strip()}: YAML reads such "
                    f"a number to the base 60; write it in quotes, '{token.value}'"
                )


def config_folders() -> list[Path]:
    """Those of the package, and the folders that were added."""
    return list(_folders)


def with_search_path(overrides: list[str]) -> list[str]:
    """The overrides, and the added configuration folders where Hydra looks for files."""
    folders = [quoted(f"file://{folder}") for folder in _folders if folder != CONF]
    return [*overrides, f"hydra.searchpath=[{','.join(folders)}]"] if folders else overrides


def quoted(text: str) -> str:
    """A text as the value of an override, whatever is in it."""
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + text.replace("${", "\\${") + "'"


def file_of(group: str, name: str) -> Path:
    """The file of a choice; one of an added folder goes before."""
    paths = (folder / group / f"{name}.yaml" for folder in reversed(_folders))
    return next(path for path in paths if path.exists())


def row_command(*words: str, python: str = sys.executable) -> list[str]:
    """The command `runrow` for another process, with the added folders."""
    folders = (
        w for folder in _folders if folder not in BUILT_IN for w in ("--config-dir", str(folder))
    )
    return [python, "-m", "skipbench", *folders, "runrow", *words]


def target_of(path: Path) -> str | None:
    """The `_target_` of a file of a choice, if it names one."""
    line = re.search(r"^_target_:\s*(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return line and line[1]


def targets() -> set[str]:
    """Every `_target_` that a file of `conf`, or of an added folder, names."""
    files = (path for folder in _folders for path in folder.glob("*/*.yaml"))
    return {name for path in files for name in _named(path)}


@functools.cache
def _named(path: Path) -> list[str]:
    return re.findall(r"""_target_:\s*["']?([\w.]+)""", path.read_text(encoding="utf-8"))


def choices(group: str) -> list[str]:
    """The names in a group of `conf`."""
    return sorted({p.stem for folder in _folders for p in (folder / group).glob("*.yaml")})


def groups() -> set[str]:
    """The groups of choices, Hydra's own among them."""
    return {path.name for folder in _folders for path in folder.iterdir() if path.is_dir()}


def as_choices(word: str) -> list[str]:
    """Overrides that choose `word`, such as model=tiny for tiny."""
    every = ("model", "method", "dataset", "engine", "scale", "hardware")
    return [f"{group}={word}" for group in every if word in choices(group)]


def _plain(group: str, name: str) -> Any:
    """The file of a choice as plain values, interpolations as text; not to be changed."""
    return _read(file_of(group, name))


@functools.cache
def _read(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))


def model_facts(name: str) -> dict[str, Any]:
    """The keys of `conf/model/<name>.yaml`, over those of the file that its defaults name."""
    raw: Any = OmegaConf.load(file_of("model", name))
    for base in map(str, raw.pop("defaults")):
        if not base.startswith("_"):
            raw = OmegaConf.merge(model_facts(base), raw)
    facts: Any = OmegaConf.to_container(raw)
    if isinstance(facts.get("architecture"), str):
        facts["architecture"] = dict(raw.architecture)  # reading the node resolves it
    return dict(facts)


@functools.cache
def known_models() -> dict[str, Model]:
    """The models whose sizes are known, by name; slow, since every file is parsed."""
    facts = {name: model_facts(name) for name in choices("model")}
    sized = {name: found for name, found in facts.items() if found.get("architecture")}
    own = HubModel.__struct_fields__
    return {
        name: msgspec.convert({k: found[k] for k in own if k in found}, HubModel)
        for name, found in sized.items()
    }


def places() -> list[str]:
    """The choices of `hardware` on which cells can run, by their schema."""
    taken = {name: _plain("hardware", name).get("defaults", []) for name in choices("hardware")}
    return [name for name, schemas in taken.items() if {*map(str, schemas)} & {"_slurm", "_local"}]


def known_hardware() -> dict[str, Hardware]:
    """The devices whose rates are known, by name.

    Raises SkipbenchError for a file of `conf/hardware` with other keys or types.
    """
    said = {
        name: f"{file_of('hardware', name)} is not as config/hardware.py says"
        for name in sorted(set(choices("hardware")) - set(places()))
    }
    return {name: typed(_plain("hardware", name), Hardware, said[name]) for name in said}


def shape_of(name: str) -> Shape:
    """The architecture of a model in `conf/model`, of an alias, or of `LAYERSxHIDDEN`.

    Raises SkipbenchError for any other name.
    """
    if (made := square(name)) is not None:
        return made
    known = set(choices("model")) - {"path", "planted", "tiny"}
    if (full := ALIASES.get(name, name)) not in known:
        raise SkipbenchError(
            f"unknown shape {name!r}; known: {', '.join(sorted([*known, *ALIASES]))}, or "
            "LAYERSxHIDDEN as 24x256"
        )
    return Shape(**model_facts(full)["architecture"])


def sample_size(dataset: str, variant: str) -> int | None:
    """Instances that a variant of `dataset` draws; `None` if it takes all, or is no dataset."""
    if dataset not in choices("dataset"):
        return None
    facts = typed(_plain("dataset", dataset), _Sized, f"dataset={dataset}")
    return facts.variants.get(variant, facts).size or facts.size


def experiment_of(name: str) -> Experiment:
    """An experiment of `conf`. Raises SkipbenchError for a file of another form."""
    return typed(_plain("experiment", name), Experiment, f"experiment={name}")
