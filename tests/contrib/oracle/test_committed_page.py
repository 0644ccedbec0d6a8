"""The committed page of other programs under the oracle, made again from its record."""

from pathlib import Path

import pytest
from conftest import ROOT
from msgspec.json import decode as json_decode

from scripts import verify_peers

RESULTS = ROOT / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/oracle/*.json")), ids=lambda p: p.stem)
def test_the_page_of_other_programs_under_the_oracle_is_what_its_record_says(path: Path) -> None:
    record = json_decode(path.read_bytes(), type=verify_peers.Record)
    assert verify_peers.page(record) == path.with_suffix(".md").read_text()
    assert path.name in record.command
    for arm in record.arms.values():
        assert [v.tokens for v in arm.verdicts] == [len(output) for output in arm.outputs]
