"""Each dataset of the papers as each paper shows it: wording, shots, sample, lengths, the form of a
chat, second turns.
"""

import functools
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from conftest import ROOT, SHARED, make_method, nothing_lost, random_lm
from test_bad_checkpoints import Letters

from skipbench.bench.arm import ArmRunner
from skipbench.bench.prompts import Prompt, encode
from skipbench.bench.turns import decode_missing
from skipbench.config.compose import compose
from skipbench.config.dataset import DatasetConfig
from skipbench.data.chat import PLACEHOLDER, VICUNA
from skipbench.data.rows import Example, read_file, rows_hash
from skipbench.data.source import fetch, from_hub
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore

DATASETS = sorted(p.stem for p in (ROOT / "conf" / "dataset").glob("*.yaml"))
AT_HAND = ("humaneval", "prompts", "pydoc-summary", "stdlib-code", "tuning")  # without a hub
PAPERS = [d for d in DATASETS if not d.startswith("mini") and d not in ("stream", *AT_HAND)]
SAMPLES = {
    "cnndm": "cnn_dailymail.jsonl",
    "gsm8k": "gsm8k_test.jsonl",
    "mmlu-pro": "mmlu_pro.jsonl",
    "mt-bench": "mt_bench.jsonl",
    "nq": "natural_questions_open.jsonl",
    "pg19": "pg19.jsonl",
    "specbench": "spec_bench.jsonl",
    "tinystories": "tinystories.jsonl",
    "wmt14-de-en": "wmt14_de_en.jsonl",
}
LONGEST = 128  # positions of the random model
NEEDS_SAMPLES = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the samples of the datasets are not beside this checkout"
)


def composed(name: str, *overrides: str) -> DatasetConfig:
    return compose([f"dataset={name}", *(f"dataset.{o}" for o in overrides)]).dataset


def keys_of(name: str, *overrides: str) -> Mapping[str, Any]:
    return composed(name, *overrides).node


def file(folder: Path, *rows: dict[str, Any], name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def render(name: str, path: Path, *overrides: str, limit: int | None = None) -> list[Example]:
    return composed(name, f"path={path}", *overrides).rows(limit)


def message(call: Any) -> str:
    with pytest.raises(SkipbenchError) as caught:
        call()
    return str(caught.value)


# Configurations


NAMED = [name for name in DATASETS if name != "prompts"]  # which must be given a path


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.slow
def test_every_dataset_composes_in_every_variant(name: str) -> None:
    dataset = dict(keys_of(name))
    assert dataset["name"] == name and dataset["max_new_tokens"] > 0 and "variants" not in dataset
    assert keys_of(name, "max_new_tokens=7", "seed=3", "truncate=left") == dataset | {
        "max_new_tokens": 7, "seed": 3, "truncate": "left",
    }  # fmt: skip
    if name in PAPERS:
        assert dataset["hub"] and dataset["revision"] and dataset["columns"]
        with pytest.raises(SkipbenchError, match=rf"{name} has: .*{dataset['prompt']}"):
            composed(name, "prompt=nobody")


# size, seed, shots, shuffled, max_new_tokens, scorer: METHODS section 3, and the papers' appendices
LENGTHS = {
    ("cnndm", "swift"): (1000, 2024, 1, True, 64, "rouge"),
    ("cnndm", "self-sd"): (1000, 42, 1, True, 512, "rouge"),
    ("xsum", "self-sd"): (1000, 42, 1, True, 512, "rouge"),
    ("gsm8k", "swift"): (1000, 2024, 5, True, 64, "gsm8k"),
    ("gsm8k", "chat"): (None, 0, 0, False, 512, "gsm8k"),
    ("tinystories", "swift"): (1000, 2024, 1, True, 128, "none"),
    ("specbench", "clasp"): (None, 0, 0, False, 1024, "none"),
    ("specbench", "spec-bench"): (None, 0, 0, False, 1024, "none"),
    ("mt-bench", "self-sd"): (None, 0, 0, False, 512, "none"),
    ("aime24", "knapspec"): (30, 0, 0, False, 32768, "aime"),
    ("aime25", "knapspec"): (30, 0, 0, False, 32768, "aime"),
    ("mmlu-pro", "knapspec"): (70, 0, 0, False, 4096, "mmlu-pro"),
    ("govreport", "knapspec"): (20, 0, 0, False, 1024, "rouge"),
    ("pg19", "knapspec"): (20, 0, 0, False, 1024, "none"),
    ("booksum", "knapspec"): (20, 0, 0, False, 1024, "rouge"),
    ("alpaca", "swift"): (500, 2024, 0, True, 512, "none"),
    ("wmt14-de-en", "swift"): (500, 2024, 1, True, 512, "bleu"),
    ("nq", "swift"): (500, 2024, 1, True, 512, "nq"),
}


@pytest.mark.parametrize(("name", "prompt"), LENGTHS)
@pytest.mark.slow
def test_the_papers_sizes_and_lengths(name: str, prompt: str) -> None:
    found = keys_of(name, f"prompt={prompt}")
    keys = ("size", "seed", "shots", "shuffle", "max_new_tokens", "scorer")
    assert tuple(found[k] for k in keys) == LENGTHS[name, prompt]


def test_truncation_and_chat_of_the_papers() -> None:
    cnndm, xsum, spec = keys_of("cnndm"), keys_of("xsum"), keys_of("specbench", "prompt=spec-bench")
    assert [cnndm[k] for k in ("truncate", "keep", "reserve")] == ["end", "\nSummary:", 250]
    assert [xsum[k] for k in ("truncate", "keep", "context")] == ["end", 3, 4096]
    assert keys_of("govreport")["context"] == 16384 + 1024 and spec["chat"] == "vicuna"
    assert keys_of("mmlu-pro", "prompt=chat")["thinking"] is True
    assert (keys_of("mmlu-pro")["chat"], keys_of("mmlu-pro")["split"]) == ("none", "validation")


# Wording


def test_articles(tmp_path: Path) -> None:
    shot = {"article": "Old news.", "highlights": "One .\nTwo ."}
    shots = file(tmp_path, shot, name="train.jsonl")
    path = file(tmp_path, {"article": "New\nnews.", "highlights": "Three .\nFour ."})
    wanted = "Article: Old news.\nSummary: One .Two .\nArticle: New\nnews.\nSummary:"
    for prompt in ("swift", "self-sd"):
        (row,) = render("cnndm", path, f"prompt={prompt}", f"shots_path={shots}")
        assert row.prompt == wanted
        assert (row.id, row.reference) == ("cnndm-0", {"summary": "Three .\nFour ."})
    path = file(tmp_path, {"document": "A.", "summary": "B."}, {"document": "", "summary": "D."})
    (row,) = render("xsum", path)  # the first row is the shot
    assert (row.id, row.prompt) == ("xsum-1", "Article: A.\nSummary: B.\nArticle: \nSummary:")


def test_sums(tmp_path: Path) -> None:
    rows = [{"question": f"Q{i}?", "answer": f"{i} apples.\n#### 1,{i}00"} for i in range(7)]
    path = file(tmp_path, *rows)
    shown = "".join(f"Question: Q{i}?\nAnswer: {i} apples.\n#### 1,{i}00\n\n" for i in range(5))
    found = {row.id: row for row in render("gsm8k", path)}
    assert set(found) == {"gsm8k-5", "gsm8k-6"}
    assert found["gsm8k-6"].prompt == shown + "Question: Q6?\nAnswer:"
    assert found["gsm8k-6"].reference == {"answer": "1600"}
    assert [row.prompt for row in render("gsm8k", path, "prompt=chat", limit=2)] == ["Q0?", "Q1?"]
    assert render("gsm8k", path, "prompt=self-sd")[0].prompt == "Question: Q0?\nAnswer:"
    bad = file(tmp_path, {"question": "Q", "answer": "none"}, name="bad.jsonl")
    assert "gsm8k row 0" in message(lambda: render("gsm8k", bad, "prompt=chat"))


@pytest.mark.parametrize(("name", "column"), [("aime24", "problem"), ("aime25", "question")])
def test_competition_problems(tmp_path: Path, name: str, column: str) -> None:
    first = {column: "Find $x$.", "answer": "033"}
    path = file(tmp_path, first, {column: "Find y.", "answer": "336^\\circ"})
    rows = render(name, path)
    assert rows[0].prompt == (
        "Solve the following math problem. Make sure to put the answer (and only the answer) "
        "inside \\boxed{}.\n\n"
        "Find $x$.\n <think> Let's think step by step. </think>\n"
    )
    assert [row.reference for row in rows] == [{"answer": "33"}, {"answer": "336"}]
    bad = file(tmp_path, {column: "Find z.", "answer": "x"})
    assert f"{name} row 0" in message(lambda: render(name, bad))


def test_options(tmp_path: Path) -> None:
    row = {"question": "Which?", "options": ["this", "that"], "answer": "B", "category": "law"}
    (found,) = render("mmlu-pro", file(tmp_path, row))
    assert found.prompt == (
        "Question:\nWhich?\n\nOptions:\nA. this\nB. that\n\nAnswer the question by selecting "
        "the correct option. "
        'Think step by step and then provide your final answer in the format: "Answer: [OPTION]".'
    )
    assert (found.reference, found.groups) == ({"answer": "B"}, {"category": "law"})
    bad = file(tmp_path, row | {"answer": "C"})
    assert "none of A, B" in message(lambda: render("mmlu-pro", bad))


LONG = [
    ("govreport", "report", "summary"),
    ("booksum", "chapter", "summary_text"),
    ("pg19", "text", None),
]


@pytest.mark.parametrize(("name", "text", "summary"), LONG)
def test_long_texts(tmp_path: Path, name: str, text: str, summary: str | None) -> None:
    path = file(tmp_path, {text: "Long.", "summary": "x", "summary_text": "x"})
    (row,) = render(name, path)
    assert row.prompt == "Summarize the following text:\n\nLong.\n\nSummary:"
    assert row.reference == ({} if summary is None else {"summary": "x"})
    texts = ["One two.", "One two three.", "Four words are here.", "And here are five words."]
    path = file(tmp_path, *({text: t, "summary": "x", "summary_text": "x"} for t in texts))
    long = [row.prompt.split("\n\n")[1] for row in render(name, path, "min_words=3", "size=2")]
    assert long == texts[1:3]
    assert "min_words=6 leaves no text" in message(lambda: render(name, path, "min_words=6"))


def test_short_answers_and_translations(tmp_path: Path) -> None:
    answers = {"question": "who", "answer": ["me", "I"]}, {"question": "when", "answer": ["now"]}
    (row,) = render("nq", file(tmp_path, *answers))
    assert row.prompt == "Question: who\nAnswer: me\n\nQuestion: when\nAnswer:"
    assert row.reference == {"answers": ["now"]}
    both = {"de": "Ja.", "en": "Yes."}, {"de": "Nein.", "en": "No."}
    pairs = [{"translation": pair} for pair in both]
    for name in ("wmt14-de-en", "wmt16-de-en"):
        (row,) = render(name, file(tmp_path, *pairs))
        assert row.prompt == "German: Ja.\nEnglish: Yes.\n\nGerman: Nein.\nEnglish:"
        assert row.reference == {"translation": "No."}
    bad = file(tmp_path, {"translation": {"de": "Ja."}})
    assert "lacks 'de' or 'en'" in message(lambda: render("wmt14-de-en", bad, "shots=0"))


def test_instructions(tmp_path: Path) -> None:
    told = {"instruction": "Add.", "input": "1, 2", "output": "3"}
    first, second = render("alpaca", file(tmp_path, told, told | {"input": ""}), "shuffle=false")
    assert first.prompt == (
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### "
        "Input:\n1, 2\n\n### Response:"
    )
    assert second.prompt == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Response:"
    )


def test_stories(tmp_path: Path) -> None:
    """Cut after the prefix as it stands; a story without a word behind it is left out."""
    path = file(tmp_path, {"text": "A cat."}, {"text": "A dog barks loudly."})
    (row,) = render("tinystories", path, "prefix_words=2")
    assert row.prompt == "Story: A cat.\n\nStory: A dog"
    assert row.reference == {"text": " barks loudly."}
    texts = ["  One  day,\n\na cat   sat. ", "three words here", "One two three four"]
    path = file(tmp_path, *({"text": text} for text in texts))
    rows = render("tinystories", path, "prompt=plain", "prefix_words=3", "shuffle=false")
    assert [(row.id, row.prompt, row.reference["text"]) for row in rows] == [
        ("tinystories-0", "  One  day,\n\na", " cat   sat. "),
        ("tinystories-2", "One two three", " four"),
    ]
    assert len(render("tinystories", path, "prompt=plain", "prefix_words=3", limit=1)) == 1
    for words, says in ((5, "leaves none of the 3 stories"), (0, "prefix_words=0")):
        ask = functools.partial(render, "tinystories", path, "prompt=plain")
        assert says in message(functools.partial(ask, f"prefix_words={words}"))


TURNS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    {"question_id": 161, "category": "translation", "turns": ["Translate."]},
    {"question_id": 82, "category": "math", "turns": ["Add.", "More."]},
]


@pytest.mark.parametrize("name", ["specbench", "mt-bench"])
def test_a_limit_counts_conversations(tmp_path: Path, name: str) -> None:
    path = file(tmp_path, *TURNS)
    rows = render(name, path, limit=2)
    assert [(r.id, r.after, r.prompt) for r in rows] == [
        (f"{name}-81", None, "Write."),
        (f"{name}-81/2", f"{name}-81", "Again."),
        (f"{name}-161", None, "Translate."),
    ]
    assert rows[1].groups == {"task": "mt-bench" if name == "specbench" else "writing", "turn": "2"}
    assert rows[2].groups == {"task": "translation"}


CATEGORIES = ("writing", "math", "qa", "summarization")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Six questions per category, one category after the other, as the file has them."""
    rows = [
        {"question_id": 10 * k + n, "category": c, "turns": [f"{c} {n}?"] * (1 if k > 1 else 2)}
        for k, c in enumerate(CATEGORIES)
        for n in range(6)
    ]
    return file(tmp_path, *rows, name="question.jsonl")


def test_subtasks_of_spec_bench_are_taken_alone(questions: Path) -> None:
    some = composed("specbench", f"path={questions}", "tasks=[mt-bench,qa]")
    tasks = Counter(r.groups["task"] for r in some.rows(None) if r.after is None)
    assert tasks == {"mt-bench": 12, "qa": 6}
    ask = functools.partial(render, "specbench", questions, "tasks=[rag]")
    assert "['rag']; wanted some of mt-bench, qa, summ" in message(ask)
    assert some.node["tasks"] == ["mt-bench", "qa"]


@pytest.mark.parametrize(
    ("dataset", "tasks"), [("specbench", ("mt-bench", *CATEGORIES[2:])), ("mt-bench", CATEGORIES)]
)
def test_a_limit_is_spread_over_the_groups(
    dataset: str, tasks: tuple[str, ...], questions: Path
) -> None:
    config = composed(dataset, f"path={questions}")
    taken = {n: [r for r in config.rows(n) if r.after is None] for n in (3, 4, 5, 8, 23)}
    assert all(rows == taken[23][:n] for n, rows in taken.items())
    some = Counter(row.groups["task"] for row in taken[8])
    counts = [some[task] for task in tasks]
    assert max(counts) - min(counts) <= 1 and sum(counts) == 8
    # whole, in the order of the file; the second turn follows its first
    ids = [int(row.id.split("-")[-1]) for row in config.rows(None) if row.after is None]
    assert ids == sorted(ids) and len(ids) == 24
    with_turns = config.rows(4)
    assert all(r.after in {x.id for x in with_turns} for r in with_turns if r.after)


def test_speed_bench_refuses_rows_without_their_text(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question_id": f"q{k}{n}", "category": tier, "turns": [f"{tier} {n}?", "And then?"]}
        for k, tier in enumerate(("low_entropy", "high_entropy"))
        for n in range(3)
    ]
    rows[1]["turns"] = ["So?", f"{PLACEHOLDER} USING SPECDEC_BENCH"]
    ask = functools.partial(render, "speedbench", file(tmp_path, *rows))
    assert "1 of 6 questions of speedbench hold a placeholder" in message(ask)
    found = ask("leave_out=true")
    assert len(found) == 10
    assert {row.groups["task"] for row in found} == {"low_entropy", "high_entropy"}
    tiers = ask("leave_out=true", "config=throughput_1k", limit=2)
    first = [row for row in tiers if row.after is None]
    assert [row.groups["entropy"] for row in first] == ["low_entropy", "high_entropy"]
    assert [row.id for row in tiers][:2] == ["speedbench-q00", "speedbench-q00/2"]
    assert "leaves no rows" in message(lambda: ask("size=0", "leave_out=true"))


def test_a_stream_holds_its_tasks_one_after_another(tmp_path: Path) -> None:
    made = {
        "summarization": [{"article": f"a{i}", "highlights": "h"} for i in range(5)],
        "reasoning": [{"question": f"q{i}", "answer": "#### 1"} for i in range(9)],
        "instruction": [{"instruction": f"i{i}", "input": ""} for i in range(5)],
        "translation": [{"translation": {"de": f"d{i}", "en": "e"}} for i in range(5)],
        "question": [{"question": f"n{i}", "answer": ["x"]} for i in range(5)],
    }
    paths = {task: file(tmp_path, *of, name=f"{task}.jsonl") for task, of in made.items()}
    dataset = composed("stream", *(f"parts.{task}.path={path}" for task, path in paths.items()))
    rows = dataset.rows(2)
    assert [row.groups["task"] for row in rows] == [task for task in paths for _ in range(2)]
    others = [r for r in dataset.rows(2) if r.groups["task"] != "summarization"]
    assert rows == dataset.rows(None)[:2] + others
    assert dataset.max_new_tokens == 512 and dataset.node["size"] == 500
    assert dataset.rows(2, seed_offset=1) != rows


@NEEDS_SAMPLES
@pytest.mark.parametrize("name", SAMPLES)
def test_real_rows(name: str) -> None:
    path = SHARED / "data" / SAMPLES[name]
    rows = render(name, path)
    assert rows and len({row.id for row in rows}) == len(rows)
    assert all(row.prompt.strip() and len(row.source) == 64 for row in rows)
    first = render(name, path, limit=3)
    if name in ("specbench", "mt-bench"):  # their groups come in turns
        assert all(row in rows for row in first)
    else:
        assert first == rows[: len(first)]


# Samples and shots


def test_a_local_file_gives_the_hubs_sample(tmp_path: Path) -> None:
    stories = [{"article": f"article {i}", "highlights": f"summary {i}"} for i in range(50)]
    train = [{"article": f"shot {i}", "highlights": f"gist {i}"} for i in range(30)]
    path, shots = file(tmp_path, *stories), file(tmp_path, *train, name="train.jsonl")
    rows = render("cnndm", path, f"shots_path={shots}", "size=7")
    shuffled = datasets.Dataset.from_list(stories).shuffle(seed=2024).select(range(7))
    shot = datasets.Dataset.from_list(train).shuffle(seed=2024)[0]
    head = f"Article: {shot['article']}\nSummary: {shot['highlights']}\n"
    assert [row.prompt for row in rows] == [
        f"{head}Article: {row['article']}\nSummary:" for row in shuffled
    ]
    assert render("cnndm", path, f"shots_path={shots}", limit=3) == rows[:3]
    assert render("cnndm", path, f"shots_path={shots}", "seed=1", limit=7) != rows


def test_rows_and_prompts_are_told_apart_by_their_hashes(tmp_path: Path) -> None:
    path = file(tmp_path, {"question": "Q?", "answer": "#### 1"})
    plain, chat = (render("gsm8k", path, f"prompt={p}") for p in ("self-sd", "chat"))
    assert rows_hash(plain) == rows_hash(chat) and plain[0].prompt != chat[0].prompt
    other = render("gsm8k", file(tmp_path, {"question": "Q?", "answer": "#### 2"}), "prompt=chat")
    assert rows_hash(other) != rows_hash(chat) and other[0].prompt == chat[0].prompt
    assert rows_hash([Example("a", "b", {"x": 1}, {})]) != rows_hash(
        [Example("a", "b", {"x": 2}, {})]
    )


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    path = file(tmp_path, {"question": "Q?", "answer": "#### 1"})
    assert "dataset.shots=5" in message(lambda: render("gsm8k", path))
    assert "only 1 rows" in message(lambda: render("gsm8k", path, f"shots_path={path}"))
    assert "dataset.shots=-1" in message(lambda: render("gsm8k", path, "shots=-1"))
    assert "dataset.size=0" in message(lambda: render("gsm8k", path, "size=0"))
    assert "missing required field `problem`" in message(
        lambda: render("gsm8k", path, "columns.question=problem")
    )
    assert "does not exist" in message(lambda: render("gsm8k", tmp_path / "no.jsonl"))


# The hub


def hub(monkeypatch: pytest.MonkeyPatch, found: Any) -> list[tuple[Any, ...]]:
    asked = []

    def load_dataset(*args: Any, **keys: Any) -> Any:
        asked.append((*args, keys))
        if isinstance(found, Exception):
            raise found
        return found[keys["split"]] if isinstance(found, dict) else found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    articles = [{"article": f"a{i}", "highlights": f"h{i}", "id": str(i)} for i in range(9)]
    test = datasets.Dataset.from_list(articles)
    train = datasets.Dataset.from_list([{"article": "s", "highlights": "g", "id": "0"}])
    asked = hub(monkeypatch, {"test": test, "train": train})
    rows = composed("cnndm").rows(2)
    order = np.random.default_rng(2024).permutation(9)
    wanted = [f"Article: s\nSummary: g\nArticle: a{i}\nSummary:" for i in order[:2]]
    assert [row.prompt for row in rows] == wanted
    revision = "96df5e686bee6baa90b8bee7c28b81fa3fa6223d"
    assert asked == [
        ("abisee/cnn_dailymail", "3.0.0", {"split": split, "revision": revision})
        for split in ("test", "train")
    ]
    source = "hf://datasets/abisee/cnn_dailymail@{}/3.0.0/test.parquet"
    test.info.download_checksums = {source.format(revision): {}}
    assert composed("cnndm").rows(2) == rows
    test.info.download_checksums = {source.format("0" * 40): {}}
    assert "holds another revision" in message(lambda: composed("cnndm").rows(2))


def test_configurations_joined_by_plus_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, datasets.Dataset.from_list([{"question": "p", "answer": "1"}]))
    assert len(composed("aime25").rows(None)) == 2
    assert [call[1] for call in asked] == ["AIME2025-I", "AIME2025-II"]


def test_changed_columns_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, datasets.Dataset.from_list([{"text": "a", "summary": "b"}]))
    text = message(lambda: composed("xsum").rows(None))
    assert "lacks the columns document; it has text, summary" in text and "dataset.columns" in text
    hub(monkeypatch, datasets.Dataset.from_list([{"problem": "a", "answer": 204}]))
    assert "Expected `str`, got `int` - at `$.answer`" in message(
        lambda: composed("aime24").rows(None)
    )


def test_a_hub_that_fails_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        ConnectionError("Couldn't reach 'x' on the Hub (OfflineModeIsEnabled)"),
        ValueError("BuilderConfig '3.0.0' not found. Available: ['default']"),
        datasets.exceptions.DatasetNotFoundError("Dataset 'x' is a gated dataset on the Hub."),
    ):
        hub(monkeypatch, error)
        text = message(lambda: composed("cnndm").rows(2))
        assert str(error) in text and "abisee/cnn_dailymail (3.0.0)" in text
        assert "python -m skipbench data cnndm" in text and "dataset.path=FILE" in text


def test_a_hub_that_cannot_be_reached_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s for another try")

    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")  # a name that never resolves
    monkeypatch.setattr(time, "sleep", wait)
    ask = functools.partial(from_hub, "someone/else", None, "test", "0" * 40, ["x"], "")
    assert "Couldn't reach 'someone/else' on the Hub" in message(ask)


def test_a_file_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(tmp_path, *TURNS)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    address = "https://example.org/question.jsonl"
    calls = []

    def urlopen(url: str, timeout: float) -> Any:
        calls.append(url)
        return path.open("rb")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)

    def ask() -> list[dict[str, Any]]:
        return read_file(fetch(address, digest), {"turns": list})

    assert len(ask()) == 3
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(ask()) == 3 and calls == [address]  # kept
    (kept,) = (tmp_path / "cache" / "skipbench").iterdir()
    kept.write_text("torn")
    assert "has changed" in message(ask) and not kept.exists()
    assert "HF_HUB_OFFLINE is set" in message(ask)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert "has changed: its SHA-256 is " + digest in message(lambda: fetch(address, "0" * 64))

    def unreachable(url: str, timeout: float) -> Any:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    assert "cannot be fetched" in message(ask)


# Forms of a prompt


class Reader(Letters):
    """Letters that are read as they were written, and a chat template."""

    chat_template = "there is one"

    def encode(self, text: str) -> list[int]:
        self.text = text
        return super().encode(text)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(61 + i) for i in ids)

    def apply_chat_template(self, messages: list[dict[str, str]], **keys: Any) -> list[int]:
        assert keys.pop("add_generation_prompt") is True and keys.pop("return_dict") is False
        self.text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        self.text += f"{keys}" if keys else ""
        return super().encode(self.text)


def conversation() -> list[Example]:
    first, other = Example("a", "ask", {}, {}), Example("b", "other", {}, {})
    return [first, Example("a/2", "more", {}, {}, after="a"), other]


@pytest.mark.parametrize(
    ("chat", "first", "second"),
    [
        ("none", "ask", "ask Well. \n\nmore"),
        (
            "vicuna",
            f"{VICUNA}USER: ask ASSISTANT:",
            f"{VICUNA}USER: ask ASSISTANT: Well.</s>USER: more ASSISTANT:",
        ),
        ("template", "<user>ask", "<user>ask<assistant>Well.<user>more"),
    ],
)
def test_a_second_turn_holds_the_first_and_its_answer(chat: str, first: str, second: str) -> None:
    reader = Reader()
    prompts = encode(conversation(), reader, LONGEST, 8, "left", chat=chat)
    encode(conversation()[:1], reader, LONGEST, 8, "left", chat=chat)
    assert reader.text == first
    done = prompts[1].following({"a": " Well. "})
    assert reader.text == second
    assert done.ids[-4:] == Letters().encode(second)[-4:]
    assert prompts[0].following({}) is prompts[0]


def test_templates() -> None:
    reader = Reader()
    ask = functools.partial(encode, conversation()[:1], reader, LONGEST, 8, "refuse")
    ask(chat="template", thinking=True)
    assert reader.text == "<user>ask{'enable_thinking': True}"
    reader.chat_template = ""
    text = message(lambda: ask(chat="template"))
    assert "has no chat template" in text and "vicuna for" in text


def test_the_template_is_used_where_the_model_has_one() -> None:
    roles = {"system": "Be short.", "user": "Hello"}
    messages = tuple({"role": role, "content": text} for role, text in roles.items())
    rows = [Example("a", "Hi"), Example("b", "Be short.\n\nHello", messages=messages)]
    with_one, without = Reader(), Reader()
    without.chat_template = ""

    def texts(reader: Reader, chat: str) -> list[str]:
        found = list[str]()
        for row in rows:
            encode([row], reader, LONGEST, 4, "refuse", chat=chat)
            found.append(reader.text)
        return found

    assert texts(with_one, "auto") == ["<user>Hi", "<system>Be short.<user>Hello"]
    assert texts(without, "auto") == texts(with_one, "none") == [row.prompt for row in rows]
    ask = functools.partial(encode, rows[1:], with_one, LONGEST, 4, "left", chat="vicuna")
    assert "these are messages" in message(ask)


def ids(text: str, **keys: Any) -> Prompt:
    return encode([Example("x", text, {}, {})], Letters(), LONGEST, 20, "end", **keys)[0]


def test_the_end_of_a_text_is_cut_before_what_is_kept() -> None:
    whole = Letters().encode("x" * 150 + "end")
    for keep in (3, "en"):  # the text is counted with its special token, as SWIFT counts it
        cut = ids("x" * 150 + "end", keep=keep)
        assert (cut.cut, cut.ids) == (46, whole[:105] + whole[-3:])
    assert ids("x" * 150, reserve=8).ids == Letters().encode("x" * 99)
    assert ids("x" * 150, context=40).ids == Letters().encode("x" * 19)
    assert ids("x" * 10, keep=3).cut == 0
    assert "dataset.keep=108 is 108 tokens" in message(lambda: ids("x", keep=108))
    assert "dataset.reserve=-1" in message(lambda: ids("x", reserve=-1))
    assert "context of 20" in message(lambda: ids("x", context=20))


def test_a_turn_needs_the_one_before_it() -> None:
    rows = [Example("a/2", "more", {}, {}, after="a")]
    assert "goes on with 'a'" in message(lambda: encode(rows, Reader(), LONGEST, 8, "left"))


# Runs


def decoded(
    prompts: list[Prompt], store: RunStore, method: Any = None, warmup: int = 2
) -> list[Any]:
    words = ["dataset.max_new_tokens=8", "dataset.scorer=none", f"engine.warmup={warmup}"]
    lm, method = random_lm("llama", "fused"), method or make_method("uniform")
    try:
        runner = ArmRunner(compose(words), lm, Reader(), method, prompts, frozenset(), store)
        decode_missing(runner)
        return runner.turns
    finally:
        store.close()


class Stopping(RunStore):
    """Ends with an interrupt when so many turns are written."""

    left = 0

    def beat(self) -> None:
        super().beat()
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def run(prompts: list[Prompt], folder: Path, stop: int = 0) -> list[Any]:
    store = Stopping(folder, {}, Provenance())
    store.left = stop
    return decoded(prompts, store)


def test_each_arm_goes_first_at_one_of_two_prompts_in_an_order_of_the_cells_own(
    tmp_path: Path,
) -> None:
    rows = [Example(str(i), "ask", {}, {}) for i in range(8)]
    prompts = encode(rows, Reader(), LONGEST, 8, "left")
    found = {}
    for cell in "abcd":
        first = [turn.order[0] for turn in run(prompts, tmp_path / cell / cell)]
        assert all(sorted(first[i : i + 2]) == [cell, "vanilla"] for i in range(0, 8, 2))
        found[cell] = first
    assert len({tuple(first) for first in found.values()}) > 2
    assert len({first[0] for first in found.values()}) == 2
    again = tmp_path / "again" / "a"
    with pytest.raises(KeyboardInterrupt):
        run(prompts, again, stop=3)
    assert [turn.order[0] for turn in run(prompts, again)] == found["a"]


def test_warming_up_teaches_a_method_nothing(tmp_path: Path) -> None:
    """What goes from prompt to prompt, a threshold here, is the same with and without it."""
    rows = [Example(str(i), "ask", {}, {}) for i in range(3)]
    prompts = encode(rows, Reader(), LONGEST, 8, "left")
    carried = []
    for warmup in (0, 2):
        method = make_method("uniform", "stop@method.stop=adaptive", "method.stop.threshold=0.01")
        store = RunStore(tmp_path / str(warmup), {}, Provenance())
        turns = decoded(prompts, store, method, warmup)
        arms = [turn.arms[str(warmup)] for turn in turns]
        carried.append([(arm.carry, arm.rounds) for arm in arms])
    assert carried[0] == carried[1] and carried[0][0] != carried[0][1]


def test_both_arms_go_on_from_vanillas_answer_also_after_a_break(tmp_path: Path) -> None:
    prompts = encode(conversation(), Reader(), LONGEST, 8, "left")
    whole = run(prompts, tmp_path / "whole")
    answer = Reader().decode(whole[0].arms["vanilla"].tokens, skip_special_tokens=True)
    wanted = Letters().encode(f"ask{answer}\n\nmore")
    assert whole[1].prompt_tokens == len(wanted) <= prompts[1].longest
    assert [p.expected - len(p.ids) for p in prompts] == [0, 8, 0]  # an answer of full length
    followed = prompts[1].following({"a": answer}).hash
    assert whole[1].prompt_hash == followed == Prompt(conversation()[1], wanted, 0, 0).hash
    assert [turn.arms["whole"].lossless for turn in whole] == ["identical"] * 3
    with pytest.raises(KeyboardInterrupt):
        run(prompts, tmp_path / "broken", stop=1)
    again = run(prompts, tmp_path / "broken")
    assert [(t.prompt_hash, t.arms["broken"].tokens) for t in again] == [
        (t.prompt_hash, t.arms["whole"].tokens) for t in whole
    ]


def test_a_run_of_two_turns(tmp_path: Path) -> None:
    path = file(tmp_path, *TURNS)
    small = [f"dataset.path={path}", "dataset.max_new_tokens=12", "limit=1", f"results={tmp_path}"]
    config = compose(["dataset=specbench", "method=uniform", *small])
    assert nothing_lost(run_cell(config))
    (folder,) = run_folders(tmp_path)
    turns = read_run(folder).turns
    assert [turn.id for turn in turns] == ["specbench-81", "specbench-81/2"]
    assert [turn.unit for turn in turns] == ["specbench-81"] * 2
    assert turns[1].prompt_tokens > len(turns[0].arms["vanilla"].tokens)
    origin = json.loads((folder / "provenance.json").read_text())
    assert len(origin["rows_sha256"]) == len(origin["prompts_sha256"]) == 64
