"""Damaged outputs, cards, latency files and bundles: read, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_run
from malformed import KINDS, Reader, faults, read_in_place_of, reader_of

from skipbench.contrib.artifact.cards import card_of, read_cards
from skipbench.contrib.artifact.claims import check
from skipbench.contrib.artifact.project_command import _costs
from skipbench.contrib.oracle.outputs import read_outputs
from skipbench.contrib.servers.published import runs_of
from skipbench.runs.run import read_run

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
    made = read_run(make_run(place / "results"))
    model = {"attention_s": 1e-3, "attention_s_per_token": 1e-7, "mlp_s": 1e-3, "head_s": 1e-3}
    values = {
        "card.jsonl": msgspec.json.decode(msgspec.json.encode(card_of(made, 12, {}))),
        "latency.json": {"format": 4, "model": model | {"layers": 12}},
        "outputs.jsonl": {
            "prompt": "a", "output": "b", "output_token_ids": [1, 2], "prompt_token_ids": [3],
        },
        "bundle/claims.json": {"claims": []},
        "bundle/ro-crate-metadata.json": {"@graph": [{"@id": "claims.json", "sha256": "0"}]},
        **{f"r/servers/b/{name}": value for name, value in BENCH.items()},
    }  # fmt: skip
    read = {"card.jsonl": read_cards, "latency.json": _costs, "outputs.jsonl": read_outputs}

    def checked(path: Path) -> object:
        return [*check(path.parent)] if path.parent.name == "bundle" else runs_of(path.parent)

    return {
        name: reader_of(place / name, json.dumps(value) + "\n", read.get(name, checked))
        for name, value in values.items()
    }


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_what_a_file_holds_is_read_or_refused(each: int, readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.read()
    found = faults(readers, each)
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_not_waited_for(kind: str, readers: dict[str, Reader]) -> None:
    read_in_place_of(kind, readers)
