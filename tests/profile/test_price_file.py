"""Prices of rows that a model in use keeps: for the next process, and timed again by its rounds."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

import skipbench
from skipbench.language_model import LanguageModel
from skipbench.metrics import prices
from skipbench.metrics.prices import Prices, price_key
from skipbench.profile import rows

STORY = "Once upon a time there was a dog. Once upon a time there was"


@pytest.mark.parametrize(
    ("rounds", "then"),
    [
        ([(1, 1.0)] * 8 + [(16, 4.0)] * 8, {1: 1.0, 4: 2**0.5, 16: 2.0, 32: 2.0}),
        (
            [(1, 2.0)] * 8 + [(15, 8.0)] * 7 + [(17, 8.0)],
            {1: 2**0.5, 4: 2.0, 16: 8**0.5, 32: 8**0.5},
        ),
        ([(1, 1.0)] * 8 + [(16, 4.0)] * 7, dict.fromkeys((1, 4, 16, 32), 1.0)),  # too few
        ([(16, 4.0)] * 99, dict.fromkeys((1, 4, 16, 32), 1.0)),  # a ratio has two sides
        ([(1, 1.0)] * 8 + [(0, 4.0), (99, 4.0)] * 8, dict.fromkeys((1, 4, 16, 32), 1.0)),
    ],
)
def test_prices_follow_the_rounds(rounds: list[tuple[int, float]], then: dict[int, float]) -> None:
    known = Prices(passes={"0+": dict.fromkeys((1, 4, 16, 32), 1.0)})
    rows, seconds = zip(*rounds, strict=True)
    for first, last in ((300, 400), (9, 300)):  # a length that nobody has measured, and two classes
        known.observe(first, last, rows, seconds)
    assert known.passes == {"0+": dict.fromkeys((1, 4, 16, 32), 1.0)}
    known.observe(9, 99, rows, seconds)
    assert known.passes == {"0+": pytest.approx(then)}


def test_a_length_has_its_prices() -> None:
    assert [price_key(n) for n in (1, 255, 256, 1023, 1024)] == [
        "0+",
        "0+",
        "256+",
        "256+",
        "1024+",
    ]


def test_the_next_process_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = list[int](), rows.verification_seconds
    monkeypatch.setattr(prices, "ENOUGH", 1)
    monkeypatch.setattr(rows, "verification_seconds", lambda *a: measured.append(1) or measure(*a))

    def loaded(*more: str) -> LanguageModel:  # other weights in memory, as in another process
        words = [f"results={tmp_path}", "method.explore=0", *more]
        return skipbench.load("tiny", "auto", overrides=words)

    text = loaded().generate(STORY, 24).text
    (path,) = (tmp_path / "latency").iterdir()
    record = json.loads(path.read_text())
    first, older = record.pop("passes"), tmp_path / "prices" / path.name
    lm = loaded()
    assert lm.lm.prices.builtins()["passes"] == {
        key: {int(n): s for n, s in of.items()} for key, of in first.items()
    }
    assert lm.generate(STORY, 24).text == text and len(measured) == 1
    free = dict.fromkeys(first["0+"], 1.0)  # rows for nothing: trees of every size
    path.write_text(json.dumps(record))
    older.parent.mkdir()
    older.write_text(json.dumps({"0+": free}))
    assert loaded().generate(STORY, 24).text == text and len(measured) == 1
    kept = json.loads(path.read_text())
    assert max(kept["passes"]["0+"].values()) < 1, "its rounds say nothing"
    assert kept == record | {"passes": kept["passes"]}, "its latencies are lost"
    path.write_text(json.dumps(record))
    older.write_text('{"0+": {"1": 0, "2": 1}}')
    assert loaded().lm.prices.passes == {} == loaded("model.dtype=bfloat16").lm.prices.passes


def test_a_busy_moment_does_not_decide_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that slows a whole turn, nor one that falls on one call; the first turn counts
    for nothing.
    """
    turns, second = [9.0, 1.9, 1.0, 1.6, 3.0, 1.2], [7.0, 2.0, 3.0, 5.0, 2.0, 2.0]
    times = {1: iter(turns), 2: iter(a * b for a, b in zip(turns, second, strict=True))}
    monkeypatch.setattr(rows, "timed", lambda call, _: call())
    calls = {n: partial(next, of_call) for n, of_call in times.items()}
    assert rows.paired_seconds(calls, torch.device("cpu"), 5) == {1: 1.0, 2: 2.0}
    assert rows.paired_seconds({1: iter([5.0, 3.0]).__next__}, torch.device("cpu"), 1) == {1: 3.0}
