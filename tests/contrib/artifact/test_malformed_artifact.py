"""Damaged outputs and bundles: read, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from malformed import Reader, faults, reader_of

from skipbench.contrib.artifact.claims import check, computed
from skipbench.contrib.oracle.outputs import read_outputs
from skipbench.runs.run import read_run

SECONDS = {"prefill": 0.1, "draft": 0.0, "verify": 0.0, "adapt": 0.0, "other": 0.9}
SERVED = {"at": 1.5e9, "count": 4, "text_sha256": "a", "usage": {"x": 1}, "told": {"drafted": 3}}
ARM = {"tokens": [], "rounds": [], "seconds": SECONDS, "finish": "eos", "served": SERVED}
TURN = {"index": 0, "id": "p", "prompt_hash": "", "prompt_tokens": 1, "order": ["A"]}
METHOD = {"name": "a", "url": "http://A", "model": "m", "engine": "e"}
BENCH: dict[str, Any] = {
    "config.yaml": {"base": "A", "dataset": {"name": "d"}, "decoding": {"temperature": 0.0}},
    "A/config.yaml": {"method": METHOD, "model": {"name": "m"}, "over": "a"},
    "turns.jsonl": {**TURN, "arms": {"A": ARM}, "groups": {}, "question": "", "format": 2},
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    place = tmp_path_factory.mktemp("malformed")
    values = {
        "outputs.jsonl": {
            "prompt": "a", "output": "b", "output_token_ids": [1, 2], "prompt_token_ids": [3],
        },
        "bundle/claims.json": {"claims": []},
        "bundle/SHA256SUMS": f"{'0' * 64}  claims.json",
        **{f"r/runs/b/{name}": value for name, value in BENCH.items()},
    }  # fmt: skip

    def read(path: Path) -> object:
        if path.name == "outputs.jsonl":
            return read_outputs(path)
        if path.parent.name == "bundle":
            return [*check(path.parent)]
        return computed(read_run(place / "r/runs/b/A"))

    return {
        name: reader_of(place / name, json.dumps(value) + "\n", read)
        for name, value in values.items()
    }


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_what_a_file_holds_is_read_or_refused(each: int, readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.read()
    daily = {name: of for name, of in readers.items() if not name.endswith("config.yaml")}
    found = faults(readers if each > 4 else daily, each)
    assert not found, "\n".join(found[:20])
