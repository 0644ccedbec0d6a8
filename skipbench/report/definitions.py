"""Columns of the papers' tables, from definitions.yaml, and lines below any table."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_suffix(".yaml").read_bytes()
_COLUMNS = msgspec.yaml.decode(_FILE, type=dict[str, dict[str, str]])
LEGEND = "columns: python -m skipbench --help columns, or docs/metrics.md"
OF_PAPERS = _COLUMNS["papers"]
BY_PAPER = {k.removeprefix("of_"): v for k, v in _COLUMNS.items() if k.startswith("of_")}
"""Definitions of the columns that a paper's own estimator fills, by paper."""
UNITS = {column: unit for unit, names in _COLUMNS["units"].items() for column in names.split()}
LABELS = _COLUMNS["labels"]  # label of each quantity on an axis of a figure
NAMED, _SETTINGS = (tuple(names.split()) for names in _COLUMNS["keys"].values())
KEYS = {*NAMED, *_SETTINGS}

EMBEDDED_MODEL = "tiny"


def caution(models: Iterable[str], datasets: Iterable[str]) -> list[str]:
    """The line under a table of the embedded model or the mini datasets; none for others."""
    parts = [f"the embedded model `{EMBEDDED_MODEL}`"] if EMBEDDED_MODEL in set(models) else []
    if any(name.startswith("mini-") for name in datasets):
        parts.append("the embedded `mini-*` datasets")
    text = f"Made with {' and '.join(parts)}: these are not replications of any paper's numbers."
    return [text] if parts else []
