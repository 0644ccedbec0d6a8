"""A limit takes the groups of Spec-Bench and MT-bench in turns."""

import json
from collections import Counter
from pathlib import Path

import pytest

from skipbench.config.compose import compose
from skipbench.data.chat import PLACEHOLDER
from skipbench.errors import SkipbenchError

CATEGORIES = ("writing", "math", "qa", "summarization")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Six questions per category, one category after the other, as the file has them."""
    path = tmp_path / "question.jsonl"
    turns = {"writing": 2, "math": 2}
    rows = [
        {"question_id": 10 * k + n, "category": c, "turns": [f"{c} {n}?"] * turns.get(c, 1)}
        for k, c in enumerate(CATEGORIES)
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_subtasks_of_spec_bench_are_taken_alone(questions: Path) -> None:
    words = ["dataset=specbench", f"dataset.path={questions}"]
    some = compose([*words, "dataset.tasks=[mt-bench,qa]"])
    rows = [r for r in some.dataset.rows(None) if r.after is None]
    assert Counter(r.groups["task"] for r in rows) == {"mt-bench": 12, "qa": 6}
    with pytest.raises(SkipbenchError, match=r"\['rag'\]; wanted some of mt-bench, qa, summ"):
        compose([*words, "dataset.tasks=[rag]"]).dataset.rows(None)
    assert "tasks" not in compose(words).to_dict()["dataset"]  # a run's name is as before
    assert some.to_dict()["dataset"]["tasks"] == ["mt-bench", "qa"]


@pytest.mark.parametrize(
    ("dataset", "tasks"), [("specbench", ["mt-bench", "qa", "summarization"]), ("mt-bench", None)]
)
def test_a_limit_is_spread_over_the_groups(
    dataset: str, tasks: list[str] | None, questions: Path
) -> None:
    config = compose([f"dataset={dataset}", f"dataset.path={questions}", "limit=null"]).dataset
    wanted = tasks or list(CATEGORIES)
    taken = {n: [r for r in config.rows(n) if r.after is None] for n in (3, 4, 5, 8, 23)}
    for n, rows in taken.items():
        assert len(rows) == n
        assert [row.id for row in rows] == [row.id for row in taken[23][:n]]
    some = [row.groups["task"] for row in taken[8]]
    counts = [some.count(task) for task in wanted]
    assert max(counts) - min(counts) <= 1 and sum(counts) == 8
    # whole, in the order of the file; the second turn follows its first
    whole = config.rows(None)
    ids = [int(row.id.split("-")[-1]) for row in whole if row.after is None]
    assert ids == sorted(ids) and len(ids) == 24
    with_turns = config.rows(4)
    assert all(r.after in {x.id for x in with_turns} for r in with_turns if r.after)


def test_speed_bench_refuses_rows_without_their_text(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    rows = [
        {"question_id": f"q{k}{n}", "category": tier, "turns": [f"{tier} {n}?", "And then?"]}
        for k, tier in enumerate(("low_entropy", "high_entropy"))
        for n in range(3)
    ]
    rows[1]["turns"] = ["So?", f"{PLACEHOLDER} USING SPECDEC_BENCH"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["dataset=speedbench", f"dataset.path={path}", "limit=null"]
    with pytest.raises(SkipbenchError, match="1 of 6 questions of speedbench hold a placeholder"):
        compose(words).dataset.rows(None)
    found = compose([*words, "dataset.leave_out=true"]).dataset
    assert len(found.rows(None)) == 10
    assert {row.groups["task"] for row in found.rows(None)} == {"low_entropy", "high_entropy"}
    tiers = compose([*words, "dataset.leave_out=true", "dataset.config=throughput_1k"]).dataset
    first = [row for row in tiers.rows(2) if row.after is None]
    assert [row.groups["entropy"] for row in first] == ["low_entropy", "high_entropy"]
    assert [row.id for row in tiers.rows(2)][:2] == ["speedbench-q00", "speedbench-q00/2"]
    with pytest.raises(SkipbenchError, match="leaves no rows"):
        compose([*words, "dataset.size=0", "dataset.leave_out=true"]).dataset.rows(None)
