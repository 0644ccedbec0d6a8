"""Schemas of `conf/`: every key with its type and default, checked before anything is loaded."""

# not frozen: OmegaConf makes nodes of frozen dataclasses read-only

from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from skipbench.config import dataset as datasets
from skipbench.config.catalog import groups, target_of
from skipbench.config.configurable import Positive
from skipbench.config.hardware import Local, Slurm
from skipbench.config.model import HubModel, Model, PlantedModel
from skipbench.config.signature import schema_of
from skipbench.errors import SkipbenchError

EngineName = StrEnum("EngineName", ["reference", "fused", "cuda_graphs"])
LeverName = StrEnum("LeverName", ["int8", "int4"])
Preset = StrEnum("Preset", ["tuned", "paper"])
StrategyName = StrEnum("StrategyName", ["bayes", "random"])


@dataclass
class Decoding:
    temperature: float = 0.0
    """0 decodes greedily; above 0 is speculative sampling at that temperature."""
    top_p: float = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability; 1 keeps all."""
    top_k: int = 0
    """Samples among the k most likely tokens; 0 keeps all."""


@dataclass
class Engine:
    name: EngineName = EngineName.fused
    """Hugging Face's modules (`reference`), fewer, larger calls (`fused`), or captured ones."""
    threads: int = 1
    """CPU threads of torch. One thread gives the steadiest timings."""
    warmup: int = 2
    """Prompts decoded by every arm before the clock counts."""
    strict: bool | None = False
    """A verified row gets the bits that it has alone, so that bfloat16 output is vanilla's bit for
    bit; engine `fused` or `cuda_graphs`. On a GPU `fused` pads passes to 16 rows for it, and
    `cuda_graphs` needs no padding. null: in half precision, where this machine can keep it.
    """


@dataclass
class Search:
    strategy: StrategyName = StrategyName.bayes
    """How the next set is chosen."""
    iterations: int = 200
    """Skip sets to try."""
    on: str | None = None
    """In an experiment: the dataset to search on, if not the cell's own."""
    own: bool = False
    """In an experiment: the cell searches its skip set first."""
    prompts: Positive = 8
    """Development prompts on which every set is timed."""
    max_new_tokens: int = 32
    """Tokens decoded per development prompt."""
    seed: int = 1
    """Seed of the strategy."""
    init: int = 10
    """Random sets before the first Bayesian step."""
    ratio: float | None = None
    """Share of all sub-layers to skip, 0 to 1; null lets the strategy choose any number."""
    rounded: bool = False
    """Registers the rounded point of a Bayesian step, not the raw one."""
    start: str = ""
    """The first set to try, in text form, such as attn:1,3;mlp:2."""
    protect: list[int] = field(default_factory=list)
    """Sub-layers that are never skipped: 2i is the attention of layer i, 2i + 1 its MLP."""


@dataclass
class Profile:
    contexts: list[int] = field(default_factory=lambda: [64, 256, 512, 1024])
    """Context lengths in tokens at which sub-layers are timed."""
    rows: list[int] = field(default_factory=lambda: [1, 2, 5, 9, 17])
    """Numbers of rows per pass: 1 is a draft step, more a verification."""
    repeats: int = 20
    """Timed repetitions per point."""
    levers: list[LeverName] = field(default_factory=list)
    """Prices besides, by copies of the weights."""


@dataclass
class Config:
    """The composed configuration as Hydra sees it; `RunConfig` is what the package gets."""

    model: Model = MISSING
    """The model; a choice of conf/model, or model.path=FOLDER for a checkpoint of your own."""
    method: Any = MISSING
    """The decoding method; a choice of conf/method."""
    dataset: Any = MISSING
    """The prompts and their scorer; a choice of conf/dataset."""
    decoding: Decoding = MISSING
    """Greedy decoding or sampling; a choice of conf/decoding."""
    engine: Engine = MISSING
    """How sub-layers are executed; a choice of conf/engine."""
    search: Search = MISSING
    """The offline search for a skip set; a choice of conf/search."""
    profile: Profile = field(default_factory=Profile)
    """What the command `profile` measures."""
    seed: int = 0
    """Seed of sampling and of the order of the arms."""
    limit: int | None = 20
    """Prompts per cell, in the units of dataset.size; null takes all."""
    teacher_forced: bool = False
    """Vanilla goes first, and verification accepts its tokens, whatever the target's choices are:
    KnapSpec's `--compare-strategies`. The outputs are equal by force, and count as unchecked.
    """
    results: str = "results"
    """The folder of records, tables and figures."""
    dry_run: bool = False
    """Checks the cell, and prints its model, memory, prompts and time; reads no weights."""
    fresh: bool = False
    """Sets the old record aside, below `results/replaced`, and starts anew."""
    label: str | None = None
    """In a sweep: what this cell is called; no run depends on it."""
    hardware: Any = None
    """Where jobs run; no run depends on it."""
    scale: Any = None
    """For experiments: `paper`, `embedded` or `laptop`; no run depends on it."""
    models: Any = None
    """For experiments: only these of the paper's models."""
    preset: Preset = Preset.tuned
    """Sizes of the methods that draft without passes: `tuned`, by the measured price of rows;
    `paper`, the papers'. Records hold the settings themselves.
    """
    published: Any = None
    """In an experiment: the keys of its cells in the paper's table; no run depends on it."""


SCHEMAS: dict[tuple[str | None, str], type] = {
    (None, "_config"): Config,
    ("model", "_model"): Model,
    ("model", "_hub"): HubModel,
    ("model", "_planted"): PlantedModel,
    ("search", "_search"): Search,
    ("dataset", "_mini"): datasets.MiniDataset,
    ("dataset", "_hub"): datasets.HubDataset,
    ("dataset", "_tinystories"): datasets.TinyStories,
    ("dataset", "_longtext"): datasets.LongText,
    ("dataset", "_speedbench"): datasets.SpeedBench,
    ("dataset", "_specbench"): datasets.SpecBench,
    ("dataset", "_stream"): datasets.Stream,
    ("dataset", "_humaneval"): datasets.HumanEval,
    ("dataset", "_sampled"): datasets.Sampled,
    ("dataset", "_own"): datasets.OwnPrompts,
    ("decoding", "_decoding"): Decoding,
    ("engine", "_engine"): Engine,
    ("hardware", "_slurm"): Slurm,
    ("hardware", "_local"): Local,
}
FROM_SIGNATURE = ("method", "stop")
"""Groups whose files name a `_target_`; the schema `_<file>` follows from its signature."""


def known_settings() -> set[str]:
    """The first parts of keys of a cell."""
    return {part.name for part in fields(Config)} | groups()


def register(*folders: Path) -> None:
    """Stores the schemas for Hydra, also of each method and stop rule of config folders; a leading
    underscore marks a schema, which is not a choice. Raises SkipbenchError, with file and line, for
    a target that cannot be read.
    """
    store = ConfigStore.instance()
    for (group, name), schema in SCHEMAS.items():
        store.store(group=group, name=name, node=schema)
    for group in FROM_SIGNATURE:
        for path in sorted(p for folder in folders for p in (folder / group).glob("*.yaml")):
            if (target := target_of(path)) is not None:
                try:
                    store.store(group=group, name=f"_{path.stem}", node=schema_of(target))
                except SkipbenchError as error:
                    before = path.read_text(encoding="utf-8").partition("_target_:")[0]
                    line = before.count("\n") + 1
                    raise SkipbenchError(f"{path}, line {line}: {error}") from error
