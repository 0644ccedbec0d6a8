"""The profile: rooflines by device, the fitted latency model, what is stored, and who
uses it.
"""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from conftest import here, nothing_lost, random_lm, shallow

import skipbench
from skipbench.cli.main import dispatch
from skipbench.config.catalog import known_hardware
from skipbench.config.compose import compose
from skipbench.config.hardware import Hardware
from skipbench.draft_plan import DraftPlan
from skipbench.experiments.row import run_cell
from skipbench.language_model import LanguageModel
from skipbench.lm.model import LM
from skipbench.metrics.host import Host
from skipbench.metrics.prices import FORMAT, Curve, Latencies, Point, Prices, Roofline
from skipbench.profile import latency, rows
from skipbench.profile.latency import (
    fit,
    measured,
    part_bytes,
    part_times,
)
from skipbench.profile.roofline import match, roofline
from skipbench.profile.rows import paired_ratios, verification_curve

SMALL = ["profile.contexts=[16,32,5000]", "profile.rows=[1,3]", "profile.repeats=4"]
CPU = torch.device("cpu")
NOT_KNOWN = [
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb",  # a part of a GPU has a part of its bandwidth
    "NVIDIA H100 PCIe",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA GH200 480GB",
    "",
]


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800-80gb"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200"),
        ("cpu", "cpu"),
        *((called, None) for called in NOT_KNOWN),
    ],
)
def test_a_device_is_known_by_its_whole_name(called: str, name: str | None) -> None:
    assert match(called, known_hardware()) == name


def test_what_no_datasheet_says_is_measured() -> None:
    known = {"here": Hardware(["cpu"], bandwidth=123.0, flops={"float32": 456.0})}
    found = roofline(CPU, torch.float32, 1 << 20, known)
    assert found == Roofline("here", 123.0, 456.0, "datasheet")
    half = roofline(CPU, torch.bfloat16, 1 << 20, known)
    assert half.bandwidth == 123.0 and half.flops > 1e6 and half.source == "measured"
    found = roofline(CPU, torch.float32, 1 << 20, known_hardware())
    assert found.name == "cpu" and found.source == "measured" and found.bandwidth > 1e6


def test_a_pass_is_bound_by_memory_or_by_arithmetic() -> None:
    rates = Roofline("x", bandwidth=100.0, flops=1000.0, source="measured")
    sizes = {"attention": 40, "mlp": 60, "head": 100, "row": 2, "number": 2}
    least = Prices.least(rates, sizes, layers=3)
    read = 3 * (40 + 60 + 9 * 2) + 100
    assert least.pass_s(1, 9) == pytest.approx(read / 100)
    # 20 rows: 2 operations per row and number, of 2 bytes
    assert least.pass_s(20, 9) == pytest.approx(2 * 20 * read / 2 / 1000)


def attention_points(times: dict[int, float]) -> list[Point]:
    """Of one row by context, of a model of 4 layers."""
    return [Point(n, 1, t, 3.0, 1.0, 4 * (t + 3.0) + 1.0) for n, t in times.items()]


def test_a_line_is_fitted() -> None:
    exact = attention_points({n: 2.0 + 0.5 * n for n in (10, 20, 40)})
    model = fit(exact, layers=4)
    assert model == Latencies(pytest.approx(2.0), pytest.approx(0.5), 3.0, 1.0, 4)  # type: ignore[arg-type]  # approx compares as a number
    assert Prices(model=model).pass_s(1, 10) == pytest.approx(exact[0].whole_s)
    falling = attention_points({n: 100.0 - n for n in (10, 20, 40)})
    assert fit(falling, 4) == Latencies(80.0, 0.0, 3.0, 1.0, 4)


def test_a_rising_line_is_kept_where_its_intercept_is_not_positive() -> None:
    def fitted(times: dict[int, float]) -> list[float]:
        prices = Prices(model=fit(attention_points(times), 4))
        return [prices.part_s("attention", context) for context in (1, 3000, 9000)]

    # Attention of 12 layers, 256 wide, in ms; the last point 12 % high puts an ordinary line below
    # 0 at no context.
    first, _, last = fitted({1: 0.56, 3000: 10.1, 6000: 20.2, 9000: 31.5 * 1.12})
    assert first == pytest.approx(0.56, rel=0.01) and last == pytest.approx(31.5, rel=0.1)
    first, middle, last = fitted({1: 0.05, 3000: 1.0, 6000: 3.0, 9000: 5.0})
    assert 0 < first < 0.06 < 0.7 < middle < last
    # Steeper than in proportion to the context: the best line through 0, sum(n / t) / sum((n /
    # t)^2) = (2 + 1) / (4 + 1).
    steep = fit(attention_points({2: 1.0, 4: 4.0}), 4)
    assert steep == Latencies(0.0, pytest.approx(0.6), 3.0, 1.0, 4)  # type: ignore[arg-type]  # approx compares as a number


def test_a_point_is_the_lower_quartile() -> None:
    times = {part: [9.0, 1.0, 2.0, 8.0, 7.0] for part in ("attention", "mlp", "head", "whole")}
    assert Point.of(7, 3, times) == Point(7, 3, 2.0, 2.0, 2.0, 2.0)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_parts_are_timed_in_every_family(family: str) -> None:
    lm = random_lm(family, "fused")
    times = part_times(lm, 12, 3, 2)
    counts = {part: len(found) for part, found in times.items()}
    assert counts == dict.fromkeys(("attention", "mlp", "head", "whole"), 2)
    assert min(t for found in times.values() for t in found) > 0
    sizes = part_bytes(lm)
    assert lm.layers * (sizes["attention"] + sizes["mlp"]) + sizes["head"] == lm.weight_bytes
    assert lm.layers * sizes["row"] * lm.cache.capacity == lm.cache.bytes


@pytest.mark.parametrize("variant", here(["int8"]))
def test_a_variant_is_priced_where_it_is_asked_for(variant: str, tmp_path: Path) -> None:
    lm = random_lm("llama", "fused")
    before = measured(lm, path := tmp_path / "latency.json")
    assert before.model and not before.model.variants
    low = measured(lm, path, {variant})
    assert low.model and {*low.model.variants} == {variant} and measured(lm, path) == low
    assert low.model == msgspec.structs.replace(before.model, variants=low.model.variants)


@pytest.mark.slow
def test_a_profile_is_kept_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["profile", *SMALL, f"results={tmp_path}"])
    text, aside = capsys.readouterr()
    assert "5000" in aside and "roofline (cpu, measured)" in text
    (path,) = tmp_path.glob("latency/*.json")
    record = json.loads(path.read_text())
    assert record["format"] == FORMAT
    assert {c["context"] for c in record["curves"]} == {16}  # 32 leaves no space for 32 rows
    places = [(p["context"], p["rows"]) for p in record["points"]]
    assert places == [(16, 1), (16, 3), (32, 1), (32, 3)]
    assert not list(tmp_path.rglob(".*"))

    msgspec.json.decode(path.read_bytes(), type=Prices)
    record["model"] |= {"attention_s": 1.0, "attention_s_per_token": 0.0}
    record["model"] |= {"mlp_s": 1.0, "head_s": 0.0}
    record["points"][-1]["context"] = 4000
    path.write_text(json.dumps(record))
    words = ["limit=1", "dataset.max_new_tokens=12", "engine.warmup=0", f"results={tmp_path}"]
    assert nothing_lost(run_cell(compose([*words, "method=uniform"]), print_table=False))
    (metrics,) = [json.loads(p.read_text()) for p in tmp_path.glob("runs/*/*/metrics.json")]
    assert metrics["tpt"] < 0.6  # tokens/s of a model of 24 sub-layers that take a second each
    assert json.loads(path.read_text()) == record


def test_a_run_measures_what_no_profile_reaches(tmp_path: Path) -> None:
    lm, path = LM(shallow("llama")), tmp_path / "latency.json"
    lm.allocate(64)
    model = {"attention_s": 1.0, "attention_s_per_token": 0.0, "mlp_s": 2.0, "head_s": 3.0}
    model["layers"] = 12

    def mlp_s() -> float:
        return measured(lm, path).part_s("mlp", 0)

    # damaged, or of another version
    for text in ("not json", json.dumps({"model": model})):
        path.write_text(text)
        assert mlp_s() < 1.0
    points = msgspec.to_builtins(attention_points({1: 1.0, 32: 1.0}))
    path.write_text(json.dumps({"format": FORMAT, "model": model, "points": points}))
    assert measured(lm, path).model == msgspec.convert(model, Latencies)
    lm.allocate(120)
    assert mlp_s() < 1.0
    assert max(p["context"] for p in json.loads(path.read_text())["points"]) == 119


STORY = "Once upon a time there was a dog. Once upon a time there was"


def test_a_pass_is_its_parts_times_a_curve_over_rows() -> None:
    """Linear between measured rows and contexts; never falling; beyond the rows with their mean
    slope, beyond the contexts as at the nearest.
    """
    model = Latencies(1.0, 0.01, 2.0, 4.0, 4, {"int8": Latencies(0.5, 0.0, 1.0, 2.0, 4)})
    curves = [
        Curve(10, {1: 1.0, 2: 0.9, 4: 1.5}),
        Curve(30, {1: 1.0, 4: 2.5}),
        Curve(10, {1: 1.0, 4: 4.0}, "int8"),
    ]
    prices = Prices(model=model, curves=curves, host={"mine": Host(1.0, 0.5, 2.0, 3.0, 2.0)})
    found = [
        prices.curve(n, context) for n, context in ((2, 0), (3, 10), (4, 20), (7, 10), (4, 99))
    ]
    assert found == pytest.approx([1.0, 1.25, 2.0, 2.0, 2.5])
    one = 4 * (1 + 0.01 * 20) + 4 * 2 + 4
    assert prices.pass_s(4, 20) == pytest.approx(2 * one)
    low, half = DraftPlan(4, variant="int8"), DraftPlan.of(4, [0, 2, 1])
    assert prices.pass_s(4, 20, low) == pytest.approx(4 * 8)
    host, half_s = prices.host_of("mine"), 2 * 1.2 + 3 * 2 + 4
    seconds = 3 * (2 * half_s + 2) + 3 * 2 * one + 1 + 4 * 0.5
    assert prices.round_s(4, 20, host, 3, half) == pytest.approx(seconds)
    first = 3 * one + 1.5
    assert prices.round_prices(4, 20, host)[::4] == pytest.approx([0, (6 * one + 3) / first])
    assert prices.step_price(20, half, host) == pytest.approx((2 * half_s + 2) / first)
    assert prices.draft_prices(4, "int8", 20, host)[::4] == pytest.approx([0, 66 / first])
    assert prices.draft_prices(4, "int4") == [] and Prices().round_prices(2) == [0.0, 1.0, 1.0]


def test_sizes_that_do_not_fit_are_left_out() -> None:
    lm = random_lm("llama", "fused")
    assert list(verification_curve(lm, 3, (1, 4, 10_000)).rows) == [1, 4]


def test_the_next_process_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = list[int](), latency.verification_curve
    monkeypatch.setattr(latency, "verification_curve", lambda *a: measured.append(1) or measure(*a))

    def loaded(*more: str) -> LanguageModel:  # other weights in memory, as in another process
        return skipbench.load("tiny", "recycling", overrides=[f"results={tmp_path}", *more])

    text = loaded().generate(STORY, 24).text
    (path,) = (tmp_path / "latency").iterdir()
    record = json.loads(path.read_text())
    lm, count = loaded(), len(measured)
    assert msgspec.to_builtins(lm.lm.prices)["curves"] == [
        {**one, "rows": {int(n): price for n, price in one["rows"].items()}}
        for one in record["curves"]
    ]
    assert msgspec.to_builtins(lm.lm.prices)["host"] == record["host"] and record["host"]
    assert lm.generate(STORY, 24).text == text and len(measured) == count == 2


def test_a_busy_moment_does_not_decide_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that slows a whole turn, nor one that falls on one call; the first turn counts
    for nothing, and each call is timed behind one of its own.
    """
    turns, second = [9.0, 1.9, 1.0, 1.6, 3.0, 1.2], [7.0, 2.0, 3.0, 5.0, 2.0, 2.0]
    pairs = {1: turns, 2: [a * b for a, b in zip(turns, second, strict=True)]}
    times = {n: iter([t for second in of for t in (99.0, second)]) for n, of in pairs.items()}
    monkeypatch.setattr(rows, "timed", lambda call, _: call())
    monkeypatch.setattr(rows, "REPEATS", 5)
    calls = {n: partial(next, of_call) for n, of_call in times.items()}
    assert paired_ratios(calls, torch.device("cpu")) == {1: 1.0, 2: 2.0}
