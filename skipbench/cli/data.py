"""`data`: what experiments read from elsewhere, and fetching it into the caches of this machine."""

import sys
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from skipbench.cli.commands import Data
from skipbench.cli.experiments import cells_asked
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.config.dataset import DatasetConfig
from skipbench.config.explain import did_you_mean
from skipbench.config.extensions import load as load_extension
from skipbench.config.model import Model, PlantedModel
from skipbench.console import show
from skipbench.data.rows import rows_hash
from skipbench.errors import SkipbenchError
from skipbench.experiments.inputs import Input, inputs_of
from skipbench.experiments.plan import once
from skipbench.launch.status import command_line
from skipbench.report.tables.formats import markdown_grid
from skipbench.report.values import MISSING

HEAD = ("name", "kind", "weights", "token", "here")


def run_data(asked: Data) -> None:
    """Of experiments lists the models and datasets, and with `--fetch` fetches those that are not
    here; exits with 1 while one is not. Models and datasets that are named are fetched.
    """
    datasets, models, experiments = map(choices, ("dataset", "model", "experiment"))
    known = [*datasets, *models, *experiments]
    if unknown := [name for name in asked.words if name not in known]:
        raise SkipbenchError(
            f"data needs experiments, datasets or models, not {unknown[0]!r}."
            f"{did_you_mean(unknown[0], known)} See list"
        )
    named = [name for name in asked.words if name in datasets or name in models]
    _fetch_all((name, _source(name, name in models, asked.settings)) for name in named)
    if names := [name for name in asked.words if name not in named]:
        _experiments(replace(asked, words=tuple(names)))


def _experiments(asked: Data) -> None:
    experiments = cells_asked(asked, choices("experiment"))
    cells = [cell.config for own in experiments.values() for cell in once(own)]
    inputs = inputs_of(cells)
    if asked.fetch:
        _fetch_all((one.name, source) for one in inputs if one.lacking for source in one.sources)
        inputs = inputs_of(cells)
    show(markdown_grid([HEAD, *map(_row, inputs)]))
    for one in inputs:
        if isinstance(one.source, Model) and one.lacking and one.token_missing:
            page = f"accept its licence at https://huggingface.co/{one.source.path}"
            show(f"{one.name}: {page}, then `hf auth login` (or HF_TOKEN=...)")
    lacking = [one for one in inputs if one.lacking]
    show(f"{len(inputs) - len(lacking)} of {len(inputs)} are here")
    if lacking:
        command = command_line("data", asked.words, [*asked.given, "--fetch"])
        show(f"to fetch the others: {command}")
        sys.exit(1)


def _row(one: Input) -> list[str]:
    size, token = MISSING, "no"
    if isinstance(one.source, Model):
        if shape := one.source.architecture:
            size = f"{shape.weight_bytes(one.source.dtype) / 2**30:.2f} GiB"
        if one.source.gated:
            token = "needed" + (", none here" if one.token_missing else "")
    return [one.name, one.kind, size, token, "no" if one.lacking else "yes"]


def _source(name: str, is_model: bool, settings: Sequence[str]) -> Model | DatasetConfig:
    group = "model" if is_model else "dataset"
    own = [word for word in settings if word.startswith(f"{group}.")]
    config = compose([f"{group}={name}", *own])
    return config.model if is_model else config.dataset


def _fetch_all(sources: Iterable[tuple[str, Model | DatasetConfig]]) -> None:
    """Fetches each into the cache, for runs with HF_HUB_OFFLINE=1."""
    failed = list[str]()
    for name, source in sources:
        try:
            show(f"ok       {name}: {fetched(source)}")
        except SkipbenchError as error:
            failed.append(name)
            show(f"missing  {name}: {error}")
    if failed:
        raise SkipbenchError(f"not fetched: {', '.join(failed)}; the reasons stand above")


def fetched(source: Model | DatasetConfig) -> str:
    """Fetches it, and says what is there now. Raises SkipbenchError where it cannot be."""
    if isinstance(source, Model):
        return _fetched_model(source)
    rows = source.rows(None)
    revision = source.node.get("revision") or "none"
    return f"{len(rows)} prompts, revision {revision}, rows {rows_hash(rows)[:16]}"


def _fetched_model(model: Model) -> str:
    from skipbench.models.outline import fetch  # torch

    if isinstance(model, PlantedModel):
        return "made on the fly, nothing to fetch"
    if model.FETCHED_BY:
        return str(load_extension("checkpoint", model.FETCHED_BY)(model))
    found = fetch(model.path, model.revision, model.architecture)
    size = found.size_bytes / 2**30
    return f"{size:.2f} GiB of weights, commit {found.commit or 'none'}, {found.folder}"
