"""Rows and experiments with methods of ours: what arms of a shared model measure for themselves."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from test_rows import LOAD, SMALL

from skipbench.bench.arm import ArmRunner
from skipbench.config.compose import compose
from skipbench.experiments.row import run_rows
from skipbench.metrics.host import Timed
from skipbench.metrics.prices import Prices
from skipbench.runs.cell import Cell


def test_an_arm_counts_the_copies_of_weights_that_its_own_drafts_read(tmp_path: Path) -> None:
    """All arms share a model, which keeps the copies of each."""
    words = [*SMALL, "limit=1", f"results={tmp_path}"]
    cells = [Cell(compose([*words, method])) for method in ("method=int8", "method=uniform")]
    run_rows(cells)
    low, other = (cell.run.measured.variant_bytes for cell in cells if cell.run)
    assert low and other is None


def test_each_arm_has_prices_of_its_own_and_is_prepared_before_its_first_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the latency file; the host's part is that of an arm's own rounds."""
    seen, prepared = list[Prices](), list[str]()
    observe, prepare = Prices.observe, ArmRunner.prepare

    def observed(self: Prices, name: str, rounds: Sequence[Timed]) -> bool:
        seen.extend([self] * (name == "auto"))
        return observe(self, name, rounds)

    def named(self: ArmRunner) -> None:
        prepared.append(self.name)
        assert not self.turns
        prepare(self)

    monkeypatch.setattr(Prices, "observe", observed)
    monkeypatch.setattr(ArmRunner, "prepare", named)
    words = [*SMALL, "limit=2", f"results={tmp_path}", "method=auto"]
    cells = [Cell(compose([*words, f"method.explore={share}"])) for share in (0, 0.01)]
    run_rows(cells, LOAD)
    assert sorted(prepared) == sorted(cell.folder.name for cell in cells)
    first, second = {id(prices): prices for prices in seen}.values()
    assert first.host != second.host and first.curves == second.curves and first.curves
    for cell in cells:
        assert cell.run is not None
        took = [arm.trace.get("setup_s") for arm in cell.run.arms]
        assert took[0] and took[0][0] > 0 and took[1] is None
