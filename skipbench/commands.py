"""The commands: what the command line can do beside running a cell."""

import functools
import re
from pathlib import Path
from typing import Any

from skipbench.catalogue import CONF, choices, known_hardware, known_models
from skipbench.cells import console, header, steps_shown
from skipbench.compose import calibration_of, compose, development, development_rows, instantiate, rows_of
from skipbench.errors import SkipbenchError
from skipbench.figure import figure
from skipbench.keeping import index, merge
from skipbench.submit import run_cell, status, submit
from skipbench.tables import table

KINDS = {"models": "model", "methods": "method", "datasets": "dataset", "experiments": "experiment"}


def command(name: str, arguments: list[str]) -> None:
    """Runs the command `name`.

    Raises:
        SkipbenchError: there is no such command, or it cannot do what its arguments say.
    """
    commands = {
        "table": table,
        "figure": figure,
        "submit": submit,
        "status": status,
        "cell": run_cell,
        "score": _score,
        "search": _search,
        "profile": _profile,
        "list": _list,
        "doctor": _doctor,
        "data": _data,
        "report": _report,
        "index": index,
        "merge": merge,
    }
    if name not in commands:
        raise SkipbenchError(
            f"unknown command {name!r}; commands: {', '.join(commands)}. One cell is run by overrides such as method=uniform"
        )
    commands[name](arguments)


def _score(arguments: list[str]) -> None:
    """Executes the code that runs have generated and adds the scores to their metrics."""
    from skipbench.scoring.command import score_runs

    score_runs(arguments, header, console)


def _search(arguments: list[str]) -> None:
    """Searches a skip set offline and stores it."""
    plain = compose(arguments)
    if "skip" not in plain["method"]:
        raise SkipbenchError(f"method={plain['method']['name']} has no skip set to search; use method=self-sd")
    if plain["search"]["on"] is not None:
        raise SkipbenchError(f"search.on={plain['search']['on']} is for the cells of an experiment; here use dataset=")
    calibration = calibration_of(plain)
    plain |= {"dataset": development(plain["dataset"], plain["limit"])}
    rows, shared = development_rows(plain["dataset"], plain["search"]["prompts"])
    from skipbench.bench.memory import check_memory
    from skipbench.bench.offline import search_skip_set

    tokens, context = plain["search"]["max_new_tokens"], plain["dataset"]["context"]
    check_memory(plain["model"], tokens, rows, known_models(), context)
    make_stop = functools.partial(instantiate, plain["method"]["stop"])
    best = search_skip_set(plain, rows, make_stop, console, calibration=calibration, shared=shared)
    detail = ", ".join(f"{k} {v:.3g}" for k, v in best.detail.items())
    console.print(f"best of the search: {best.skip or '(nothing skipped)'}\n{detail}", highlight=False, soft_wrap=True)


def _profile(arguments: list[str]) -> None:
    """Measures sub-layer latencies against context length and rows, keeps the model fitted to them, prints and draws it."""
    plain = compose(arguments)
    from skipbench.bench.latencies import latency_path, points_to_measure, profile, write_record
    from skipbench.bench.memory import check_memory
    from skipbench.bench.run import load_model
    from skipbench.profile.roofline import device_name
    from skipbench.report.figures.latency import latency
    from skipbench.report.figures.style import save, styled
    from skipbench.report.latencies import latency_table, title

    options = plain["profile"]
    check_memory(plain["model"], max(options["contexts"], default=0), [], known_models())
    lm, _ = load_model(plain["model"], plain["engine"], calibration_of(plain))
    contexts, steps = points_to_measure(lm, **options)
    with steps_shown(console, "profile", steps) as advance:
        record = profile(lm, contexts, options["rows"], options["repeats"], known_hardware(), advance)
    device = device_name(lm.output_device)
    path = latency_path(plain["model"], plain["engine"], device, Path(plain["results"]))
    write_record(path, record)
    text = title(record, plain["model"], plain["engine"], device)
    console.print(latency_table(record, text))
    left_out = sorted(set(options["contexts"]) - set(contexts))
    if left_out:
        console.print(f"left out, beyond the model's {lm.max_positions} positions: {', '.join(map(str, left_out))}")
    with styled():
        drawn = latency(record)
    figures = save(drawn, [], Path(plain["results"]) / "figures" / f"profile-{path.stem}", text)
    told = f"written: {path}, which method=knapspec and TPT now use; {figures[0]} and {figures[1].suffix}"
    console.print(told, highlight=False, soft_wrap=True)


def _list(arguments: list[str]) -> None:
    """Prints the choices of one kind, with the first comment of each file."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        raise SkipbenchError(f"list needs one of: {', '.join(KINDS)}")
    folder = CONF / KINDS[arguments[0]]
    names = choices(KINDS[arguments[0]])
    sizes = _sizes() if arguments[0] == "models" else {}
    for choice in names:
        comments = re.findall(r"^# (?!@)(.*)", (folder / f"{choice}.yaml").read_text(), re.M)
        text = " ".join([*comments[:1], *([sizes[choice]] if choice in sizes else [])])
        line = f"{choice:{max(16, *map(len, names))}} {text}".rstrip()
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _sizes() -> dict[str, str]:
    """Of every model whose sizes are known, what it takes, and whether it is gated or its revision open."""
    from skipbench.bench.memory import size_text

    def text(model: dict[str, Any]) -> str:
        marks = {"gated": model["gated"], "revision not pinned": model["revision"] == "main"}
        return "; ".join([size_text(model), *(mark for mark, is_so in marks.items() if is_so)])

    return {name: text(model) for name, model in known_models().items()}


def _doctor(arguments: list[str]) -> None:
    """Says what this machine can run and what is missing for more."""
    from skipbench.bench.doctor import findings

    for line in findings(Path(compose(arguments)["results"]), known_models()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _data(arguments: list[str]) -> None:
    """Fetches datasets and models into the hub's cache and checks them; later runs with HF_HUB_OFFLINE=1 use that."""
    overrides = [a for a in arguments if "=" in a]
    names = [a for a in arguments if "=" not in a]
    datasets, models = choices("dataset"), choices("model")
    unknown = [n for n in names if n not in (*datasets, *models)]
    if unknown or not names:
        raise SkipbenchError(
            f"data needs datasets or models{f', not {unknown[0]!r}' if unknown else ''}: "
            f"{', '.join(datasets)}; {', '.join(models)}"
        )
    failed = []
    for name in names:
        try:
            fetched = _fetch_model(name, overrides) if name in models else _fetch_dataset(name, overrides)
            console.print(f"ok       {name}: {fetched}", highlight=False, soft_wrap=True)
        except SkipbenchError as error:
            failed.append(name)
            console.print(f"missing  {name}: {error}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise SkipbenchError(f"not fetched: {', '.join(failed)}; the reasons stand above")


def _report(arguments: list[str]) -> None:
    """Makes one HTML page of all runs, tables and figures in the results folder."""
    from skipbench.report.page.render import write_page

    path, counts = write_page(Path(compose(arguments)["results"]))
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    console.print(f"written: {path} ({told})", markup=False, highlight=False, soft_wrap=True)


def _fetch_dataset(name: str, overrides: list[str]) -> str:
    from skipbench.data.rows import rows_hash

    plain = compose([f"dataset={name}", *(o for o in overrides if o.startswith("dataset."))])["dataset"]
    rows = rows_of(plain, None)
    return f"{len(rows)} prompts, revision {plain.get('revision', 'none')}, rows {rows_hash(rows)[:16]}"


def _fetch_model(name: str, overrides: list[str]) -> str:
    model = compose([f"model={name}", *(o for o in overrides if o.startswith("model."))])["model"]
    if "redundant" in model:
        return "made on the fly, nothing to fetch"
    from skipbench.lm.fetch import fetch

    found = fetch(model["path"], model["revision"], model["architecture"])
    return f"{found.weight_bytes / 2**30:.2f} GiB of weights, commit {found.commit or 'none'}, {found.folder}"
