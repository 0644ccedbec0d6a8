"""The profile: rooflines by device, the fitted latency model, what is stored, and who
uses it.
"""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from conftest import here, nothing_lost, random_lm

from skipbench.bench.load import load_model
from skipbench.cli.main import dispatch
from skipbench.config.catalog import known_hardware
from skipbench.config.compose import compose
from skipbench.config.hardware import Hardware
from skipbench.experiments.row import run_cell
from skipbench.metrics.prices import FORMAT, Latencies, Point, Prices, Roofline
from skipbench.profile.latency import (
    fit,
    latency_path,
    measured,
    part_bytes,
    part_times,
)
from skipbench.profile.roofline import match, roofline

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
    assert record["format"] == FORMAT and {c["context"] for c in record["curves"]} == {16, 32}
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
    (metrics,) = [json.loads(p.read_text()) for p in tmp_path.glob("runs/*/metrics.json")]
    assert metrics["tpt"] < 0.6  # tokens/s of a model of 24 sub-layers that take a second each
    assert json.loads(path.read_text()) == record


def test_a_run_measures_what_no_profile_reaches(tmp_path: Path) -> None:
    config = compose([f"results={tmp_path}"])
    lm, _ = load_model(config.model, config.engine)
    lm.allocate(64)
    path = latency_path(config, CPU)
    path.parent.mkdir()
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
    lm.allocate(200)
    assert mlp_s() < 1.0
    assert max(p["context"] for p in json.loads(path.read_text())["points"]) == 199
