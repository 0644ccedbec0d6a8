"""All that a run can refuse before it reads a weight: shared by a run, which does it first, and by
`dry_run`, which does nothing else.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from skipbench.bench.load import Loaded, check_method, check_model
from skipbench.bench.memory import Need, check_memory, longest, memory_need
from skipbench.bench.prompts import Prompt, encode
from skipbench.config.model import Model, PlantedModel
from skipbench.config.run_config import RunConfig
from skipbench.data.rows import Row, rows_hash
from skipbench.errors import SkipbenchError
from skipbench.lm.layer import text_config
from skipbench.models.outline import positions, read_config, sized, tokenizer_here
from skipbench.runs.files import writing
from skipbench.runs.reading import check_name
from skipbench.runs.run import read_run


@dataclass(frozen=True)
class Preflight:
    """What is known of a cell before its model is loaded.

    Attributes:
        model: with the sizes of its checkpoint, where these can be told.
        rows: of the dataset.
        prompts: their token ids; `None` where the tokenizer is not on this machine yet, or the
            run itself makes them at once, as its model is loaded.
        need: bytes that the cell takes; `None` for a model of unknown size.
    """

    model: Model
    rows: list[Row]
    prompts: list[Prompt] | None
    need: Need | None

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, without the answers that later turns take in; a guess from their
        characters where there is no tokenizer.
        """
        if self.prompts is None:
            return sum(longest([row], 0, len(row.prompt)) for row in self.rows)
        return sum(len(prompt.ids) for prompt in self.prompts)


def preflight(config: RunConfig, folder: Path, loaded: Loaded | None = None) -> Preflight:
    """Checks a cell whose skip set is known.

    Args:
        loaded: the model, where it is loaded already.

    Raises:
        SkipbenchError: whatever a run of it would refuse: its path, tokenizer, device, engine,
            method, memory, dataset, prompts or results folder.
    """
    model = config.model
    # the weights alone may be too much; that is known before a dataset is fetched
    check_memory(model, config.dataset, [])
    if loaded is None:
        check_model(model, config.engine)
    check_method(model, config.method.factory())
    known = model if loaded else sized(model)
    check_memory(known, config.dataset, [])
    rows = config.dataset.rows(config.limit)
    if not config.fresh:
        check_rows(folder, rows)
    check_memory(known, config.dataset, rows)
    prompts = _prompts(known, rows, config) if loaded is None else None
    check_writable(folder)
    return Preflight(known, rows, prompts, memory_need(known, config.dataset, rows))


@dataclass(frozen=True)
class _Positions:
    """As much of a model as prompts are cut by."""

    max_positions: int


def _prompts(model: Model, rows: list[Row], config: RunConfig) -> list[Prompt] | None:
    """The prompts as the run will have them."""
    tokenizer = tokenizer_here(model)
    if tokenizer is None:
        return None
    if isinstance(model, PlantedModel):
        assert model.architecture is not None
        most = model.architecture.context
    else:
        most = positions(text_config(read_config(model.path, model.revision)))
    return encode(rows, tokenizer, _Positions(most), **config.dataset.encoding)


def check_rows(folder: Path, rows: list[Row]) -> None:
    """Raises SkipbenchError where a run is begun with other rows."""
    begun = read_run(folder).provenance.rows_sha256
    if begun is not None and begun != rows_hash(rows):
        raise SkipbenchError(
            f"the rows of the dataset have changed since {folder} was begun; put the old ones "
            "back, pin dataset.revision, or use another results folder"
        )


def check_writable(folder: Path) -> None:
    """Raises SkipbenchError where a run's folder could not be made; leaves nothing behind."""
    check_name(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with writing(there):
        try:
            with tempfile.TemporaryDirectory(dir=there, prefix=".skipbench-"):
                pass
        except OSError as error:  # without the name drawn above
            raise OSError(error.errno, error.strerror, str(there)) from error
