"""Damaged outputs and bundles: read, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from malformed import Reader, faults, reader_of

from skipbench.contrib.artifact.claims import check
from skipbench.contrib.oracle.outputs import read_outputs
from skipbench.contrib.servers.published import runs_of

ASKED = {"arm": "A", "concurrency": 1, "turn": "1/0", "id": "p", "question": "p", "groups": {}}
ASKED |= {"request": {"temperature": 0.0}, "at": 1.5e9, "seconds": 1.0, "ttft_s": 0.1, "tokens": 4}
ASKED |= {"response": {"choices": [{"text": "a"}], "usage": {}}, "acceptance": {"drafted": 3}}
SERVER = {"url": "http://A", "model": "m", "engine": "e", "extra": {}, "identity": {}}
BENCH: dict[str, Any] = {
    "requests.jsonl": ASKED,
    "verdicts.jsonl": ["A", 1, "p", "identical"],
    "servers.json": {"arms": {"A": SERVER}, "names": ["a"], "machine": "m"},
    "config.json": {"dataset": {"name": "d"}, "body": {"max_tokens": 8, "temperature": 0.0}},
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
        **{f"r/servers/b/{name}": value for name, value in BENCH.items()},
    }  # fmt: skip

    def read(path: Path) -> object:
        if path.name == "outputs.jsonl":
            return read_outputs(path)
        return [*check(path.parent)] if path.parent.name == "bundle" else runs_of(path.parent)

    return {
        name: reader_of(place / name, json.dumps(value) + "\n", read)
        for name, value in values.items()
    }


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_what_a_file_holds_is_read_or_refused(each: int, readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.read()
    found = faults(readers, each)
    assert not found, "\n".join(found[:20])
