"""The command `table`: runs what is missing of experiments, then writes their tables from the records alone."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skipbench.catalogue import choices, paper_side
from skipbench.cells import cell, checked_run, console, finish, to_score
from skipbench.compose import compose
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.grid import Cell, plan
from skipbench.metrics.drafted import drafted
from skipbench.report.features import feature_tables, feature_texts
from skipbench.report.published import paper_of
from skipbench.runs.files import write_atomic
from skipbench.runs.provenance import engine_text
from skipbench.runs.record import Sample
from skipbench.runs.store import read_samples
from skipbench.runs.terminal import Console

Run = dict[str, Any]
Asked = list[tuple[str, list[str]]]
"""Experiments, each with its overrides."""


def table(arguments: Sequence[str]) -> None:
    """Runs what is missing of one or more experiments and writes results/tables/NAME.*; `--render-only` only writes.

    A NAME.json that it wrote is rendered again, from that file alone.

    Raises:
        SkipbenchError: no such experiment, scale or key.
        SystemExit: 1, when cells failed; the tables are written, and what failed is said.
    """
    names = [a for a in arguments if "=" not in a and not a.startswith("-")]
    if names and all(name.endswith(".json") for name in names):
        for name in names:
            _again(Path(name))
        return
    features = feature_tables()
    known = sorted([*choices("experiment"), *features])
    if not names or (unknown := set(names) - set(known)):
        told = f", not {sorted(unknown)[0]!r}" if names else ""
        raise SkipbenchError(f"table needs an experiment{told}; known: {', '.join(known)}")
    if flags := [a for a in arguments if a.startswith("-") and a != "--render-only"]:
        raise SkipbenchError(f"table has no flag {flags[0]}; there is --render-only")
    own, overrides = _own([a for a in arguments if "=" in a])
    only = "--render-only" in arguments
    for name in filter(features.get, names):
        _keep(Path(_results(overrides)) / "tables" / name, feature_texts(features[name]))
    failed = [text for name in names if name not in features for text in _one(name, overrides, own, only)]
    if failed:
        complain = Console(stderr=True)
        for text in failed:
            complain.print(f"failed: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


def grid(experiment: str, words: Sequence[str]) -> list[tuple[Cell, dict[str, Any]]]:
    """Every cell of `experiment` that can be run, those that are the same once, and its configuration.

    Args:
        words: overrides, and perhaps `scale=` and `models=`.
    """
    own, overrides = _own(words)
    scale = scale_of(experiment, own.get("scale"), False)
    models = [m for m in own.get("models", "").split(",") if m]
    unique: dict[tuple[tuple[str, str], ...], Cell] = {}
    for one in plan(experiment, overrides, scale, models):
        if one.run:
            unique.setdefault(tuple(one.overrides.items()), one)
    return [(one, composed(experiment, one)) for one in unique.values()]


def scale_of(experiment: str, given: str | None, only: bool) -> str:
    """The scale that was asked for, else `paper` where there is a GPU. Without torch (`only`) its driver tells."""
    if given is not None or paper_of(experiment) is None:
        return given or "paper"
    if only:
        gpu = Path("/proc/driver/nvidia/version").exists()
    else:
        import torch

        gpu = torch.cuda.is_available()
    scale, why = ("paper", "a CUDA device is here") if gpu else ("embedded", "no CUDA device is here")
    console.print(f"scale={scale}, since {why}", highlight=False, soft_wrap=True)
    return scale


def composed(experiment: str, planned: Cell) -> dict[str, Any]:
    """The configuration of a planned cell; with a search of its own, `own_search` is the dataset that it searches on."""
    plain = compose(planned.words(experiment))
    if not planned.searches:
        return plain
    on = plain["search"]["on"]
    if on is None:
        return plain | {"own_search": plain["dataset"]}
    # Keys of the cell's dataset, such as its length, are left out, so that all cells share the search on `on`.
    rest = {k: v for k, v in planned.overrides.items() if not k.startswith("dataset.")} | {"dataset": on}
    return plain | {"own_search": compose(replace(planned, overrides=rest).words(experiment))["dataset"]}


def _own(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What the command itself takes, and the overrides."""
    own = {w.partition("=")[0]: w.partition("=")[2] for w in words if w.partition("=")[0] in ("scale", "models")}
    return own, [w for w in words if w.partition("=")[0] not in own]


def _one(name: str, overrides: list[str], own: dict[str, str], only: bool) -> list[str]:
    """One experiment. Returns what failed."""
    scale = scale_of(name, own.get("scale"), only)
    planned = plan(name, overrides, scale, [m for m in own.get("models", "").split(",") if m])
    if not planned:
        console.print(f"{name} has none of the models {own['models']}", highlight=False, soft_wrap=True)
        return []
    unique: dict[tuple[str, ...], tuple[dict[str, Any], str | None]] = {}
    failed = []
    todo = list(dict.fromkeys(tuple(c.words(name)) for c in planned if c.run))
    for one in planned:
        key = tuple(one.words(name))
        if not one.run or key in unique:
            continue
        plain, reason = composed(name, one), None
        if not only:
            console.print(
                f"{name}, cell {len(unique) + 1} of {len(todo)}: {_named(one)}", highlight=False, soft_wrap=True
            )
        try:
            _run(plain, only)
        except NotHereError as error:
            reason = str(error)
        except Exception as error:  # the next cells do not depend on it
            reason = str(error) if isinstance(error, SkipbenchError) else f"{type(error).__name__}: {error}"
            failed.append(f"{name}, {_named(one)}: {reason}")
        unique[key] = plain, reason
    if any(plain["dry_run"] for plain, _ in unique.values()):
        return failed
    # A cell that is not run may have the overrides of one that is: it is told apart by what it stands for.
    found = [unique[tuple(c.words(name))] if c.run else (None, None) for c in planned]
    runs = [run for c, (plain, why) in zip(planned, found, strict=True) for run in _entries(name, c, plain, why)]
    results = next((plain["results"] for plain, _ in unique.values()), _results(overrides))
    _write(name, runs, scale, Path(results) / "tables")
    return failed


def _run(plain: dict[str, Any], only: bool) -> None:
    """Runs a cell unless its records say that it is done, which needs neither torch nor the dataset.

    Args:
        only: only check the records that are there.
    """
    done = False
    if only or not plain["fresh"]:
        with contextlib.suppress(NotHereError):
            done = (checked_run(*finish(plain))["status"] or {}).get("state") == "done"
    if not only and (plain["dry_run"] or not done):
        cell(plain, show=False)


def _entries(experiment: str, one: Cell, plain: dict[str, Any] | None, reason: str | None) -> list[Run]:
    """What rendering is given of a cell: one run, or one for each group of samples that the experiment tells apart."""
    about = {"keys": one.keys, "stands_for": one.stands_for}
    if plain is None:
        names = {k: one.keys.get(k) or one.overrides.get(k) for k in ("model", "method", "dataset")}
        return [names | {"metrics": None, "reason": one.reason, "provenance": {}} | about]
    try:
        settings, folder = finish(plain)
    except NotHereError as error:
        names = {k: plain[k]["name"] for k in ("model", "method", "dataset")}
        return [names | {"metrics": None, "reason": reason or str(error), "provenance": {}} | about]
    run = _entry(settings, folder, reason or one.reason) | about
    groups = paper_side(experiment).get("groups", {})
    missing = {key: group for key, group in groups.items() if key not in one.keys}
    split = [r for key, group in missing.items() for r in _by_group(run, folder, key, group)]
    return split or [run]


def _by_group(run: Run, folder: Path, key: str, group: str) -> list[Run]:
    """The run once for each label of `group`, with the metrics of those samples."""
    from skipbench.metrics.summary import summarise

    layers = run["provenance"].get("layers")
    if run["metrics"] is None or layers is None:
        return []
    labelled: dict[str, list[Sample]] = {}
    for sample in read_samples(folder / "samples.jsonl"):
        if group in sample.groups:
            labelled.setdefault(sample.groups[group], []).append(sample)
    return [
        run
        | {"keys": run["keys"] | {key: label}, "drafted": drafted(samples)}
        | {"metrics": summarise(samples, layers, None, None, None)}
        for label, samples in labelled.items()
    ]


def _entry(settings: dict[str, Any], folder: Path, reason: str | None) -> Run:
    """What the table is given of one cell; `reason` says why it has no metrics."""
    from skipbench.scoring.execute import waits_for_score

    try:
        state = checked_run(settings, folder)
    except SkipbenchError as error:  # said by the command, too
        state, reason = {"provenance": None, "metrics": None}, reason or str(error)
    origin = dict(state["provenance"] or {})
    origin |= {
        "engine": origin.get("engine") or engine_text(settings["engine"]),
        "date": str(origin.get("started", ""))[:10],
        **{name: origin.get("versions", {}).get(name) for name in ("torch", "transformers")},
        "dtype": settings["model"]["dtype"],
    }
    if "sparsity" in settings["model"]:
        rows, tokens = (settings["model"]["calibration"][k] for k in ("rows", "tokens"))
        source = f"up to {rows} rows of {settings['dataset']['name']}, {tokens} tokens each at most"
        origin |= {"sparsity": settings["model"]["sparsity"], "calibration": source}
    if state["metrics"] is None:
        reason = reason or "not run yet"
    elif waits_for_score(settings["dataset"]["scorer"], state["metrics"]):
        reason = "; ".join(filter(None, (reason, to_score(folder))))
    names = {k: settings[k]["name"] for k in ("model", "method", "dataset")}
    draft = None if state["metrics"] is None else drafted(read_samples(folder / "samples.jsonl"))
    about = {"id": folder.name, "metrics": state["metrics"], "drafted": draft}
    return names | about | {"reason": reason, "provenance": origin}


def _write(name: str, runs: list[Run], scale: str, folder: Path) -> None:
    from skipbench.report.written import summary, texts

    kept = summary(name, scale, runs)
    _keep(folder / name, texts(kept) | {"json": kept})


def _again(path: Path) -> None:
    """Writes the formats of a kept summary beside it."""
    from skipbench.report.written import read_texts

    _keep(path.with_suffix(""), read_texts(path))


def _keep(path: Path, texts: dict[str, str]) -> None:
    """Writes each text to `path` with its suffix and shows the Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in texts.items():
        write_atomic(path.with_name(f"{path.name}.{suffix}"), text)
    console.print(texts["md"], markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {path}.{', .'.join(texts)}", highlight=False, soft_wrap=True)


def _named(one: Cell) -> str:
    return " ".join(f"{key}={value}" for key, value in one.overrides.items())


def _results(overrides: Sequence[str]) -> str:
    return next((o.partition("=")[2] for o in overrides if o.startswith("results=")), "results")
