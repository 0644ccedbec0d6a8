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


def test_each_arm_has_prices_of_its_own_and_is_prepared_before_its_first_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All read the latency file; the host's part is that of an arm's own rounds. And of the copies
    of weights, which the shared model keeps, an arm counts those that its own drafts read.
    """
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
    words = [*SMALL, "limit=2", f"results={tmp_path}"]
    arms = [["method=auto", f"method.explore={share}"] for share in (0, 0.01)]
    arms += [["method=int8"], ["method=uniform"]]
    cells = [Cell(compose([*words, *arm])) for arm in arms]
    run_rows(cells, LOAD)
    low, other = (cell.run.measured.variant_bytes for cell in cells[2:] if cell.run)
    assert low and other is None
    assert sorted(prepared) == sorted(cell.folder.name for cell in cells)
    first, second = {id(prices): prices for prices in seen}.values()
    assert first.host != second.host and first.curves == second.curves and first.curves
    for cell in cells[:2]:
        assert cell.run is not None
        took = [arm.trace.get("setup_s") for arm in cell.run.arms]
        assert took[0] and took[0][0] > 0 and took[1] is None
