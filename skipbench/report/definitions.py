"""Meaning and unit of every column, from definitions.yaml; the terminal shows `LEGEND` instead."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

_COLUMNS = msgspec.yaml.decode(
    Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, dict[str, str]]
)
LEGEND = "columns: python -m skipbench --help columns, or docs/metrics.md"
DEFINITIONS = _COLUMNS["tables"]
PAPER_DEFINITIONS = DEFINITIONS | _COLUMNS["papers"]
"""Definitions of the columns of the papers' tables."""
SCORE = "the method's score, a mean over the samples."
UNITS = {column: unit for unit, names in _COLUMNS["units"].items() for column in names.split()}
# keys whose values are skipbench's ids and stand in `names`
NAMED = ("model", "method", "dataset", "subtask")
_SETTINGS = (
    "temperature top_p max_new_tokens max_length dtype batch sparsity variant stop max_steps "
    "threshold target interval skipped_layers window search_steps tau_pruning set_from "
    "train_tokens statistic phase part"
)
KEYS = {*NAMED, *_SETTINGS.split()}

EMBEDDED_MODEL = "tiny"
STAND_INS = {EMBEDDED_MODEL: "the embedded model", "smollm2-135m": "the model"}
"""Models in place of the papers' at a smaller scale, and the name of their kind in a table."""


def definitions_for(names: Iterable[str]) -> list[tuple[str, str]]:
    """Name and sentence of those columns that have a definition, in the order of `DEFINITIONS`."""
    wanted = set(names)
    return [(name, text) for name, text in DEFINITIONS.items() if name in wanted]


def caution(models: Iterable[str], datasets: Iterable[str]) -> str | None:
    """The line under a table of the embedded model or the mini datasets; None for others."""
    mini = any(name.startswith("mini-") for name in datasets)
    parts = [f"the embedded model `{EMBEDDED_MODEL}`"] if EMBEDDED_MODEL in set(models) else []
    if not (parts := parts + (["the embedded `mini-*` datasets"] if mini else [])):
        return None
    return f"Made with {' and '.join(parts)}: these are not replications of any paper's numbers."
