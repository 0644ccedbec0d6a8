"""What is measured is not written over: scales have files of their own, and a cluster's cells are
at the scale of the papers in every command.
"""

from pathlib import Path

import pytest

from skipbench.cli.commands import COMMANDS
from skipbench.cli.experiments import cells_asked
from skipbench.cli.main import main
from skipbench.cli.parser import parse
from skipbench.config.catalog import choices

ONE = ["swift-table2", "models=llama2-13b", "method=swift", "dataset=cnndm"]


@pytest.mark.slow
def test_a_table_at_another_scale_is_another_file(tmp_path: Path) -> None:
    words = ["table", *ONE, "--render-only", f"results={tmp_path}"]
    main([*words, "scale=paper"])
    folder = tmp_path / "tables"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    main([*words, "scale=embedded"])
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "swift-table2.paper.md" in before and "swift-table2.embedded.md" in after
    assert after.items() > before.items() and len(after) == 2 * len(before)


@pytest.mark.parametrize("command", ["table", "submit", "status"])
def test_a_plan_for_a_cluster(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([command, *ONE, "hardware=slurm-a6000", "--plan", f"results={tmp_path}"])
    told = capsys.readouterr().out
    assert "swift-table2 scale=paper" in told and "a6000" in told


@pytest.mark.slow
def test_a_render_for_a_cluster_is_at_the_scale_of_the_paper(tmp_path: Path) -> None:
    main(["table", *ONE, "hardware=slurm-a100", "--render-only", f"results={tmp_path}"])
    assert (tmp_path / "tables" / "swift-table2.paper.md").exists()
    cases = [("hardware=slurm-a100", "paper"), ("hardware=slurm-a100 hardware.gpus=0", "embedded")]
    cases += [("hardware=slurm-a100 scale=laptop", "laptop")]
    cases += [("hardware=local", "embedded")]  # this machine: by its device
    for command in ("table", "figure", "submit", "status"):
        for words, scale in cases:
            asked = parse(COMMANDS[command], ["swift-figure2a", *words.split()])
            (cells,) = cells_asked(asked, choices("experiment")).values()
            assert {cell.scale for cell in cells} == {scale}
