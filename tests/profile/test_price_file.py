"""Passes by rows: measured once, and kept for the next process."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from conftest import random_lm

import skipbench
from skipbench.decode import priced
from skipbench.language_model import LanguageModel
from skipbench.metrics import host
from skipbench.metrics.lines import curve
from skipbench.metrics.prices import price_key
from skipbench.profile import clock

STORY = "Once upon a time there was a dog. Once upon a time there was"


def test_a_length_has_its_prices() -> None:
    found = [price_key(n) for n in (1, 255, 256, 1023, 1024)]
    assert found == ["0+", "0+", "256+", "256+", "1024+"]


def test_prices_never_fall_and_reach_every_row() -> None:
    found = curve({1: 2.0, 2: 1.9, 4: 3.0, 8: 2.9}, 12)
    assert found[:5] == [0.0, 1.0, 1.0, 1.25, 1.5] and len(found) == 13
    assert found == sorted(found) and found[12] > found[8]
    lm = random_lm("llama", "fused")
    lm.prefill([1, 2, 3])
    assert list(priced.verification_seconds(lm, (1, 4, 10_000), repeats=1)) == [1, 4]


def test_the_next_process_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = list[int](), priced.verification_seconds
    monkeypatch.setattr(host, "ENOUGH", 2)
    monkeypatch.setattr(
        priced, "verification_seconds", lambda *a: measured.append(1) or measure(*a)
    )

    def loaded(*more: str) -> LanguageModel:  # other weights in memory, as in another process
        return skipbench.load("tiny", "recycling", overrides=[f"results={tmp_path}", *more])

    text = loaded().generate(STORY, 24).text
    (path,) = (tmp_path / "latency").iterdir()
    record = json.loads(path.read_text())
    first = {int(n): seconds for n, seconds in record.pop("passes")["0+"].items()}
    beside = record.pop("host")["recycling"]  # older files have none
    lm = loaded()
    assert lm.lm.prices.passes == {"0+": first}
    assert msgspec.to_builtins(lm.lm.prices.host_of("recycling")) == beside
    assert beside["round_s"] > 0
    assert lm.generate(STORY, 24).text == text and len(measured) == 1


def test_a_busy_moment_does_not_decide_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that slows a whole turn, nor one that falls on one call; the first turn counts
    for nothing.
    """
    turns, second = [9.0, 1.9, 1.0, 1.6, 3.0, 1.2], [7.0, 2.0, 3.0, 5.0, 2.0, 2.0]
    times = {1: iter(turns), 2: iter(a * b for a, b in zip(turns, second, strict=True))}
    monkeypatch.setattr(clock, "timed", lambda call, _: call())
    calls = {n: partial(next, of_call) for n, of_call in times.items()}
    assert priced.paired_seconds(calls, torch.device("cpu"), 5) == {1: 1.0, 2: 2.0}
    assert priced.paired_seconds({1: iter([5.0, 3.0]).__next__}, torch.device("cpu"), 1) == {1: 3.0}
