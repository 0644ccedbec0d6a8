"""Configuration to plain values, and plain values to parts; the only file that sees a DictConfig."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from skipbench import config as schemas
from skipbench.catalogue import CONF, shape_of
from skipbench.decode.ranges import check_decoding
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import PACKAGE
from skipbench.skipset import planted_set
from skipbench.sweep.script import gres, minutes, more, setup

# Keys of a dataset that its function does not take; `name` it takes where rows come from somebody else.
NOT_ROWS = (
    "scorer", "max_new_tokens", "truncate", "keep", "reserve", "context", "chat", "thinking", "variants", "run_limit",
)  # fmt: skip

OmegaConf.register_new_resolver("package", lambda path: str(PACKAGE / path), replace=True)
OmegaConf.register_new_resolver("basename", lambda path: Path(path).name, replace=True)


def _variant(key: str, default: Any = MISSING, *, _parent_: DictConfig) -> Any:
    """What the variant that `prompt` names says of a key, for a dataset of the papers."""
    variants = _parent_["variants"]
    if _parent_["prompt"] not in variants:
        known = ", ".join(map(str, variants))
        raise SkipbenchError(
            f"{_parent_._get_full_key('prompt')}={_parent_['prompt']}; {_parent_['name']} has: {known}"
        )
    value = variants[_parent_["prompt"]].get(key, default)
    if value == MISSING:
        raise SkipbenchError(f"variant {_parent_['prompt']} of {_parent_['name']} says nothing of {key}")
    return value


OmegaConf.register_new_resolver("variant", _variant, replace=True)
# What `conf/hydra/launcher/slurm.yaml` makes of `hardware`; without one everything is left to the cluster.
OmegaConf.register_new_resolver("sbatch_gres", lambda node: gres(node) if node else None, replace=True)
OmegaConf.register_new_resolver("sbatch_minutes", lambda time: minutes(str(time)) if time else 60, replace=True)
OmegaConf.register_new_resolver("sbatch_parallel", lambda count: count or 256, replace=True)
OmegaConf.register_new_resolver("sbatch_more", lambda node: more(node) if node else {}, replace=True)
OmegaConf.register_new_resolver("sbatch_setup", lambda node: setup(node) if node else None, replace=True)
schemas.register()


def compose(overrides: list[str]) -> dict[str, Any]:
    """The composed configuration as plain values.

    Raises:
        SkipbenchError: an unknown key, choice or command word, a value of a wrong type, a value that is missing,
            a setting of decoding out of range.
    """
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="skipbench"):
        try:
            return _plain(hydra.compose("config", overrides=overrides))
        except (
            HydraException,
            OmegaConfBaseException,
            AssertionError,
        ) as error:  # the last: a key below one that is null
            raise SkipbenchError(_explain(error, overrides)) from error


def sweep(job: Callable[[dict[str, Any]], None]) -> None:
    """Reads the command line as Hydra does (sweeps, `--cfg`, `--help`, its other flags) and calls `job` for every cell."""

    def run(cfg: DictConfig) -> None:
        job(_plain(cfg))

    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(run)()


def _plain(cfg: DictConfig) -> dict[str, Any]:
    missing = OmegaConf.missing_keys(cfg)
    if missing:
        raise SkipbenchError(f"{', '.join(sorted(missing))} must be given, as in {sorted(missing)[0]}=VALUE")
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    check_decoding(**plain["decoding"])
    plain["model"] |= _planted(plain["model"])
    return {str(k): _chosen(v) for k, v in plain.items() if k not in ("experiment", "local", "published")}


def _chosen(node: Any) -> Any:
    """Without the table of variants: what the chosen one says is in the keys, and the others name no run."""
    if not isinstance(node, dict):
        return node
    return {k: _chosen(v) for k, v in node.items() if k != "variants" or "prompt" not in node}


def _planted(model: dict[str, Any]) -> dict[str, Any]:
    """What follows from the shape of a planted model: its sizes, and the set that was planted."""
    if "redundant" not in model:
        return {}
    architecture = shape_of(model["shape"])
    skip = str(planted_set(architecture["layers"], model["redundant"], model["seed"]))
    return {"architecture": architecture, "sets": {"self-sd": skip, "self-sd-c": skip}}


def _explain(error: Exception, overrides: list[str]) -> str:
    """Hydra's message without its schema names, and for a misspelt key the keys that exist."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    text = " ".join(line for line in lines if not line.startswith(("full_key", "object_type", "reference_type", "_")))
    if "Could not override" in str(error) or "not in" in text:
        for override in sorted(
            overrides, key=lambda o: len(o.partition("=")[0]), reverse=True
        ):  # the most specific first
            key = override.partition("=")[0].lstrip("+~").partition("@")[0]
            if key and key in str(error):
                groups = [o for o in overrides if o != override and "." not in o.partition("=")[0]]
                known = _keys(groups)
                close = difflib.get_close_matches(key, known, 3)
                siblings = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]]
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                return f"unknown key {key!r}.{hint} Allowed here: {', '.join(siblings)}"
    if "LexerNoViableAlt" in text or "mismatched input" in text:
        text += " (quote a value with commas or semicolons twice, as in 'method.skip=\"attn:1,2;mlp:3\"')"
    return text


def _keys(overrides: list[str]) -> list[str]:
    try:
        cfg = OmegaConf.to_container(hydra.compose("config", overrides=overrides))
    except (HydraException, OmegaConfBaseException):
        cfg = OmegaConf.to_container(hydra.compose("config"))

    def walk(node: Any, prefix: str) -> list[str]:
        if not isinstance(node, dict) or not node:
            return [prefix]
        below = [
            k
            for name, v in node.items()
            if name != "_target_"
            for k in walk(v, f"{prefix}.{name}" if prefix else str(name))
        ]
        return ([prefix] if prefix else []) + below

    return walk(cfg, "")


def rows_of(dataset: dict[str, Any], limit: int | None, seed_offset: int = 0, key: str = "limit") -> list[Any]:
    """The rows of a dataset, all of them or the first `limit`, whose key on the command line is `key`.

    `limit` counts what the dataset's `size` counts: instances, whole conversations, or the instances of each task of a stream.

    Raises:
        SkipbenchError: `limit` is below 1, or the dataset cannot be read.
    """
    _check_limit(limit, key)
    arguments = _arguments(dataset, seed_offset)
    if limit is not None and "size" in arguments:
        arguments["size"] = limit if arguments["size"] is None else min(limit, arguments["size"])
    # Rows that Hydra hands on would come out as configurations.
    parts = {task: instantiate(part) for task, part in arguments.pop("parts", {}).items()}
    make = instantiate(arguments, _partial_=True)
    rows: list[Any] = make(parts=parts) if parts else make()
    return rows


def _check_limit(limit: int | None, key: str) -> None:
    if limit is not None and limit < 1:
        raise SkipbenchError(f"{key}={limit}; wanted 1 or more, or null for all")


def development(dataset: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """The dataset of a search for a run's skip set: the training split, which is the one that shots are drawn from.

    A dataset without one stays as it is, and its `run_limit` holds `limit` of the run, whose rows are avoided.
    """
    if "parts" in dataset:
        most = dataset["size"] if limit is None else min(limit, dataset["size"])
        return dataset | {"parts": {task: development(part, most) for task, part in dataset["parts"].items()}}
    if "shots_split" in dataset:
        path, split = dataset["shots_path"], dataset["shots_split"]
        if path != dataset["path"] if path else not dataset["path"] and split != dataset["split"]:
            return dataset | {"path": path, "split": split}
    once = {"samples_per_task": 1} if "samples_per_task" in dataset else {}
    return dataset | once | {"run_limit": limit}


def development_rows(dataset: dict[str, Any], count: int) -> tuple[list[Any], int]:
    """The prompts of a search on what `development` returned, and how many of them the run decodes too.

    Raises:
        SkipbenchError: `count` is below 1, or the dataset cannot be read.
    """
    _check_limit(count, "search.prompts")
    if "parts" in dataset:
        of_parts = [development_rows(part, count) for part in dataset["parts"].values()]
        return [row for rows, _ in of_parts for row in rows], sum(shared for _, shared in of_parts)
    if "run_limit" not in dataset:
        return rows_of(dataset, count, seed_offset=1000), 0
    run = {row.prompt for row in rows_of(dataset, dataset["run_limit"])}
    rows: list[Any] = []
    # Rows of a mini dataset are generated, so no more than needed; all only if a prompt is there twice.
    for size in (count + len(run), None):
        rows = [row for row in rows_of(dataset, size, seed_offset=1000) if row.after is None]
        rows = sorted(rows, key=lambda row: row.prompt in run)[:count]  # stable: those of the run come last
        if not any(row.prompt in run for row in rows):
            break
    return rows, sum(row.prompt in run for row in rows)


def calibration_of(plain: dict[str, Any]) -> list[Any]:
    """The rows by which a sparsified model is calibrated, drawn with a seed of their own; none for a dense one."""
    model = plain["model"]
    if model.get("sparsity", "none") == "none":
        return []
    return rows_of(plain["dataset"], model["calibration"]["rows"], seed_offset=2000, key="model.calibration.rows")


def _arguments(dataset: dict[str, Any], seed_offset: int) -> dict[str, Any]:
    left_out = NOT_ROWS if "hub" in dataset else (*NOT_ROWS, "name")
    found = {k: v for k, v in dataset.items() if k not in left_out}
    if "parts" in found:  # a stream draws nothing itself
        del found["seed"]
        found["parts"] = {task: _arguments(part, seed_offset) for task, part in found["parts"].items()}
    else:
        found["seed"] += seed_offset
    if seed_offset and "shuffle" in found:
        found["shuffle"] = True  # in the order of the file the rows would be those of the run
    return found


def method_of(method: dict[str, Any]) -> Callable[..., Any]:
    """The method without its model; stop rules are made, and their values checked, at once."""
    part: Callable[..., Any] = instantiate(method, _partial_=True)
    return part


def instantiate(node: dict[str, Any], **more: Any) -> Any:
    """Calls `_target_`; an error of the called function comes out as itself, without Hydra's wrapping."""
    try:
        return hydra.utils.instantiate(node, **more)
    except HydraException as error:
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        own = next((cause for cause in causes if isinstance(cause, SkipbenchError)), None)
        raise own or SkipbenchError(_plainly(error, causes[-1])) from error


def _plainly(error: HydraException, root: BaseException) -> str:
    """Hydra's words without its advice, and what was at the root where they hide it."""
    said = str(error).partition(", set env var HYDRA_FULL_ERROR")[0]
    return said if str(root) in str(error) else f"{said}: {type(root).__name__}: {root}"
