"""`Run`: one arm of a row beside its vanilla: settings, origin, turns and metrics. Read once by
`read_run`; tables, figures and commands take it.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, check_identity, engine_text
from skipbench.runs.reading import read_json, read_yaml, readable
from skipbench.runs.record import VANILLA, Arm, Texts, Turn, paired
from skipbench.runs.state import NO_STATUS, Status, read_status
from skipbench.runs.store import CONFIG, read_texts, read_turns


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The published part of a run's provenance: no name of a machine, a folder or a person."""

    commit: str | None = None
    dirty: bool | None = None
    cpu: str | None = None
    weights_sha256: str | None = None
    method_sha256: str | None = None
    package_sha256: str | None = None
    device: str | None = None
    engine: str | None = None
    engine_asked: str | None = None  # where another one ran
    date: str = ""
    torch: str | None = None
    transformers: str | None = None
    dtype: str | None = None
    sparsity: str | None = None
    calibration: str | None = None

    @property
    def engines(self) -> str | None:
        """The engine that ran, and which was asked for, if another."""
        return (
            f"{self.engine} in place of {self.engine_asked}" if self.engine_asked else self.engine
        )


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a run that a summary beside a table keeps."""

    id: str | None = None  # ROW/ARM, the names of its folders
    model: str = ""
    method: str = ""
    dataset: str = ""
    keys: dict[str, object] = {}  # its row of a paper's table, in the names of `published`
    metrics: Metrics | None = None
    reason: str | None = None
    drafted: str | None = None  # `record.drafted` of its turns
    origin: Origin = msgspec.field(name="provenance", default=Origin())
    label: str | None = None  # the overrides that differ between the points of its sweep
    rank: int | None = None
    paper_samples: int | str | None = None  # of the paper; `all` if this run decodes only some
    noise: bool = False  # vanilla against itself; no row of a paper's table
    group: dict[str, str] = {}  # group and label, for a run of part of another run's samples
    lengths: dict[str, str] = {}  # `max_new_tokens`, and `max_length` of prompt and output together
    spreads: dict[str, dict[str, float]] = {}  # by arm: deviations over the samples of a cell
    over: str = "vanilla"  # what its speedup is over


class Run(Published, frozen=True, kw_only=True, dict=True):
    """One run. A planned cell without a record is a run without metrics; `reason` says why."""

    axes: dict[str, str] = {}  # overrides of its cell in an experiment
    folder: Path | None = None
    settings: Mapping[str, object] = {}  # of its row and its own; empty without a record
    provenance: Provenance = msgspec.field(name="provenance_json", default=Provenance())
    status: Status = NO_STATUS
    kept: list[Turn] | None = None  # some of its turns; None: those of its folder

    @property
    def done(self) -> bool:
        return self.status.done

    @property
    def speedup(self) -> float | None:
        """The headline: geometric mean over questions of the speedup, prefill included."""
        return self.metrics.speedup.headline[0] if self.metrics else None

    @property
    def measured(self) -> Metrics:
        """Its metrics. Raises SkipbenchError where it is not finished."""
        if self.metrics is None:
            raise SkipbenchError(f"{self.id} is not finished; run its command again")
        return self.metrics

    def setting(self, path: str) -> Any:
        """The setting at a dotted path such as `method.stop.max_steps`; None without it."""
        node: Any = self.settings
        for key in path.split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        return node

    @property
    def arm(self) -> str:
        """Its name in the turns of its row."""
        return str(self.id).rpartition("/")[2]

    def has(self, limit: int | None) -> bool:
        """True if it has the first `limit` questions of its dataset, or all (None: all)."""
        questions, asked = len({turn.unit for turn in self.turns}), self.status.limit
        if self.status.state == "failed" or limit is None or questions <= limit:
            wanted = questions == limit or asked is None or questions < asked
            return self.done and wanted
        return True

    @property
    def base(self) -> str:
        """The arm that its speedup is over: of servers the first one."""
        return str(self.setting("base") or VANILLA)

    @cached_property
    def turns(self) -> Sequence[Turn]:
        """All its turns, by index. Raises SkipbenchError for a damaged file."""
        if self.kept is not None:
            return self.kept
        return [] if self.folder is None else read_turns(self.folder)

    @cached_property
    def sound(self) -> Sequence[Turn]:
        """Turns that did not fail, by index."""
        return [turn for turn in self.turns if turn.arms[self.arm].lossless != "failed"]

    @property
    def arms(self) -> Sequence[Arm]:
        """What it decoded in each of `sound`."""
        return [turn.arms[self.arm] for turn in self.sound]

    def paired(self, base: str = "", arm: str = "", prefill: bool = True) -> dict[str, float]:
        """How many times as fast as another arm of its turns an arm is, by question: by default
        itself over its base; `prefill`: with its seconds.
        """
        return paired(self.turns, base or self.base, arm or self.arm, prefill)

    @cached_property
    def texts(self) -> Mapping[int, Texts]:
        """Texts of its turns, by index, if any. Raises SkipbenchError for a damaged file."""
        return {} if self.folder is None else read_texts(self.folder)


def plain(run: Run) -> dict[str, object]:
    """The `Published` part of a run, as plain values."""
    published = Published(**{name: getattr(run, name) for name in Published.__struct_fields__})
    return dict(msgspec.to_builtins(published))


def read_run(folder: Path) -> Run:
    """The run in the folder of an arm; files that are missing leave their fields empty, and turns
    and texts are read at their first use. Raises SkipbenchError for a file that cannot be read or
    holds something else, and for a folder with the name of another row or arm.
    """
    settings = dict[str, Any]()
    for place in (folder.parent, folder) if (folder / CONFIG).exists() else ():
        settings |= (own := read_yaml(place / CONFIG) or {})
        check_identity(place, own)
    provenance = read_json(folder / "provenance.json", Provenance) or Provenance()
    metrics = read_json(folder / "metrics.json", Metrics)
    with readable(folder / CONFIG):
        names: dict[str, Any] = {
            kind: str(settings.get(kind, {}).get("name", ""))
            for kind in ("model", "method", "dataset")
        }
        precision = settings.get("method", {}).get("precision", "full")
        if precision not in ("full", names["method"]):
            names["method"] += f" {precision}"
        origin = _origin(provenance, settings)
        if "base" in settings:  # servers of any engine, which are compared with each other alone
            names["over"] = str(settings["over"])
            origin = msgspec.structs.replace(origin, engine=f"servers of {folder.parent.name}")
    return Run(
        id=f"{folder.parent.name}/{folder.name}",
        **names,
        metrics=metrics,
        origin=origin,
        label=provenance.label,
        folder=folder,
        settings=settings,
        provenance=provenance,
        status=read_status(folder),
    )


def _origin(provenance: Provenance, settings: Mapping[str, Any]) -> Origin:
    model, engine = settings.get("model") or {}, settings.get("engine") or {}
    named, asked = provenance.engine, engine and str(engine["name"])
    if asked and not named:
        named = engine_text(asked, bool(engine.get("strict")))
    known: dict[str, Any] = {**provenance.versions, **msgspec.structs.asdict(provenance)}
    known |= {
        "engine": named,
        "engine_asked": asked if asked and named and named.split(", ")[0] != asked else None,
        "device": provenance.device or model.get("device"),
        "dtype": model.get("dtype"),
        "date": provenance.started[:10],
    }
    if model.get("sparsity", "none") != "none":
        calibration = model.get("calibration") or {}
        rows = f"up to {calibration.get('rows')} rows of {settings['dataset']['name']}"
        each = f"{calibration.get('tokens')} tokens each at most"
        known |= {"sparsity": model["sparsity"], "calibration": f"{rows}, {each}"}
    origin: dict[str, Any] = {name: known.get(name) for name in Origin.__struct_fields__}
    return Origin(**origin)
