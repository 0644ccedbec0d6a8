"""Two processes at once on one results folder, disturbed."""

from pathlib import Path

import pytest

from scripts.fault_pairs import campaign


@pytest.mark.slow
def test_two_processes_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    assert sum(campaign(tmp_path, 200, 0).values()) >= 200
