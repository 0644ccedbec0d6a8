"""The schemas of `conf/`: every key with its type, checked before anything is loaded. Imports neither torch nor a model."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from skipbench.config.dataset import HubDataset, HumanEval, MiniDataset, Stream, TinyStories
from skipbench.config.hardware import Local, Slurm
from skipbench.config.method import (
    AdaptiveStop,
    Asd,
    Clasp,
    Del,
    ExplicitMethod,
    FixedMethod,
    KnapSpec,
    LayerSkip,
    Lookahead,
    Method,
    Parallel,
    PromptLookup,
    SelfSD,
    Stop,
    Swift,
)
from skipbench.config.model import HubModel, Model, PlantedModel


class EngineName(Enum):
    """How sub-layers are executed."""

    modules = "modules"
    lean = "lean"
    graphs = "graphs"


class StrategyName(Enum):
    """How an offline search chooses its next set."""

    bayes = "bayes"
    random = "random"
    greedy = "greedy"
    exhaustive = "exhaustive"


@dataclass
class Decoding:
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass
class Engine:
    name: EngineName = EngineName.lean
    threads: int = 1
    warmup: int = 2
    strict: bool = False
    spare_mib: int = 512


@dataclass
class Search:
    strategy: StrategyName = StrategyName.bayes
    iterations: int = 200
    on: str | None = None  # of an experiment's cell: the dataset to search on, where that is not the cell's own
    prompts: int = 8
    max_new_tokens: int = 64
    seed: int = 1
    init: int = 10
    ratio: float | None = None
    rounded: bool = False
    tol: float = 0.0
    start: str = ""
    protect: list[int] = field(default_factory=list)


@dataclass
class Profile:
    contexts: list[int] = field(default_factory=lambda: [64, 256, 512, 1024])
    rows: list[int] = field(default_factory=lambda: [1, 2, 5, 9, 17])
    repeats: int = 20


@dataclass
class Config:
    model: Model = MISSING
    method: Any = MISSING
    dataset: Any = MISSING
    decoding: Decoding = MISSING
    engine: Engine = MISSING
    search: Search = MISSING
    profile: Profile = field(default_factory=Profile)
    seed: int = 0
    limit: int | None = 20
    results: str = "results"
    dry_run: bool = False
    fresh: bool = False
    """Sets the old record aside, below `results/replaced`, and starts anew."""
    hardware: Any = None
    """What jobs ask a cluster for; no run depends on it."""
    published: Any = None
    """Of an experiment: how its cells are called in the paper; no run depends on it."""


SCHEMAS: dict[tuple[str | None, str], type] = {
    (None, "_config"): Config,
    ("model", "_model"): Model,
    ("model", "_hub"): HubModel,
    ("model", "_planted"): PlantedModel,
    ("stop", "_fixed"): Stop,
    ("stop", "_adaptive"): AdaptiveStop,
    ("method", "_vanilla"): Method,
    ("method", "_fixed"): FixedMethod,
    ("method", "_explicit"): ExplicitMethod,
    ("method", "_self_sd"): SelfSD,
    ("method", "_swift"): Swift,
    ("method", "_clasp"): Clasp,
    ("method", "_knapspec"): KnapSpec,
    ("method", "_layerskip"): LayerSkip,
    ("method", "_del"): Del,
    ("method", "_asd"): Asd,
    ("method", "_parallel"): Parallel,
    ("method", "_lookahead"): Lookahead,
    ("method", "_prompt_lookup"): PromptLookup,
    ("search", "_search"): Search,
    ("dataset", "_mini"): MiniDataset,
    ("dataset", "_hub"): HubDataset,
    ("dataset", "_tinystories"): TinyStories,
    ("dataset", "_stream"): Stream,
    ("dataset", "_humaneval"): HumanEval,
    ("decoding", "_decoding"): Decoding,
    ("engine", "_engine"): Engine,
    ("hardware", "_slurm"): Slurm,
    ("hardware", "_local"): Local,
}


def register() -> None:
    """Makes the schemas known to Hydra; a name with a leading underscore is a schema, not a choice."""
    store = ConfigStore.instance()
    for (group, name), node in SCHEMAS.items():
        store.store(group=group, name=name, node=node)
