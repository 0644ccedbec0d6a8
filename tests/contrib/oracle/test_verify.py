"""Verdicts on outputs, and the command `verify`."""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Command
from msgspec.structs import replace
from planted import TEXTS, TINY, plain, tiny

import skipbench as package
from skipbench.bench.prompts import encode
from skipbench.cli import pytest_plugin
from skipbench.config.compose import compose
from skipbench.contrib.oracle.check import check, counts
from skipbench.contrib.oracle.judge import Judged, Oracle
from skipbench.contrib.oracle.outputs import Output, from_records
from skipbench.contrib.oracle.prompts import prompt_ids
from skipbench.data.rows import Example
from skipbench.decode import lossless
from skipbench.decode.lossless import TIE_ULPS, Verdict
from skipbench.errors import SkipbenchError
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


def test_ids_and_text_of_the_plain_output_are_identical() -> None:
    own, tokenizer = plain(tuple(ids())), tiny()[2]
    assert judge(ids=own).verdict.kind == "identical"
    assert judge(text=tokenizer.decode(own)).verdict.kind == "identical"
    assert judge(text=tokenizer.decode(own).strip()).verdict.kind == "identical"


def test_a_text_spelt_with_other_tokens_is_the_same_text() -> None:
    """One token for two: the tokenizer's own spelling is another than the output's."""
    _, lm, tokenizer = tiny()
    own = plain(tuple(ids()))
    oracle = Oracle(lm, tokenizer, frozenset())
    split = [i for i, token in enumerate(own) if len(tokenizer.decode([token])) > 3][2]
    word = tokenizer.decode([own[split]])
    letters = [
        t for part in (word[:2], word[2:]) for t in tokenizer.encode(part, add_special_tokens=False)
    ]
    assert len(letters) > 1
    spelt = [*own[:split], *letters, *own[split + 1 :]]
    assert tokenizer.decode(spelt) == tokenizer.decode(own)
    output = Output(prompt=TEXT, text=tokenizer.decode(own))
    found, verdict, _ = oracle._spelt(output, ids(), spelt)
    assert verdict.kind == "identical" and found == own


def test_a_wrong_token_has_position_logits_and_gap() -> None:
    own = plain(tuple(ids()))
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


def test_a_text_that_lost_spaces_is_wrong_and_no_cause_is_made_up() -> None:
    text = tiny()[2].decode(plain(tuple(ids())))
    found = judge(text=text.replace(" ", "  ", 8).replace("  ", " ", 3)).verdict
    assert found.kind == "wrong" and found.cause is None


@torch.inference_mode()
def test_in_low_precision_the_gap_of_a_tie_is_within_the_rounding() -> None:
    low = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.bfloat16).eval()
    lm, prompt = LM(low, "fused"), ids()
    own = check(lm, prompt, plain(tuple(prompt)))[1][:9]
    wide = lm.float32_logits(prompt + own[:8])
    assert wide is not None
    order = wide[0].argsort(descending=True).tolist()
    for other in order[1:4]:
        verdict, _ = check(lm, prompt, [*own[:8], other])
        gap = float(wide[0][order[0]] - wide[0][other])
        assert verdict.gap == pytest.approx(gap, abs=1e-4) and verdict.bound is not None
        assert verdict.kind == ("tie" if gap <= verdict.bound else "wrong")


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


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lm, _ = tiny()
    own = plain(tuple(ids()))[:9]
    _, best = check(lm, ids(), own)
    monkeypatch.setattr(lossless, "BLOCK", 4 * 2048)
    assert check(lm, ids(), own)[1] == best
    assert check(lm, ids(), own, own=True)[1] == best


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


def test_messages_of_a_model_without_a_template_are_read_as_generate_writes_them() -> None:
    tokenizer = copy(tiny()[2])
    tokenizer.chat_template = None
    said = [{"role": "user", "content": content} for content in ("Once", "The ball")]
    found = prompt_ids(tokenizer, Output(messages=said, ids=[1]), "none")
    assert found == tokenizer.encode("Once\n\nThe ball")
    with pytest.raises(SkipbenchError, match="no chat template for it; give the prompt as ids"):
        prompt_ids(tokenizer, Output(messages=said, ids=[1]), "template")


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
    assert refused.returncode == 2 and "wanted wrong, unchecked or tie" in refused.stderr


def test_ctrl_c_keeps_what_is_judged(
    skipbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Oracle._one

    def interrupted(oracle: Oracle, output: Output, prompt: list[int]) -> Judged:
        if output.id == "b":
            raise KeyboardInterrupt
        return one(oracle, output, prompt)

    monkeypatch.setattr(Oracle, "_one", interrupted)
    path = tmp_path / "v.json"
    done = skipbench("verify", str(written(tmp_path)), "model=tiny", f"json={path}")
    assert done.returncode == 130 and "stopped; 1 of 2" in done.stderr
    assert "1 of 2 outputs" in done.stdout
    assert len(json.loads(path.read_text())["verdicts"]) == 1


def test_both_turns_of_a_run_are_read(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    turns = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    path.write_text(json.dumps(turns))
    small = [f"dataset.path={path}", "dataset.max_new_tokens=6", f"results={tmp_path}"]
    run_cell(compose(["dataset=specbench", "dataset.prompt=spec-bench", "method=vanilla", *small]))
    (folder,) = run_folders(tmp_path)
    assert package.verify(folder, "tiny").counts == {"identical": 2}


@pytest.mark.parametrize("chat", ["none", "vicuna", "template"])
@pytest.mark.parametrize("longest", [500, 20])
def test_the_prompt_of_a_later_turn_is_found_by_its_hash(chat: str, longest: int) -> None:
    """Whole, and cut on the left."""
    rows = [Example("q", TEXT, {}, {}), Example("q/2", "More.", {}, {}, after="q")]
    made = encode(rows, tiny()[2], longest + 8, 8, "left", chat=chat)[1].following({"q": " Well. "})
    assert bool(made.cut) == (longest == 20)
    known = {"prompt_hash": made.hash, "prompt_tokens": len(made.ids)}
    output = Output(prompt="More.", ids=[], turns=[(TEXT, " Well. ")], **known)  # type: ignore[arg-type]  # of two types
    assert prompt_ids(tiny()[2], output, "none") == made.ids
    with pytest.raises(SkipbenchError, match="another prompt"):
        prompt_ids(tiny()[2], replace(output, prompt="Less."), "none")


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
