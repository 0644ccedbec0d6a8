"""Prices of rows that stay from process to process, for a model in use; a run measures its own."""

import contextlib
from pathlib import Path

from skipbench.bench.latency_file import latency_path
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.profile.roofline import device_name
from skipbench.profile.rows import DRAFT_ROWS, MEASURED, keep_prices
from skipbench.runs.files import write_json
from skipbench.runs.reading import read_json

SIZES = {str(n): n for n in (0, *DRAFT_ROWS, *MEASURED)}


class StoredPrices(dict[str, dict[int, float]]):
    """Seconds by rows, by `price_key`: read from a file, which has them again at every change."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with contextlib.suppress(SkipbenchError):  # damaged: they are measured again
            for key, seconds in (read_json(path, dict[str, dict[str, float]]) or {}).items():
                if seconds and seconds.keys() <= SIZES.keys() and min(seconds.values()) > 0:
                    self.update({key: {SIZES[n]: s for n, s in seconds.items()}})

    def __setitem__(self, key: str, seconds: dict[int, float]) -> None:
        super().__setitem__(key, seconds)
        with contextlib.suppress(SkipbenchError):  # a folder that is read-only: for this process
            write_json(self._path, self)


def use_stored_prices(lm: LM, config: RunConfig) -> None:
    """Prices of these weights and this engine on this machine are those of `results/prices`."""
    device = device_name(lm.output_device)
    name = latency_path(config.model, config.engine, device, Path()).name
    keep_prices(lm, StoredPrices(Path(config.results) / "prices" / name))
