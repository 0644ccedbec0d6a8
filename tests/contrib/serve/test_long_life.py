"""A thousand prompts in one process: its memory, its objects and what `auto` carries on stay."""

import pytest

from scripts.long_life import Process

CARRIED = 1024 * (9 + 10) + 500
"""`auto`'s successors of one token and of two, 8 each with their context, and all its counters."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["generate", "serve"])
def test_a_thousand_requests_leave_a_process_as_it_was(kind: str) -> None:
    process = Process(kind)
    try:
        early, late = process.ask(0, 50), process.ask(50, 950)
    finally:
        process.end()
    assert late["tokens"] == 19 * early["tokens"]
    assert late["resident_bytes"] <= 1.05 * early["resident_bytes"]
    assert late["objects"] <= 1.02 * early["objects"]
    assert late["carried"] <= CARRIED
