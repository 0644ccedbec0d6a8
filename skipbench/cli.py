"""The command line, and the only file that sees a DictConfig: it composes, checks, and hands plain values on."""

import difflib
import functools
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from skipbench import config as schemas
from skipbench.errors import SkipbenchError

PACKAGE = Path(__file__).resolve().parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
KINDS = {"models": "model", "methods": "method", "datasets": "dataset", "experiments": "experiment"}
NOT_HASHED = ("results", "dry_run", "search", "profile")  # what does not change the records of a cell
NOT_ROWS = ("name", "scorer", "max_new_tokens", "truncate")  # keys of a dataset that its function does not take
console = Console()

OmegaConf.register_new_resolver("package", lambda path: str(PACKAGE / path), replace=True)
OmegaConf.register_new_resolver("basename", lambda path: Path(path).name, replace=True)
schemas.register()


def main() -> None:
    """Entry point. Exit status 0 done, 1 something failed, 2 the command was wrong, 130 interrupted."""
    argv = sys.argv[1:]
    if any(a.startswith("model.path=") for a in argv) and not any(a.startswith("model=") for a in argv):
        # A folder of one's own takes nothing else from the embedded model, its name least of all.
        argv = [*argv, "model=path"]
        sys.argv = [sys.argv[0], *argv]
    try:
        if argv and re.fullmatch(r"[a-z]+", argv[0]):
            _command(argv[0], argv[1:])
        elif any(a.startswith("-") for a in argv) or any("experiment=" in a for a in argv):
            _hydra_main(argv)
        else:
            _cell(_compose(argv))
    except SkipbenchError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; what is finished is kept, the same command goes on")
        sys.exit(130)


def _hydra_main(argv: list[str]) -> None:
    """Sweeps, `--cfg`, `--help` and the rest of Hydra's own flags."""
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_sweep_job)()


def _sweep_job(cfg: DictConfig) -> None:
    plain = _plain(cfg)
    console.rule(f"{plain['model']['name']} / {plain['method']['name']} / {plain['dataset']['name']}")
    _cell(plain)


def _compose(overrides: list[str]) -> dict[str, Any]:
    """The composed configuration as plain values.

    Raises:
        SkipbenchError: an unknown key, choice or command word, a value of a wrong type, a value that is missing.
    """
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="skipbench"):
        try:
            return _plain(hydra.compose("config", overrides=overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise SkipbenchError(_explain(error, overrides)) from error


def _plain(cfg: DictConfig) -> dict[str, Any]:
    missing = OmegaConf.missing_keys(cfg)
    if missing:
        raise SkipbenchError(f"{', '.join(sorted(missing))} must be given, as in {sorted(missing)[0]}=VALUE")
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items() if k not in ("experiment", "local")}


def _explain(error: Exception, overrides: list[str]) -> str:
    """Hydra's message without its schema names, and for a misspelt key the keys that exist."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    text = " ".join(line for line in lines if not line.startswith(("full_key", "object_type", "reference_type", "_")))
    if "Could not override" in str(error) or "not in" in text:
        for override in sorted(overrides, key=len, reverse=True):  # the most specific key first
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


# --- building the parts -----------------------------------------------------------------------------------------------


def _rows(dataset: dict[str, Any], limit: int | None, seed_offset: int = 0) -> list[Any]:
    if limit is not None and limit < 1:
        raise SkipbenchError(f"{limit=}; wanted 1 or more, or null for all")
    arguments = {k: v for k, v in dataset.items() if k not in NOT_ROWS}
    if limit is not None and "size" in arguments:
        arguments["size"] = limit if arguments["size"] is None else min(limit, arguments["size"])
    arguments["seed"] += seed_offset
    return _instantiate(arguments)  # type: ignore[no-any-return]


def _method(method: dict[str, Any]) -> Callable[..., Any]:
    """The method without its model; stop rules are made, and their values checked, at once."""
    return _instantiate(method, _partial_=True)  # type: ignore[no-any-return]


def _instantiate(node: dict[str, Any], **more: Any) -> Any:
    """Calls `_target_`; an error of the called function comes out as itself, without Hydra's wrapping."""
    try:
        return hydra.utils.instantiate(node, **more)
    except HydraException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SkipbenchError):
            cause = cause.__cause__
        raise cause or SkipbenchError(str(error)) from error


def _finish(plain: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Settings with the stored set filled in, and the run's folder, named by their hash."""
    from skipbench.bench.stored import resolve
    from skipbench.runs.provenance import config_hash, run_name

    results = Path(plain["results"])
    method = dict(plain["method"])
    if "skip" in method:
        method["skip"] = resolve(method["skip"], plain["model"], method["name"], results)
    settings = {k: v for k, v in plain.items() if k not in NOT_HASHED} | {"method": method}
    parts = [settings[k]["name"] for k in ("model", "method", "dataset")]
    return settings, results / "runs" / run_name(parts, config_hash(settings))


def _header(settings: dict[str, Any], provenance: dict[str, Any] | None) -> dict[str, str]:
    device = (provenance or {}).get("device", settings["model"]["device"])
    names = {k: settings[k]["name"] for k in ("model", "method", "dataset", "engine")}
    return {
        **names,
        "dtype": settings["model"]["dtype"],
        "device": device,
        "threads": str(settings["engine"]["threads"]),
    }


def _cell(plain: dict[str, Any], show: bool = True) -> bool:
    """Runs one cell and prints its table. Returns whether every sample is sound."""
    from skipbench.report.cell import markdown_cell, render_cell
    from skipbench.runs.store import load_run, write_atomic

    settings, folder = _finish(plain)
    make_method = _method(settings["method"])
    rows = _rows(settings["dataset"], settings["limit"])
    state = load_run(folder)
    if plain["dry_run"]:
        status = (state["status"] or {"state": "missing"})["state"]
        console.print(f"{folder}: {len(rows)} samples, {status}", highlight=False, soft_wrap=True)
        return True
    metrics = state["metrics"] if (state["status"] or {}).get("state") == "done" else None
    if metrics is None:
        from skipbench.bench.run import run

        console.print(f"{folder}", style="dim", highlight=False, soft_wrap=True)
        metrics = run(settings, folder, rows, make_method, console)
        write_atomic(folder / "table.md", markdown_cell(metrics, _header(settings, load_run(folder)["provenance"])))
    if show:
        console.print(render_cell(metrics, _header(settings, load_run(folder)["provenance"])))
    lossless = metrics["lossless"]
    if lossless["failed"]:
        raise SkipbenchError(f"{lossless['failed']} samples failed; see {folder / 'status.json'}")
    return not lossless["diverged"]


# --- commands ---------------------------------------------------------------------------------------------------------


def _command(name: str, arguments: list[str]) -> None:
    commands = {"table": _table, "search": _search, "profile": _profile, "list": _list, "doctor": _doctor}
    if name not in commands:
        raise SkipbenchError(
            f"unknown command {name!r}; commands: {', '.join(commands)}. One cell is run by overrides such as method=uniform"
        )
    commands[name](arguments)


def _choices(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


def _table(arguments: list[str]) -> None:
    """Runs what is missing of an experiment and writes its table as Markdown and CSV."""
    from skipbench.report.table import csv_table, markdown_table
    from skipbench.runs.store import load_run, write_atomic

    words = [a for a in arguments if a != "--render-only"]
    known = _choices("experiment")
    if not words or words[0] not in known:
        raise SkipbenchError(f"table needs an experiment; known: {', '.join(known)}")
    name, overrides = words[0], words[1:]
    axes = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra.sweeper.params
    given = {o.partition("=")[0] for o in overrides}
    grid = [[f"{axis}={v}" for v in str(values).split(",")] for axis, values in axes.items() if axis not in given]
    split = [
        [f"{k}={v}" for v in values.split(",")] for k, _, values in (o.partition("=") for o in overrides) if k in axes
    ]
    rest = [o for o in overrides if o.partition("=")[0] not in axes]
    cells = [_compose([f"experiment={name}", *cell, *rest]) for cell in itertools.product(*grid, *split)]
    runs = []
    for number, plain in enumerate(cells, 1):
        settings, folder = _finish(plain)
        reason = None
        if "--render-only" not in arguments:
            console.print(f"cell {number} of {len(cells)}: {folder.name}", highlight=False, soft_wrap=True)
            try:
                _cell(plain, show=False)
            except SkipbenchError as error:
                reason = str(error)
        state = load_run(folder)
        origin = dict(state["provenance"] or {})
        origin |= {
            "engine": settings["engine"]["name"],
            "date": str(origin.get("started", ""))[:10],
            "torch": origin.get("versions", {}).get("torch"),
        }
        if state["metrics"] is None:
            reason = reason or "not run yet"
        runs.append(
            {k: settings[k]["name"] for k in ("model", "method", "dataset")}
            | {"metrics": state["metrics"], "reason": reason, "provenance": origin}
        )
    if cells[0]["dry_run"]:
        return
    folder = Path(cells[0]["results"]) / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown_table(f"Experiment {name}", runs)
    write_atomic(folder / f"{name}.md", text)
    write_atomic(folder / f"{name}.csv", csv_table(runs))
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {folder / name}.md and .csv", highlight=False, soft_wrap=True)


def _search(arguments: list[str]) -> None:
    """Searches a skip set offline and stores it."""
    plain = _compose(arguments)
    if "skip" not in plain["method"]:
        raise SkipbenchError(f"method={plain['method']['name']} has no skip set to search; use method=self-sd")
    # Development prompts come from another seed of the generator, or from behind a file's first rows.
    rows = _rows(plain["dataset"], plain["search"]["prompts"], seed_offset=1000)
    from skipbench.bench.offline import search_skip_set

    make_stop = functools.partial(_instantiate, plain["method"]["stop"])
    best = search_skip_set(plain, rows, make_stop, console)
    detail = ", ".join(f"{k} {v:.3g}" for k, v in best.detail.items())
    console.print(f"best of the search: {best.skip or '(nothing skipped)'}\n{detail}", highlight=False, soft_wrap=True)


def _profile(arguments: list[str]) -> None:
    """Prints sub-layer latencies against context length and rows, and the roofline."""
    plain = _compose(arguments)
    from skipbench.bench.latencies import latency_table
    from skipbench.bench.run import load_model

    lm, _ = load_model(plain["model"], plain["engine"])
    console.print(latency_table(lm, plain["model"]["name"], **plain["profile"]))


def _list(arguments: list[str]) -> None:
    """Prints the choices of one kind, with the first comment of each file."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        raise SkipbenchError(f"list needs one of: {', '.join(KINDS)}")
    folder = CONF / KINDS[arguments[0]]
    for choice in _choices(KINDS[arguments[0]]):
        comments = re.findall(r"^# (?!@)(.*)", (folder / f"{choice}.yaml").read_text(), re.M)
        console.print(
            f"{choice:16} {comments[0] if comments else ''}".rstrip(), markup=False, highlight=False, soft_wrap=True
        )


def _doctor(arguments: list[str]) -> None:
    """Says what this machine can run and what is missing for more."""
    from skipbench.bench.doctor import findings

    for line in findings(Path(_compose(arguments)["results"])):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
