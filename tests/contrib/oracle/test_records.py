"""Records of engines: no false verdict, and `unchecked` where nothing was read or where a stated
setting chose other tokens.
"""

import json
from collections.abc import Callable

import pytest
from records import Cases, N, hugging_face, made, model, streams, vllm
from server_records import parts, servers

import skipbench as package
from skipbench.contrib.oracle.causes import Search
from skipbench.contrib.oracle.formats import FORMATS
from skipbench.contrib.oracle.outputs import from_records

KINDS = {"=": "identical", "?": "unchecked", "!": "wrong", "~": "sampled"}
TABLES: tuple[Callable[[], Cases], ...] = (hugging_face, vllm, parts, servers, streams)


@pytest.mark.parametrize("table", TABLES)
def test_no_verdict_is_false(table: Callable[[], Cases], monkeypatch: pytest.MonkeyPatch) -> None:
    """And one other word or token is seen wherever an output is identical."""
    monkeypatch.setattr(Search, "cause", lambda _: None)  # tests/oracle/test_planted.py has causes
    for name, (kinds, record) in table().items():
        records = record if isinstance(record, list) else [record]
        result = package.verify(records, model())
        found = [verdict.kind for verdict in result.verdicts]
        assert found == [KINDS[kind] for kind in kinds], (name, result.verdicts)
        assert all(v.error for v in result.verdicts if v.kind == "unchecked"), name
        assert result.failed("unchecked") == bool({*kinds} & {*"?!"}), name
        damaged = json.dumps(records).replace("stood", "fell")
        damaged = damaged.replace(f" {made(N)[0][3]},", " 7,")
        kept = package.verify(json.loads(damaged), model()).verdicts
        assert "=" not in kinds or [v.kind for v in kept] != found, name


def test_every_format_has_a_record() -> None:
    tables = (hugging_face, vllm, parts, servers)
    records = [record for table in tables for _, record in table().values()]
    seen = {from_records([("", record)])[1] for record in records}
    assert seen >= {name for name, *_ in FORMATS}
