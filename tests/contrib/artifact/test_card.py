"""Acceptance cards: their numbers by hand, and against the committed records."""

import json
from pathlib import Path

import msgspec
import pytest
from conftest import ROOT
from test_metrics import arm, sample, vanilla

from scripts.pack_records import table_of, unpacked
from skipbench.contrib.artifact.cards import (
    AcceptanceCard,
    Request,
    acceptances,
    card_of,
    read_cards,
)
from skipbench.contrib.artifact.replay import measured
from skipbench.errors import SkipbenchError
from skipbench.runs.record import Round, Sample, Seconds
from skipbench.runs.run import Run

RECORDS = ROOT / "results/laptop/records/head-to-head.jsonl.xz"
TIMES = Seconds(1.0, 0.8, 0.8, 0.3, 0.1)


def card(samples: list[Sample]) -> AcceptanceCard:
    return card_of(Run(method="m", model="t", dataset="d", kept_samples=samples), 4, {})


def two() -> list[Sample]:
    """A chain whose last round is cut, and a tree of depth 3 with 9 nodes and a leaf beside its
    chain; one round has no draft.
    """
    chain = arm([Round(2, 2, 2, 2, 3), Round(4, 4, 1, 1, 2), Round(2, 2, 2, 2, 1)], TIMES)
    tree = arm([Round(3, 9, 2, 1, 3), Round(0, 0, 0, 0, 1)], TIMES)
    return [
        sample(vanilla(6, 3.0), chain, groups={"task": "qa"}),
        sample(vanilla(5, 2.0), tree, id="b", groups={"task": "mt"}, skip="attn:1"),
    ]


def test_the_numbers_of_a_card_by_hand() -> None:
    whole, mt, qa = card(two()).acceptance
    assert [part.category for part in (whole, mt, qa)] == ["all", "task=mt", "task=qa"]
    assert (whole.num_spec_steps, whole.num_spec_tokens) == (5, 4)
    assert (whole.num_draft_tokens, whole.num_accepted_draft_tokens) == (11, 7)
    assert (whole.mean_acceptance_length, whole.M) == (1 + 7 / 5, 10 / 5)
    assert whole.acceptance_histogram == [1, 1, 3, 0, 0]
    by_length = whole.acceptance_histogram_by_draft_length
    assert by_length == {0: [1], 2: [0, 0, 2], 3: [0, 0, 1, 0], 4: [0, 1, 0, 0, 0]}
    # position 2: three of the four drafts that came to it; 3: the tree, which failed there
    assert whole.conditional_acceptance == [1, 3 / 4, 0]
    assert qa.conditional_acceptance == [1, 2 / 3] and mt.conditional_acceptance == [1, 1, 0]
    assert whole.M_ci95 is None  # two questions
    vllm, sglang, tensorrt = whole.simulate.values()
    assert vllm["synthetic_acceptance_length"] == sglang["SGLANG_SIMULATE_ACC_LEN"] == 2.4
    assert vllm["num_speculative_tokens"] == 3  # 11 / 5, rounded up
    assert tensorrt == {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": 1.4}


def test_a_card_gives_the_rounds_of_its_run_again() -> None:
    samples = two()
    again = card(samples).samples
    assert [s.method.rounds for s in again] == [s.method.rounds for s in samples]
    assert [s.skip_changes for s in again] == [[], [(0, "attn:1")]]
    assert measured(again).micro == pytest.approx(measured(samples).micro)


def test_cards_of_the_committed_records_hold_every_round_and_the_tables_numbers() -> None:
    stored = json.loads(table_of(RECORDS).read_text())["runs"]
    runs = {run["id"]: run for run in stored if not run.get("group")}
    for name, samples in unpacked(RECORDS).items():
        if runs[name]["method"] == "vanilla":
            with pytest.raises(SkipbenchError, match="drafted nothing"):
                card(samples)
            continue
        made, metrics = card(samples), runs[name]["metrics"]
        assert [s.method.rounds for s in made.samples] == [s.method.rounds for s in samples]
        whole = made.acceptance[0]
        assert pytest.approx(metrics["M"], rel=1e-12) == whole.M
        assert whole.draft_acceptance_rate == pytest.approx(metrics["alpha"], rel=1e-12)
        assert measured(made.samples).micro == pytest.approx(metrics["speedup"]["micro"], rel=1e-9)


def test_a_file_of_cards_is_read_back_and_a_changed_one_refused(tmp_path: Path) -> None:
    made, path = card(two()), tmp_path / "cards.jsonl"
    text = msgspec.json.encode(made).decode()
    path.write_text(f"{text}\n{text}\n")
    assert read_cards(path) == [made, made]
    path.write_text(text.replace('"num_accepted_draft_tokens":7', '"num_accepted_draft_tokens":8'))
    with pytest.raises(SkipbenchError, match="not that of its requests"):
        read_cards(path)
    for wrong in ("", "{}\n", "no JSON"):
        path.write_text(wrong)
        with pytest.raises(SkipbenchError, match="acceptance cards"):
            read_cards(path)


def test_a_request_without_a_round_adds_nothing() -> None:
    (request,) = card(two()[:1]).requests
    empty = msgspec.structs.replace(
        request, completion_tokens=1, per_step_drafted=[], per_step_accepted=[]
    )
    assert empty.rounds == [] and isinstance(empty, Request)
    assert acceptances([request, empty])[0].M == acceptances([request])[0].M
