"""`RunConfig`: the settings of one cell, typed and frozen. Nothing else leaves this room."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from omegaconf import MISSING

from skipbench.config.build import instantiate
from skipbench.config.configurable import (
    Decoding,
    Natural,
    Positive,
    Settings,
    Share,
    kind_of,
    kinds_of,
    typed,
)
from skipbench.config.dataset import DatasetConfig
from skipbench.config.extensions import load, registered
from skipbench.config.hardware import Local, Slurm
from skipbench.config.model import Model, PlantedModel
from skipbench.errors import SkipbenchError

OF_ROW = ("model", "dataset", "decoding", "engine", "seed")
"""Keys on which turns depend, beside the method: a row's record, whose hash is in its name."""
NODES = ("method", "dataset", "search_dataset")
"""Keys whose settings are those of what a `_target_` names."""
EngineName = Literal["reference", "fused", "cuda_graphs"]


class MethodConfig(Settings, frozen=True, forbid_unknown_fields=False):
    """A decoding method and its settings: all in `node`, and typed those used here."""

    node: Mapping[str, Any]
    """`_target_`, and the keyword arguments of what it names."""
    name: str = ""
    skip: str | None = None
    """The skip set in text form, or `stored`; `None` for a method that takes none."""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "MethodConfig":
        """Raises SkipbenchError for a value of another type."""
        return typed({**node, "node": node}, cls, "method")

    def but(self, **changes: object) -> "MethodConfig":
        """With other values of these keys."""
        return self.of({**self.node, **changes})

    @property
    def target(self) -> str:
        """Dotted path of the class that makes the method."""
        return str(self.node["_target_"])

    @property
    def draft_options(self) -> str:
        """What drafts use besides the skip set."""
        return str(self.node.get("precision", "full")).removeprefix("full")

    def factory(self) -> Callable[..., Any]:
        """The method without its model; stop rules are built, and their values checked, at once."""
        part: Callable[..., Any] = instantiate(self.node, _partial_=True)
        return part

    def make_stop(self) -> Any:
        """A stop rule in its first state. Raises SkipbenchError for a value out of bounds."""
        return instantiate(self.node["stop"])


class Engine(Settings, frozen=True):
    name: EngineName = "fused"
    """Hugging Face's modules (`reference`), fewer, larger calls (`fused`), or captured ones; left
    out, the last on a GPU, and `fused` on a CPU.
    """
    threads: Positive = 1
    """CPU threads of torch. One thread gives the steadiest timings."""
    warmup: Natural = 2
    """Prompts decoded by every arm before the clock counts."""
    strict: bool | None = False
    """A verified row gets the bits that it has alone, so that bfloat16 output is vanilla's bit for
    bit; engine `fused` or `cuda_graphs`. On a GPU `fused` pads passes to 16 rows for it, and
    `cuda_graphs` needs no padding. null: in half precision, where this machine can keep it.
    """


class Search(Settings, frozen=True):
    strategy: Literal["bayes", "random"] = "bayes"
    """How the next set is chosen."""
    iterations: Positive = 200
    """Skip sets to try."""
    on: str | None = None
    """In an experiment: the dataset to search on, if not the cell's own."""
    own: bool = False
    """In an experiment: the cell searches its skip set first."""
    prompts: Positive = 8
    """Development prompts on which every set is timed."""
    max_new_tokens: Positive = 32
    """Tokens decoded per development prompt."""
    seed: int = 1
    """Seed of the strategy."""
    init: Natural = 10
    """Random sets before the first Bayesian step."""
    ratio: Share | None = None
    """Share of all sub-layers to skip, 0 to 1; null lets the strategy choose any number."""
    rounded: bool = False
    """Registers the rounded point of a Bayesian step, not the raw one."""


class Profile(Settings, frozen=True):
    contexts: list[Positive] = msgspec.field(default_factory=lambda: [64, 256, 512, 1024])
    """Context lengths in tokens at which sub-layers are timed."""
    rows: list[Positive] = msgspec.field(default_factory=lambda: [1, 2, 5, 9, 17])
    """Numbers of rows per pass: 1 is a draft step, more a verification."""
    repeats: Positive = 20
    """Timed repetitions per point."""


class RunConfig(Settings, frozen=True):
    """One cell, model x method x dataset."""

    model: Model = MISSING
    """The model; a choice of conf/model, or model.path=FOLDER for a checkpoint of your own."""
    method: MethodConfig = MISSING
    """The decoding method; a choice of conf/method."""
    dataset: DatasetConfig = MISSING
    """The prompts and their scorer; a choice of conf/dataset."""
    decoding: Decoding = MISSING
    """Greedy decoding or sampling; a choice of conf/decoding."""
    engine: Engine = MISSING
    """How sub-layers are executed; a choice of conf/engine."""
    search: Search = MISSING
    """The offline search for a skip set; a choice of conf/search."""
    profile: Profile = Profile()
    """What the command `profile` measures."""
    seed: int = 0
    """Seed of sampling and of the order of the arms."""
    limit: Annotated[Positive | None, Meta(title="1 or more, or null for all")] = 20
    """Prompts per cell, in the units of dataset.size; null takes all."""
    teacher_forced: bool = False
    """Vanilla goes first, and verification accepts its tokens, whatever the target's choices are:
    KnapSpec's `--compare-strategies`. The outputs are equal by force, and count as unchecked.
    """
    results: Path = Path("results")
    """The folder of records, tables and figures."""
    dry_run: bool = False
    """Checks the cell, and prints its model, memory, prompts and time; reads no weights."""
    fresh: bool = False
    """Sets the old record aside, below `results/replaced`, and starts anew."""
    label: str | None = None
    """In a sweep: what this cell is called; no run depends on it."""
    hardware: Slurm | Local | None = None
    """Where jobs run; no run depends on it."""
    search_dataset: DatasetConfig | None = None
    """Of the prompts of the cell's own search, in an experiment; `None`: it has none."""

    @property
    def names(self) -> dict[str, str]:
        return {"model": self.model.name, "method": self.method.name, "dataset": self.dataset.name}

    def calibration_rows(self) -> list[Any]:
        """Rows, drawn with a seed of their own, by which a sparsified model is calibrated."""
        if self.model.sparsity == "none":
            return []
        return self.dataset.rows(self.model.calibration.rows, seed_offset=2000)

    def row_record(self) -> dict[str, object]:
        """The settings that all arms of a row share: not their number of prompts, of which smaller
        ones are the first of larger ones.
        """
        plain = self.to_dict() | {"model": self._model_record("settings", "gated")}
        more: dict[str, object] = {"teacher_forced": True} if self.teacher_forced else {}
        order = self.dataset.order(self.limit)
        more |= {"order": order} if order is not None else {}
        return {key: plain[key] for key in OF_ROW} | more

    def record(self) -> dict[str, object]:
        """The settings of a run: of its row, and its method."""
        return {**self.row_record(), "method": self.to_dict()["method"]}

    def search_record(self) -> dict[str, object]:
        """The settings that the trace of a search depends on; its drafts are chains."""
        plain = self.to_dict()
        options = {k: v for k, v in plain["search"].items() if k not in ("iterations", "on", "own")}
        parts = {key: plain[key] for key in ("method", "dataset", "engine")}
        if "tree" in plain["method"]:
            parts["method"] = {**plain["method"], "tree": []}
        return {"model": self._model_record(), **parts, "search": options}

    def _model_record(self, *left_out: str) -> Mapping[str, object]:
        """The model's settings, without those of pruning where none is done."""
        left_out += ("strict",)  # it only decides on `engine.strict`
        if self.model.sparsity == "none":
            left_out += ("sparsity", "calibration")
        kept = {*PlantedModel.__struct_fields__}.difference(left_out)  # not how it is fetched
        return {k: v for k, v in self.to_dict()["model"].items() if k in kept}

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain JSON values; `RunConfig.from_dict` reads them."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        for key in NODES:
            plain[key] = plain[key] and plain[key]["node"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "RunConfig":
        """Reads what `to_dict` made. Raises SkipbenchError for an unknown key or a wrong value."""
        models = [Model, PlantedModel, *(load("model", name) for name in registered("model"))]
        place = kind_of(plain.get("hardware") or {}, [Slurm, Local])
        model = kind_of(plain["model"], models)
        kinds = {**kinds_of(cls), "model": model, "hardware": place | None}
        if unknown := sorted(set(plain) - set(kinds)):
            known = ", ".join(sorted(kinds))
            raise SkipbenchError(f"unknown key {unknown[0]!r}. Allowed here: {known}")
        made = {key: typed(plain[key], kinds[key], key) for key in plain.keys() - {*NODES}}
        for key in plain.keys() & {*NODES}:
            of = MethodConfig.of if key == "method" else DatasetConfig.of
            node = typed(plain[key], cast(Any, dict[str, Any] | None), key)
            made[key] = node and of(node)
        return cls(**made)


class Config(RunConfig, frozen=True):
    """A cell, and the keys that choose it, which it does not have itself."""

    scale: Any = None
    """For experiments: `paper`, `embedded` or `laptop`; no run depends on it."""
    models: Any = None
    """For experiments: only these of the paper's models."""
    preset: Literal["tuned", "paper"] = "tuned"
    """Sizes of the methods that draft without passes: `tuned`, by the measured price of rows;
    `paper`, the papers'. Records hold the settings themselves.
    """
    published: Any = None
    """In an experiment: the keys of its cells in the paper's table; no run depends on it."""
