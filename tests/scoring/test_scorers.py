"""The scorers, by hand and on completions as models write them, which answers.yaml holds."""

import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.scoring.overlap import corpus_bleu
from skipbench.scoring.programs import program_of
from skipbench.scoring.sandbox import bubblewrap, run_program
from skipbench.scoring.scorers import (
    SCORERS,
    boxed,
    latex_integer,
    numbers,
    score,
    squad_normalised,
)

ANSWERS = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text())

PAPERS = {  # a reference of each scorer, and the completion that it asks for
    "rouge": ({"summary": "The cat sat.\nIt was glad."}, "The cat sat. It was glad."),
    "gsm8k": ({"answer": "18"}, " She has 16 - 3 - 4 = 9 eggs and makes 9 * 2 = $18.\n#### 18"),
    "aime": ({"answer": "204"}, r"so the walk takes $\boxed{204}$ minutes."),
    "mmlu-pro": ({"answer": "C"}, " Let us see. The answer is (C)."),
    "nq": ({"answers": ["14 December 1972 UTC", "December 1972"]}, " December 1972\nQ: who"),
    "bleu": ({"translation": "The cat sat down ."}, " The cat sat down .\nGerman: Hallo"),
}
GARBAGE = [
    "", " ", "\n\n\n", "####", "#### x", "\\boxed{", "\\boxed{}", "}", "{}" * 50, "$", ",", ".",
    "-", "Question:", "Article:", "\ud800", "\0", "\u0661\u0668", "the the the", "Once upon",
]  # fmt: skip


@pytest.mark.parametrize("scorer", PAPERS)
def test_a_right_answer_scores_full_and_an_answer_to_another_task_does_not(scorer: str) -> None:
    reference, completion = PAPERS[scorer]
    full = 100 if scorer == "bleu" else 1
    assert set(score(scorer, completion, "", reference).values()) == {full}
    for other, (_, text) in PAPERS.items():
        if other != scorer and {other, scorer} != {"rouge", "bleu"}:
            assert max(score(scorer, text, "", reference).values()) < 0.3 * full, text


@pytest.mark.parametrize("scorer", PAPERS)
def test_garbage_scores_nothing_and_is_no_error(scorer: str) -> None:
    others = {"rouge": {"summary": "Rain fell."}, "bleu": {"translation": "Rain fell"}}
    reference = others.get(scorer, PAPERS[scorer][0])
    for completion in GARBAGE:
        assert set(score(scorer, completion, "", reference).values()) == {0.0}, completion


PIECES = ["\\boxed{", "answer is ", "1,", "{", "\n", "(", "#### ", "A "]


@pytest.mark.parametrize("scorer", PAPERS)
def test_a_loop_of_a_piece_takes_no_time(scorer: str) -> None:
    """A pattern that backtracks over all of it would take hours of CPU; this is no timing."""

    def stop(*_: object) -> None:
        raise AssertionError("60 s of CPU")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 60)
    try:  # the two of n-grams split words, and search for no pattern: one piece shows it
        for piece in PIECES[-1:] if scorer in ("rouge", "bleu") else PIECES:
            score(scorer, piece * 30_000, "", PAPERS[scorer][0])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


MALFORMED = [
    (scorer, key, reference)
    for scorer, keys in ANSWERS["malformed"].items()
    for key, references in keys.items()
    for reference in references
]


@pytest.mark.parametrize(("scorer", "key", "reference"), MALFORMED)
def test_a_malformed_reference(scorer: str, key: str, reference: dict[str, Any]) -> None:
    with pytest.raises(SkipbenchError, match=f"has {key}=.*needs .*choose the scorer"):
        score(scorer, "x", "", reference)


def rouge(completion: str, summary: str) -> list[float]:
    found = score("rouge", completion, "", {"summary": summary})
    assert list(found) == ["rouge1", "rouge2", "rougeL"]
    return list(found.values())


def test_rouge_by_hand() -> None:
    # 3 of 4 words and of 6; 1 of 3 pairs and of 5: 2 P R / (P + R) = 2 hits / (4 + 6)
    by_hand = pytest.approx([6 / 10, 2 / 8, 6 / 10])
    assert rouge("the cat liked mats", "the cat sat on the mat") == by_hand
    # the same words in another order: no pair; the longest common subsequence is 1 of 3
    assert rouge("c b a", "a b c") == pytest.approx([1, 0, 1 / 3])
    assert rouge("Jumping, he JUMPED!", "he jumps") == pytest.approx([4 / 5, 2 / 3, 4 / 5])  # stems
    assert rouge("on Monday", "on Tuesday") == pytest.approx([1 / 2, 0, 1 / 2])


@pytest.mark.parametrize(
    ("scorer", "completion"), [(s, text) for s in ("rouge", "bleu") for text in ANSWERS[s]["right"]]
)
def test_what_is_read_of_a_completion(scorer: str, completion: str) -> None:
    found = score(scorer, completion, "", ANSWERS[scorer]["reference"])
    assert set(found.values()) == {100 if scorer == "bleu" else 1}


def test_rouge_keeps_what_only_speaks_of_an_article() -> None:
    assert rouge("Rain fell. Article: Rome", "Rain fell. Article: Rome") == [1, 1, 1]
    assert rouge("Rain fell.\nArticle: Rome", "Rain fell. Article: Rome")[0] == pytest.approx(4 / 6)
    assert rouge("\nArticle: Rain fell.", "Rain fell.") == [0, 0, 0]


EXACT = [
    (scorer, text, exact)
    for scorer in ("gsm8k", "aime", "nq", "math")
    for kind, exact in (("right", 1.0), ("wrong", 0.0))
    for text in ANSWERS[scorer][kind]
]
EXACT += [("aime", r"\boxed{" + "2" * 10_000 + "}", 0.0), ("math", f" #### {'1' * 10_000}", 0.0)]


@pytest.mark.parametrize(("scorer", "completion", "exact"), EXACT)
def test_exact_answers(scorer: str, completion: str, exact: float) -> None:
    assert score(scorer, completion, "", ANSWERS[scorer]["reference"]) == {"exact": exact}


@pytest.mark.parametrize(
    ("number", "text"), [(n, text) for n, texts in ANSWERS["numbers"].items() for text in texts]
)
def test_the_last_number(number: str, text: str) -> None:
    found = numbers(text)[-1:]
    assert found == ([] if number == "none" else [Decimal(number)])


def test_boxes_and_integers() -> None:
    found = boxed(r"\boxed{a{b}c} } \boxed{\{x} \boxed{ } \boxed{\boxed{1}2}")
    assert found == ["a{b}c", r"\{x", r"\boxed{1}2", "1"]
    integers = {"073": 73, r"1{,}024": 1024, r"1\,024": 1024, "1,024": 1024, "-3": -3}
    for text, integer in {**integers, "": None, "x": None}.items():
        assert latex_integer(text) == integer
    for reference in ("073", "73", r"73^\circ", "73.0"):  # as hubs print some answers
        assert score("aime", r"\boxed{73}", "", {"answer": reference}) == {"exact": 1}
    for text, number in (("#### 1,234", 1234), ("#### -5", -5)):
        assert score("math", text, "", {"answer": number}) == {"exact": 1}


@pytest.mark.parametrize(
    ("letter", "completion"),
    [(letter, text) for letter, texts in ANSWERS["mmlu-pro"].items() for text in texts],
)
def test_mmlu_pro(letter: str, completion: str) -> None:
    chosen = [x for x in "ABCDEFGHIJ" if score("mmlu-pro", completion, "", {"answer": x})["exact"]]
    assert chosen == [letter] * (letter != "none")


PARTS = [
    (scorer, text, scores)
    for scorer in ("stories", "summary")
    for text, scores in ANSWERS[scorer]["scores"].items()
]
NAMES = {"stories": ("names_kept", "thing_kept"), "summary": ("facts", "all_facts")}


@pytest.mark.parametrize(("scorer", "completion", "scores"), PARTS)
def test_scores_of_parts(scorer: str, completion: str, scores: list[float]) -> None:
    found = score(scorer, completion, "Article:", ANSWERS[scorer]["reference"])
    assert found == dict(zip(NAMES[scorer], scores, strict=True))


ADD = 'def add(a, b):\n    """Return the sum."""\n'
ADD_TESTS = {"tests": "assert add(1, 2) == 3\nassert add(0, 0) == 0\n", "entry_point": "add"}


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("kind", "completion"), [(k, text) for k, texts in ANSWERS["code"].items() for text in texts]
)
def test_code(kind: str, completion: str) -> None:
    program = program_of("code", completion, ADD, ADD_TESTS)
    assert run_program(program, bubblewrap()).ok == (kind == "right")
    assert score("code", completion, ADD, ADD_TESTS) == {}  # the run only stores it


def test_none_and_unknown_scorers() -> None:
    assert score("none", "anything", "", {}) == {}
    with pytest.raises(SkipbenchError) as caught:
        score("meteor", "", "", {})
    assert "'meteor'" in str(caught.value) and all(name in str(caught.value) for name in SCORERS)


def test_squad_normalisation() -> None:
    text = squad_normalised(" An  Apple, a day\u2014keeps THE doctor's ")
    assert text == "apple day\u2014keeps doctors"
    assert score("nq", "", "", {"answers": ["The"]}) == {"exact": 0}  # nothing is left of either


def test_bleu_by_hand() -> None:
    # Words 5/6, pairs 3/5, triples 2/4, fours 1/3; equal length, so no penalty.
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    found = score("bleu", "the cat sat on a mat", "", {"translation": "the cat sat on the mat"})
    assert found == {"sentence_bleu": pytest.approx(by_hand)}
    # Two words have no triples: the order is 2. Four words wanted: the penalty is exp(1 - 4 / 2).
    found = score("bleu", "the cat", "", {"translation": "the cat sat down"})
    assert found == {"sentence_bleu": pytest.approx(100 * 2.718281828459045**-1)}


def test_corpus_bleu_pools_its_counts() -> None:
    right = ["the cat sat on the mat", "b c d e"]
    near = [" the cat sat on a mat\nmore", " b c d e\nmore"]
    references = [{"translation": text} for text in right]
    # 5 + 4 of 6 + 4 words, 3 + 3 of 5 + 3 pairs, 2 + 2 of 4 + 2 triples, 1 + 1 of 3 + 1 fours.
    by_hand = 100 * (9 / 10 * 6 / 8 * 4 / 6 * 2 / 4) ** 0.25
    for texts, wanted in ((near, by_hand), (right, 100.0)):
        assert corpus_bleu(texts, references) == {"bleu": pytest.approx(wanted)}
    with pytest.raises(SkipbenchError, match="has translation="):
        corpus_bleu(["a"], [{}])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vanilla", "self-sd", "prompt-lookup"])
@pytest.mark.parametrize("dataset", ["mini-math", "mini-summary", "mini-stories"])
def test_both_arms_score_the_same(method: str, dataset: str, tmp_path: Path) -> None:
    """Whatever drafts, a lossless method scores what vanilla scores: answers that fit, and stories
    far enough to name somebody.
    """
    small = ["limit=2", "dataset.max_new_tokens=64", "engine.warmup=0", f"results={tmp_path}"]
    config = compose([f"method={method}", f"dataset={dataset}", *small])
    assert run_cell(config, print_table=False)
    (folder,) = run_folders(tmp_path)
    run, tokenizer = read_run(folder), load(config.model.path, engine="fused")[1]
    metrics = run.measured
    assert metrics.lossless.identical == 2 and metrics.score_equal is True
    assert metrics.score and metrics.score == metrics.baseline.score
    assert any(metrics.score.means.values()), "no answer was reached, so nothing was compared"
    # A run scores a text once: each arm's own tokens are scored here.
    for turn, row in zip(run.turns, config.dataset.rows(2), strict=True):
        for arm in turn.arms.values():
            text = tokenizer.decode(arm.tokens, skip_special_tokens=True)
            assert arm.score == score(config.dataset.scorer, text, row.prompt, row.reference)
