"""Verdicts on outputs, and the command `verify`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Command, rest_slow
from msgspec.structs import replace
from records import TEXTS, TINY, kept, model, plain, tiny

import skipbench as package
from skipbench.cli import pytest_plugin
from skipbench.config.compose import compose
from skipbench.contrib.oracle.causes import KEPT, PROMPT
from skipbench.contrib.oracle.check import counts
from skipbench.contrib.oracle.judge import Judged, Oracle
from skipbench.contrib.oracle.outputs import Output, from_records
from skipbench.decode import lossless
from skipbench.decode.lossless import TIE_ULPS, Verdict
from skipbench.experiments.row import run_cell
from skipbench.language_model import LanguageModel
from skipbench.lm.model import LM
from skipbench.runs.reading import run_folders

TEXT = TEXTS[0]
assert_lossless = pytest_plugin.assert_lossless


def ids() -> list[int]:
    prompt: list[int] = tiny()[2].encode(TEXT)
    return prompt


def judge(eos: frozenset[int] = frozenset(), **record: Any) -> Judged:
    _, lm, tokenizer = tiny()
    given = {"prompt": TEXT} | record
    (found,) = Oracle(lm, tokenizer, eos).judge([Output(**given)])
    return found


def test_a_wrong_token_has_position_logits_and_gap() -> None:
    own, tokenizer = plain(tuple(ids())), tiny()[2]
    assert judge(ids=own).verdict.kind == "identical"
    assert judge(text=tokenizer.decode(own).strip()).verdict.kind == "identical"
    other = judge(ids=[*own[:9], 5, *own[10:]]).verdict
    assert (other.kind, other.position, other.wanted, other.given) == ("wrong", 9, own[9], 5)
    assert other.gap is not None and other.bound is not None and other.gap > other.bound > 0


def test_eos_and_the_end() -> None:
    own = plain(tuple(ids()))
    eos, end = own[12], own.index(own[12])

    def verdict(given: list[int], finish: Any = "stop") -> Verdict:
        return judge(frozenset({eos}), ids=given, finish=finish).verdict

    assert verdict(own[:end]).kind == "identical"  # without the EOS, which the model wants here
    assert verdict([*own[: end + 1], eos, eos], "").kind == "identical"  # as a batch pads it
    for given, position in ((own[: end + 4], end + 1), (own[:3], 3)):  # goes on; ends early
        found = verdict(given)
        assert found.kind == "wrong" and found.position == position
        assert found.cause is not None and found.cause.name == lossless.END


def test_stop_strings() -> None:
    tokenizer = tiny()[2]
    own = plain(tuple(ids()))
    text = tokenizer.decode(own)
    before = text[: text.index(".") + 1]
    for given in (before, before[:-1]):  # with the stop string, or without
        assert judge(text=given, stop=["."], finish="stop").verdict.kind == "identical"
    for given in (text, before[: len(before) // 2], tokenizer.decode(own[:4])):
        found = judge(text=given, stop=["."], finish="stop").verdict
        assert found.kind == "wrong" and found.cause and found.cause.name == lossless.END
    spaced = judge(text=text.replace(" ", "  ", 8).replace("  ", " ", 3)).verdict
    assert spaced.kind == "wrong" and spaced.cause is None, "a cause is made up"


@torch.inference_mode()
def test_in_low_precision_a_tie_is_as_wide_as_the_engine_errs() -> None:
    low = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.bfloat16).eval()
    lm, prompt = LM(low, "fused"), ids()
    lm.allocate(128)
    own = plain(tuple(prompt))[:16]
    (wide,) = lossless.logit_blocks(lm, prompt, own[:-1], own=False)
    top, near = wide.topk(4)
    gaps = top[:, :1] - top
    far = (
        gaps > TIE_ULPS * torch.finfo(torch.bfloat16).eps * wide.abs().max(-1, keepdim=True).values
    )
    cases = sorted((float(gaps[at, n]), int(at), int(near[at, n])) for at, n in far.nonzero())
    oracle = Oracle(lm, tiny()[2], frozenset())

    def verdict(case: tuple[float, int, int], *more: int) -> Verdict:
        made = [*own[: case[1]], case[2], *more]
        return next(oracle.judge([Output(prompt_ids=prompt, ids=made)])).verdict

    nearest, farthest = cases[0], cases[-1]
    tie = verdict(nearest)
    assert tie.kind == "tie" and tie.gap == pytest.approx(nearest[0], abs=1e-4)
    assert tie.bound is not None and nearest[0] <= tie.bound < farthest[0]
    for case, at, given in ((nearest, nearest[1] + 1, 5), (farthest, *farthest[1:])):
        found = verdict(case, 5, 5)
        assert (found.kind, found.position, found.given) == ("wrong", at, given)
    for (_, at, given), kind, bound in ((nearest, "tie", tie.bound), (farthest, "wrong", None)):
        beside = lossless.compare(lm, prompt, own, [*own[:at], given, 5, 5])  # as a run does
        assert (beside.kind, beside.position, beside.given) == (kind, at, given)
        assert bound in (None, beside.bound)
        turned = lossless.compare(lm, prompt, [*own[:at], given], own)
        assert (turned.kind, turned.gap) == (kind, -(beside.gap or 0.0))


def written(folder: Path) -> Path:
    """Two outputs: one of the model, and one with a wrong token."""
    own, tokenizer = plain(tuple(ids())), tiny()[2]
    wrong = [*own[:9], 5, *own[10:]]
    records = [
        {"prompt": TEXT, "output": tokenizer.decode(own)},
        {"prompt": TEXT, "output_ids": wrong, "id": "b"},
    ]
    path = folder / "out.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_command(skipbench: Command, tmp_path: Path) -> None:
    words = ["verify", str(written(tmp_path)), "model=tiny", "model.dtype=float32"]
    words.append(f"--json={tmp_path / 'v.json'}")
    assert skipbench(*words).returncode == 0
    done = skipbench(*words, "--fail-on", "wrong")
    assert done.returncode == 1 and "read as skipbench, JSONL" in done.stderr
    assert "1 wrong, 1 identical" in done.stdout and "output b: wrong, token 9" in done.stdout
    verdicts = json.loads((tmp_path / "v.json").read_text())["verdicts"]
    assert [v["kind"] for v in verdicts] == ["identical", "wrong"]
    refused = skipbench(*words[:2], "model=tiny", "--fail-on", "never")
    assert refused.returncode == 2 and "wanted wrong or unchecked or tie" in refused.stderr


def test_ctrl_c_keeps_what_is_judged(
    skipbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Oracle._one

    def interrupted(oracle: Oracle, output: Output, prompt: list[int]) -> Judged:
        if output.id == "b":
            raise KeyboardInterrupt
        return one(oracle, output, prompt)

    monkeypatch.setattr(Oracle, "_one", interrupted)
    done = skipbench("verify", str(written(tmp_path)), "model=tiny", f"json={tmp_path / 'v.json'}")
    assert done.returncode == 130 and "stopped; 1 of 2" in done.stderr
    assert len(json.loads((tmp_path / "v.json").read_text())["verdicts"]) == 1


def test_both_turns_of_a_run_are_read(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    turns = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    path.write_text(json.dumps(turns))
    small = [f"dataset.path={path}", "dataset.max_new_tokens=6", f"results={tmp_path}"]
    run_cell(compose(["dataset=specbench", "dataset.prompt=spec-bench", "method=vanilla", *small]))
    (folder,) = run_folders(tmp_path)
    assert package.verify(folder, model()).counts == {"identical": 2}
    with pytest.raises(package.errors.SkipbenchError, match=f"is a row .* give one of {folder}"):
        package.verify(folder.parent, "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_false_alarm_in_10_000_tokens_of_another_correct_engine(dtype: torch.dtype) -> None:
    """Hugging Face's `generate`, 40 prompts in a batch: sums in another order, or in bfloat16."""
    model, other = (
        transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=dtype).eval() for _ in "ab"
    )
    text = tiny()[2].encode(" ".join(TEXTS))
    prompts = [[text[0], *(2 * text[1:])[at : at + 16]] for at in range(40)]
    given = torch.tensor(prompts)
    made = model.generate(
        given, attention_mask=given.ne(-1), max_new_tokens=256, eos_token_id=None, do_sample=False
    )
    outputs, _ = from_records([("batch", {"input_ids": prompts, "sequences": made.tolist()})])
    lm = LM(other, "fused")
    lm.allocate(512)
    judged = [*Oracle(lm, tiny()[2], frozenset()).judge(outputs)]
    assert sum(len(one.ids) for one in judged) == 40 * 256
    found = counts([one.verdict for one in judged])
    assert found.keys() <= {"identical", "tie"}, found
    assert found.get("identical", 0) > 38 or dtype != torch.float32


def test_the_fixture(assert_lossless: Callable[..., Any]) -> None:
    model: LanguageModel = package.load("tiny", "prompt-lookup", dtype="float32")

    def decode(prompt: str) -> list[int]:
        tokens: list[int] = model.generate(prompt, 12).tokens
        return tokens

    result = assert_lossless(model, [TEXT], decode)
    assert result.counts == {"identical": 1}
    with pytest.raises(AssertionError, match="wrong, token 3"):
        assert_lossless(model, [TEXT], lambda p: [*decode(p)[:3], 5, 6, 7])


# Causes: planted faults are wrong where they part from the model, for one of three causes or none


@pytest.mark.parametrize("text", rest_slow(TEXTS, TEXTS[0].__eq__))
def test_a_fault_is_found_where_it_begins_and_its_cause_is_named(text: str) -> None:
    _, lm, tokenizer = tiny()
    prompt = tokenizer.encode(text)
    own = plain(tuple(prompt))

    def judged(ids: list[int], eos: frozenset[int] = frozenset()) -> tuple[int | None, str]:
        (one,) = Oracle(lm, tokenizer, eos).judge([Output(prompt_ids=prompt, ids=ids)])
        assert one.verdict.kind == ("identical" if one.verdict.position is None else "wrong")
        return one.verdict.position, one.verdict.cause.name if one.verdict.cause else ""

    assert judged(own) == (None, "")
    for at in (9, 20, 30):
        assert judged(kept(prompt, at)) == (at, KEPT)
    # a new token for one that was there, which a penalty may have chosen, too
    assert judged(kept(prompt, 4)) == (4, "")
    end = next(i for i in (14, 15, 16, 19) if own.index(own[i]) == i)
    assert judged(own, frozenset([own[end]])) == (end + 1, lossless.END)  # EOS in a draft ignored


@pytest.mark.parametrize("name", ["BOS missing", "no system prompt", "spaces", "another prompt"])
def test_another_form_of_the_prompt_is_named(name: str) -> None:
    """And another prompt is no form of it."""
    (_, lm, tokenizer), text = tiny(), TEXTS[0]
    message, ids = [{"role": "user", "content": text}], tokenizer.encode(text)
    records = {
        "BOS missing": (Output(prompt=text, ids=[]), ids[1:]),
        "no system prompt": (
            Output(messages=message, ids=[]),
            tokenizer.encode(f"\n{text}\n", add_special_tokens=False),
        ),
        "spaces": (Output(prompt=f" {text}  ", ids=[]), ids),
        "another prompt": (
            Output(prompt=text, ids=[]),
            tokenizer.encode("Once upon a time there was a dog named Tim."),
        ),
    }
    record, read = records[name]
    given = replace(record, ids=plain(tuple(read)))
    (found,) = Oracle(lm, tokenizer, frozenset()).judge([given])
    assert found.verdict.kind == "wrong"
    pairs = enumerate(zip(plain(tuple(found.prompt)), found.ids, strict=True))
    assert found.verdict.position == next(i for i, (own, one) in pairs if own != one)
    named = found.verdict.cause.name if found.verdict.cause else ""
    assert (named == PROMPT) == (name != "another prompt")
