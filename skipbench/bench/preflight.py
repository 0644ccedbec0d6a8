"""The checks of a run before it reads a weight; `dry_run` makes them and nothing else."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from skipbench.bench.load import check_method, check_model
from skipbench.bench.memory import Need, check_memory, longest
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
    """A cell before its model is loaded."""

    model: Model  # with the sizes of its checkpoint, where they are known
    rows: list[Row]
    prompts: list[Prompt] | None
    """None where the tokenizer is not on this machine yet, or the model is loaded already."""
    need: Need | None  # None for a model of unknown size

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, without later answers; estimated where there is no tokenizer."""
        if self.prompts is None:
            return sum(longest([row], 0, len(row.prompt)) for row in self.rows)
        return sum(len(prompt.ids) for prompt in self.prompts)


def preflight(config: RunConfig, folder: Path, held: bool = False) -> Preflight:
    """Checks a cell whose skip set is known, and whose model may be `held`, loaded already. Raises
    SkipbenchError for whatever a run of it would refuse: its path, tokenizer, device, engine,
    method, memory, dataset, prompts or results folder.
    """
    model = config.model
    # the weights alone may be too much; that is known before a dataset is fetched
    check_memory(model, config.dataset, [])
    if not held:
        check_model(model, config.engine)
    check_method(model, config.method.factory())
    model = model if held else sized(model)
    check_memory(model, config.dataset, [])
    rows = config.dataset.rows(config.limit)
    begun = None if config.fresh else read_run(folder).provenance.rows_sha256
    if begun is not None and begun != rows_hash(rows):
        advice = "put the old ones back, pin dataset.revision, or use another results folder"
        changed = f"the rows of the dataset have changed since {folder} was begun"
        raise SkipbenchError(f"{changed}; {advice}")
    need, prompts = check_memory(model, config.dataset, rows), None
    if not held and (tokenizer := tokenizer_here(model)) is not None:
        if isinstance(model, PlantedModel) and model.architecture is not None:
            context = model.architecture.context
        else:
            context = positions(text_config(read_config(model.path, model.revision)))
        prompts = encode(rows, tokenizer, context, **config.dataset.encoding)
    check_name(folder)  # the folder could be made, and nothing is left behind
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with writing(there):
        try:
            tempfile.TemporaryDirectory(dir=there, prefix=".skipbench-").cleanup()
        except OSError as error:  # without the name drawn above
            raise OSError(error.errno, error.strerror, str(there)) from error
    return Preflight(model, rows, prompts, need)
