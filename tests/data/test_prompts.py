"""Each dataset of the papers as each paper shows it: wording, shots, sample, lengths, the form of a
chat, second turns.
"""

import functools
import hashlib
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from builders import Letters, message
from conftest import make_method, random_lm

from skipbench.bench.arm import ArmRunner
from skipbench.bench.prompts import Prompt, encode
from skipbench.bench.turns import decode_missing
from skipbench.config.compose import compose
from skipbench.config.dataset import DatasetConfig
from skipbench.data.chat import VICUNA
from skipbench.data.rows import Example, read_file
from skipbench.data.source import fetch
from skipbench.runs.provenance import Provenance
from skipbench.runs.store import RunStore

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
LONGEST = 128  # positions of the random model


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


def test_truncation_and_chat_of_the_papers() -> None:
    cnndm, xsum, spec = keys_of("cnndm"), keys_of("xsum"), keys_of("specbench", "prompt=spec-bench")
    assert [cnndm[k] for k in ("truncate", "keep", "reserve")] == ["end", "\nSummary:", 250]
    assert [xsum[k] for k in ("truncate", "keep", "context")] == ["end", 3, 4096]
    assert keys_of("govreport")["context"] == 16384 + 1024 and spec["chat"] == "vicuna"
    assert keys_of("mmlu-pro", "prompt=chat")["thinking"] is True
    assert (keys_of("mmlu-pro")["chat"], keys_of("mmlu-pro")["split"]) == ("none", "validation")


@pytest.mark.parametrize("named", CASES["lengths"])
@pytest.mark.slow
def test_the_papers_sizes_and_lengths(named: str) -> None:
    name, prompt = named.split()
    found = keys_of(name, f"prompt={prompt}")
    keys = ("size", "seed", "shots", "shuffle", "max_new_tokens", "scorer")
    assert [found[k] for k in keys] == CASES["lengths"][named]


@pytest.mark.parametrize("named", CASES["made"])
def test_prompts_are_worded_as_the_papers_have_them(named: str, tmp_path: Path) -> None:
    case, name = CASES["made"][named], named.partition(",")[0]
    words, path = case.get("set", []), file(tmp_path, *case["rows"])
    if "shots" in case:
        words = [f"shots_path={file(tmp_path, *case['shots'], name='shots.jsonl')}"]
    if "error" in case:
        assert case["error"] in message(lambda: render(name, path, *words))
        return
    for row, wanted in zip(render(name, path, *words), case["made"], strict=True):
        assert {key: getattr(row, key) for key in wanted} == wanted


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


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    articles = [{"article": f"a{i}", "highlights": f"h{i}", "id": str(i)} for i in range(9)]
    test = datasets.Dataset.from_list(articles)
    train = datasets.Dataset.from_list([{"article": "s", "highlights": "g", "id": "0"}])
    asked = []

    def load_dataset(*args: Any, **keys: Any) -> Any:
        asked.append((*args, keys))
        return {"test": test, "train": train}[keys["split"]]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
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
    test.info.download_checksums = {source.format("0" * 40): {}}
    assert "holds another revision" in message(lambda: composed("cnndm").rows(2))
    test = datasets.Dataset.from_list([{"text": "a"}])
    text = message(lambda: composed("cnndm").rows(2))
    assert "lacks the columns article, highlights; it has text" in text


def test_a_file_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(tmp_path, *[{"turns": ["Write.", "Again."]}] * 3)
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


class Reader(Letters):
    """Letters that are read as they were written, and a chat template."""

    chat_template = "there is one"

    def encode(self, text: str) -> list[int]:
        self.text = text
        return super().encode(text)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(61 + i) for i in ids)

    def apply_chat_template(self, messages: list[dict[str, str]], **keys: Any) -> list[int]:
        assert keys == {"add_generation_prompt": True, "return_dict": False}
        self.text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
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
    assert "context of 20" in message(lambda: ids("x", context=20))


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


def test_warming_up_teaches_a_method_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes from prompt to prompt, a threshold here, is the same with and without it."""
    decode, asked = ArmRunner.decode, list[str]()

    def noted(runner: ArmRunner, method: Any, *rest: Any) -> Any:
        asked.append(method.name)
        return decode(runner, method, *rest)

    monkeypatch.setattr(ArmRunner, "decode", noted)
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
    assert len(asked) == 2 * 6 + 4 and asked[6:10] == ["vanilla", "uniform"] * 2


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
