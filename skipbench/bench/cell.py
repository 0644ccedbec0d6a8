"""One cell: vanilla and a method take turns on every prompt, and each pair becomes one record."""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipbench.bench.order import narrow, spread
from skipbench.bench.prompts import Prompt
from skipbench.decode.answer import Detokenizer
from skipbench.decode.loop import NotFinite, generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.lm.float32 import float32_logits
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla
from skipbench.profile.clock import Clock
from skipbench.profile.energy import EnergyMeter
from skipbench.runs.completions import Completion
from skipbench.runs.record import Arm, Divergence, Lossless, Sample, Seconds
from skipbench.runs.signals import defer_signals
from skipbench.runs.store import RunStore
from skipbench.scoring.scorers import score

# an output whose last so many tokens repeat with a period of at most a quarter of them is a loop
LOOP_TOKENS = 32
TIE_ULPS = 2


@dataclass(frozen=True)
class Settings:
    """How the prompts of a cell are decoded; `temperature`, `top_p`, `top_k` as in `Sampler`."""

    max_new_tokens: int
    eos: frozenset[int]
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    scorer: str = "none"
    warmup: int = 2
    until_ci: float | None = None
    """No more prompts once `half_width` of the speedup is below this."""


def run_cell(
    lm: LM,
    tokenizer: Any,
    method: Method,
    prompts: list[Prompt],
    settings: Settings,
    store: RunStore,
    progress: Callable[[Sample], None],
    meter: EnergyMeter | None = None,
) -> list[Sample]:
    """Decodes what `store` does not hold yet, appends one record per prompt, and returns all
    records.

    Which arm goes first is balanced in blocks of two prompts (`arm_order`). A method that carries
    state across prompts goes on from the state in the last record. A later turn of a conversation
    comes after vanilla's answer to the turn before it, for both arms.

    Raises:
        SkipbenchError: a record is of another prompt than its row now has.
    """
    samples = store.samples()
    done = {s.index for s in samples}
    order = range(len(prompts)) if settings.until_ci is None else spread(prompts)
    missing = [i for i in order if i not in done]
    if samples:
        method.load_state_dict(samples[-1].carry)
    followed = {prompt.row.after for prompt in prompts}
    answers = {s.id: _answer(tokenizer, s) for s in samples if s.id in followed}
    for s in samples:
        if s.index >= len(prompts) or prompts[s.index].following(answers).hash != s.prompt_hash:
            raise SkipbenchError(
                f"{store.folder}: sample {s.index} ({s.id}) is of another prompt than that row has "
                "now; fresh=true sets the run aside and starts anew, results=FOLDER keeps both"
            )
    ready = [i for i in missing if prompts[i].row.after is None or prompts[i].row.after in answers]
    meter = meter or EnergyMeter((), "unknown")
    for index in ready[: settings.warmup]:
        for arm in (Vanilla(), copy.deepcopy(method)):
            _decode(lm, arm, prompts[index].following(answers), index, settings, meter)
    for index in missing:
        if narrow(samples, settings.until_ci):
            break
        # a signal waits: both arms of a prompt are measured and written, or neither is
        with defer_signals():
            arms = arm_order(settings.seed, store.folder.name, index)
            sample, completion = _pair(
                lm,
                tokenizer,
                method,
                prompts[index].following(answers),
                index,
                settings,
                arms,
                meter,
            )
            store.append(sample, completion)
        if sample.id in followed:
            answers[sample.id] = _answer(tokenizer, sample)
        samples.append(sample)
        progress(sample)
    return sorted(samples, key=lambda s: s.index)


def _answer(tokenizer: Any, sample: Sample) -> str:
    text: str = tokenizer.decode(sample.vanilla.tokens, skip_special_tokens=True)
    return text


def arm_order(seed: int, cell: str, index: int) -> list[str]:
    """Order of the arms at a prompt: drawn per block of two prompts, reversed at the second.

    Depends on the arguments alone, so a run that goes on after a stop keeps it.
    """
    order = ["method", "vanilla"]
    random.Random(f"{seed}/{cell}/{index // 2}").shuffle(order)
    return order[::-1] if index % 2 else order


def _pair(
    lm: LM,
    tokenizer: Any,
    method: Method,
    prompt: Prompt,
    index: int,
    settings: Settings,
    order: list[str],
    meter: EnergyMeter,
) -> tuple[Sample, Completion]:
    arms: dict[str, Method] = {"vanilla": Vanilla(), "method": method}
    searching = method.searching
    out = {name: _decode(lm, arms[name], prompt, index, settings, meter) for name in order}
    vanilla, (ours, verified) = out["vanilla"][0], out["method"]
    kind, divergence = _compare(lm, prompt.ids, vanilla, ours, settings.temperature == 0)
    texts = {name: tokenizer.decode(out[name][0].tokens, skip_special_tokens=True) for name in arms}
    scores: dict[str, dict[str, float]] = {}
    for name, text in texts.items():
        same = name == "method" and text == texts["vanilla"]
        scores[name] = (
            scores["vanilla"]
            if same
            else score(settings.scorer, text, prompt.row.prompt, prompt.row.reference)
        )
    sample = Sample(
        index=index,
        id=prompt.row.id,
        prompt_hash=prompt.hash,
        prompt_tokens=len(prompt.ids),
        order=order,
        vanilla=vanilla,
        method=ours,
        lossless=kind,
        divergence=divergence,
        skip=str(method.skip),
        score=scores if scores["vanilla"] else {},
        groups=prompt.row.groups | ({"prompt": "cut"} if prompt.cut else {}),
        carry=method.state_dict(),
        trace=method.trace()
        | ({} if searching is None else {"searching": [searching]})
        | {"verified": verified},
    )
    row = prompt.row
    chars = _token_chars(tokenizer, ours.tokens)
    return sample, Completion(
        index, row.id, row.prompt, row.reference, texts["vanilla"], texts["method"], chars
    )


def _token_chars(tokenizer: Any, tokens: list[int]) -> list[int]:
    """How many characters of the text each token completes."""
    text = Detokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)))
    return [len(text.add(token)) for token in tokens]


def _decode(
    lm: LM, method: Method, prompt: Prompt, index: int, settings: Settings, meter: EnergyMeter
) -> tuple[Arm, list[Any]]:
    """The arm, and how its rounds were verified: `[first round, *Verified]` per change."""
    # Both arms draw with one seed: a method without drafts then emits vanilla's very tokens.
    sampler = Sampler(
        settings.temperature, settings.top_p, settings.top_k, seed=settings.seed * 1_000_003 + index
    )
    clock, limit = Clock(lm.output_device), settings.max_new_tokens
    meter.start()
    try:
        out = generate(lm, method, prompt.ids, limit, settings.eos, sampler, clock)
    except NotFinite as error:
        return Arm([], [], Seconds(0, 0, 0, 0, 0), "failed", str(error)), []
    joules = meter.stop()
    arm = Arm(
        out.tokens,
        out.rounds,
        Seconds(**{k: round(v, 7) for k, v in out.seconds.items()}),
        out.finish,
        looped=looped(out.tokens),
        round_s=[round(s, 6) for s in clock.round_s],
        joules=None if joules is None else round(joules, 6),
    )
    return arm, [[number, *how] for number, how in out.verified]


def looped(tokens: list[int]) -> bool:
    """Whether the last 32 tokens repeat with a period of at most 8."""
    tail = tokens[-LOOP_TOKENS:]
    return len(tail) == LOOP_TOKENS and any(
        tail[p:] == tail[:-p] for p in range(1, LOOP_TOKENS // 4 + 1)
    )


@torch.inference_mode()
def _scored(lm: LM, tokens: list[int]) -> Tensor:
    """Logits [V] behind `tokens`: in float32 arithmetic, which does not share the rounding that
    parted the outputs.
    """
    logits = float32_logits(lm.model, tokens)
    return lm.prefill(tokens)[0].float() if logits is None else logits


def _compare(
    lm: LM, prompt: list[int], vanilla: Arm, ours: Arm, greedy: bool
) -> tuple[Lossless, Divergence | None]:
    """Whether the method gave vanilla's tokens, and where the outputs part."""
    if "failed" in (vanilla.finish, ours.finish):
        return "failed", None
    if not greedy:
        return "sampled", None
    if vanilla.tokens == ours.tokens:
        return "identical", None
    pairs = list(zip(vanilla.tokens, ours.tokens, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if at == len(pairs):  # one is a prefix of the other: no rule of the loop allows that
        return "diverged", Divergence(at, -1, -1, 0.0)
    a, b = pairs[at]
    try:
        logits = _scored(lm, prompt + vanilla.tokens[:at])
    except Exception as error:  # such as memory: the sample is measured, its check is not made
        return "unchecked", Divergence(at, a, b, None, f"{type(error).__name__}: {error}")
    gap, largest = float(logits[a] - logits[b]), float(logits.abs().max())
    if not math.isfinite(gap) or not math.isfinite(largest):
        return "unchecked", Divergence(at, a, b, None, "logits in float32 are not finite")
    ulp = torch.finfo(lm.dtype).eps * largest
    return ("tie" if abs(gap) <= TIE_ULPS * ulp else "diverged"), Divergence(at, a, b, gap)
