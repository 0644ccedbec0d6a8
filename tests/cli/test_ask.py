"""How a model is asked: texts, messages, ids, lists of them; Hugging Face's sampling; files."""

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import Command
from transformers import GenerationConfig

import skipbench as package
from skipbench.bench.ask import encode_prompt
from skipbench.cli.generate import answer_file
from skipbench.errors import SkipbenchError
from skipbench.language_model import LanguageModel

STORY = "Once upon a time there was a dog. Once upon a time"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return package.load("tiny", method="prompt-lookup")


def test_a_list_has_the_answers_of_its_prompts(tiny: LanguageModel) -> None:
    ids = tiny.tokenizer.encode(STORY)
    prompts = [STORY, MESSAGES, ids]
    alone = [tiny.generate(one, 8).tokens for one in prompts]
    assert [a.tokens for a in tiny.generate(prompts, 8)] == alone
    assert alone[0] == alone[2] != alone[1] and tiny.generate([ids], 8)[0].tokens == alone[2]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert tiny.generate(parts, 8).tokens == alone[1]


def of_hugging_face(tiny: LanguageModel, **options: Any) -> list[int]:
    ids = torch.tensor([tiny.tokenizer.encode(STORY)])
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 24, "pad_token_id": 0}
    return tiny.lm.model.generate(ids, **given, **options)[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def test_greedy_with_processors_is_hugging_faces(tiny: LanguageModel) -> None:
    plain = tiny.generate(STORY, 24).tokens
    for options in ({"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}):
        found = tiny.generate(STORY, 24, **options)
        assert found.tokens == of_hugging_face(tiny, do_sample=False, **options) != plain, options
        config = GenerationConfig(**options, max_new_tokens=24, do_sample=False)
        assert tiny.generate(STORY, generation_config=config).tokens == found.tokens
    ended = tiny.generate(STORY, 24, eos_token_id=plain[5])
    assert ended.finish == "eos" and ended.tokens == plain[: plain.index(plain[5]) + 1]
    assert len(tiny.generate(STORY, 24, max_time=0.0).tokens) == 1


def test_sampling_with_processors_is_of_the_whole_vocabulary(tiny: LanguageModel) -> None:
    """Hugging Face's default are the 50 likeliest tokens."""
    plain = tiny.generate(STORY, 24, temperature=2.0).tokens
    assert tiny.generate(STORY, 24, temperature=2.0, repetition_penalty=1.0).tokens == plain


@pytest.mark.slow
def test_sampling_with_processors_is_exact(tiny: LanguageModel) -> None:
    """Pairs of tokens against the product of processed distributions, in total variation."""
    how = {"temperature": 2.0, "min_p": 0.2, "repetition_penalty": 1.3}
    ids, runs = tiny.tokenizer.encode(STORY), 800

    def processed(more: list[int]) -> dict[int, float]:
        path = torch.tensor([[*ids, *more]])
        scores = tiny.lm.model(path).logits[0, -1:].float()
        seen = scores.gather(1, path)
        scores = scores.scatter(1, path, torch.where(seen < 0, seen * 1.3, seen / 1.3)) / 2.0
        p = scores.softmax(-1)[0]
        p[p < 0.2 * p.max()] = 0
        return {t: float(p[t] / p.sum()) for t in p.nonzero()[:, 0].tolist()}

    wanted = {
        (a, b): pa * pb for a, pa in processed([]).items() for b, pb in processed([a]).items()
    }
    # a draft after the first token is needed, so that its verification is what is judged
    copies = tiny.with_method("prompt-lookup", ["method.ngram=1"])
    found = Counter(tuple(copies.generate(ids, 3, seed=s, **how).tokens[:2]) for s in range(runs))
    distance = sum(abs(found[key] / runs - wanted.get(key, 0)) for key in {*found, *wanted}) / 2
    assert found.keys() <= wanted.keys() and distance < 0.5 * math.sqrt(len(wanted) / runs)


def test_logprobs_are_the_models_own(tiny: LanguageModel) -> None:
    ids, accepted = tiny.tokenizer.encode(STORY), 0
    for more in ({}, {"repetition_penalty": 1.4}):
        answer = tiny.generate(STORY, 24, logprobs=2, **more)
        scores = tiny.lm.model(torch.tensor([[*ids, *answer.tokens]])).logits[0, len(ids) - 1 : -1]
        scores, accepted = scores.float().log_softmax(-1), accepted + answer.accepted
        assert [one.token for one in answer.logprobs] == answer.tokens
        for row, one in zip(scores, answer.logprobs, strict=True):
            assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-3)
            assert [token for token, _ in one.top] == row.topk(2).indices.tolist()
    assert accepted and tiny.generate(STORY, 4).logprobs == []


def test_the_template_gets_what_it_is_given(tiny: LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}|{{ enable_thinking }}|{{ tools[0].name }}")
    tools = [{"name": "clock"}]

    def text(**form: Any) -> str:
        ids = encode_prompt(tiny.lm, tiny.tokenizer, MESSAGES, 4, **form)
        return str(tiny.tokenizer.decode(ids, skip_special_tokens=True))

    assert text(chat=str(file), thinking=False, tools=tools) == "Hello|False|clock"
    assert text(chat=str(file), tools=tools) == "Hello||clock"
    wrong = {"chat": "bogus"}, {"thinking": False}, {"tools": tools}
    for form, says in zip(wrong, ("chat=bogus; wanted", "thinking=", "tools="), strict=True):
        with pytest.raises(SkipbenchError, match=says):
            text(**form)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt": None}, "prompt=None; wanted a text, messages, token ids"),
        ({"prompt": [b"Once"]}, "prompt=b'Once'; wanted a text"),
        ({"prompt": [1, 10**9]}, "out of range"),
        ({"prompt": ["a", "b"], "stream": True}, "for one prompt"),
        ({"min_q": 0.1}, "generate does not know min_q. Did you mean min_p"),
        ({"num_beams": 2}, "cannot honour num_beams"),
        ({"guidance_scale": 2.0}, "cannot honour UnbatchedClassifierFreeGuidance"),
        ({"temperature": 1.0, "min_p": 3.0}, "min_p"),
        ({"logprobs": -1}, "logprobs=-1; wanted 0 to"),
        ({"max_new_tokens": 0}, "max_new_tokens=0; wanted 1 or more"),
        ({"max_new_tokens": 9999}, "leaves no room"),
        ({"temperature": -1.0}, "wanted a finite number"),
        ({"prompt": [5] * 1021, "max_new_tokens": 8}, "lower max_new_tokens to 3 or less"),
        ({"stop": ["", "b"]}, "leave it out"),
        ({"prompt": []}, "no messages"),
        ({"prompt": [{"content": "x"}]}, "wanted a dict with 'role'"),
        ({"chat": "template"}, "has no chat template"),
    ],
)
def test_what_cannot_be_is_named(tiny: LanguageModel, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(SkipbenchError, match=says):
        tiny.generate(**{"prompt": STORY, "max_new_tokens": 4, **wrong})


def test_a_file_of_prompts_is_resumed(skipbench: Command, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": STORY}, {"messages": MESSAGES}, {"prompt": "The \u00e9 ball"}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = "generate", "method=vanilla", "max_new_tokens=6", f"prompts={prompts}", f"out={out}"
    done = skipbench(*words)
    assert done.returncode == 0 and "3 answers in" in done.stderr, done.stderr
    whole = out.read_bytes()
    made = [json.loads(line) for line in whole.splitlines()]
    assert [line["id"] for line in made] == [f"prompts-{n}" for n in (1, 2, 3)]
    assert made[1]["prompt"] == "\n\n".join(m["content"] for m in MESSAGES), "without a template"
    out.write_bytes(whole[: whole.index(b"\n") + 20])  # killed while it wrote the second line
    done = skipbench(*words)
    assert out.read_bytes() == whole and "has 1 of 3 answers" in done.stderr
    done = skipbench(*words, "seed=2")
    assert done.returncode == 2 and "other lines than answers to these" in done.stderr
    assert "go together" in skipbench(*words, "x").stderr and out.read_bytes() == whole


def test_a_file_of_somebody_else_is_left_as_it_is(tiny: LanguageModel, tmp_path: Path) -> None:
    prompts, precious = tmp_path / "p.txt", tmp_path / "precious.json"
    prompts.write_text("Once\nThe ball")  # the last line without its end
    precious.write_text('{"thesis": "my only copy, no newline at the end"}')
    session = SimpleNamespace(model=tiny, options={"max_new_tokens": 2}, system=[])
    for out in (precious, prompts):
        before = out.read_bytes()
        with pytest.raises(SkipbenchError, match="other lines than answers to these prompts"):
            answer_file(cast(Any, session), prompts, out)
        assert out.read_bytes() == before
    prompts.write_text("Once\n" + "far " * 3000)
    with pytest.raises(
        SkipbenchError, match=r"p.txt prompt 2 \(prompts-2\): the prompt has \d+ tokens"
    ):
        answer_file(cast(Any, session), prompts, tmp_path / "out.jsonl")
