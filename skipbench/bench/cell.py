"""One cell: vanilla and a method take turns on every prompt, and each pair becomes one record."""

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from skipbench.bench.prompts import Prompt
from skipbench.decode.answer import Detokenizer
from skipbench.decode.loop import NotFinite, generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.lm.float32 import float32_logits
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.interval import half_width
from skipbench.metrics.summary import speedups
from skipbench.profile.clock import Clock
from skipbench.profile.energy import EnergyMeter
from skipbench.runs.record import Arm, Completion, Divergence, Lossless, Sample, Seconds
from skipbench.runs.signals import defer_signals
from skipbench.runs.store import RunStore
from skipbench.scoring.scorers import score

# an output whose last so many tokens repeat with a period of at most a quarter of them is a loop
LOOP_TOKENS = 32
TIE_ULPS = 2


@dataclass(frozen=True)
class Settings:
    """Decoding of the prompts of a cell; `temperature`, `top_p`, `top_k` as in `Sampler`."""

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
    meter: EnergyMeter = field(default_factory=EnergyMeter)


def run_cell(
    lm: LM,
    tokenizer: Any,
    method: Method,
    prompts: list[Prompt],
    settings: Settings,
    store: RunStore,
    progress: Callable[[Sample], None],
) -> list[Sample]:
    """Decodes the prompts that `store` does not hold yet, appends one record per prompt, and
    returns all records.

    A method that carries state across prompts goes on from the state in the last record. A later
    turn of a conversation comes after vanilla's answer to the turn before it, for both arms.

    Raises:
        SkipbenchError: a record is of another prompt than its row now has.
    """
    if samples := store.samples():
        method.load_state_dict(samples[-1].carry)
    followed = {prompt.row.after for prompt in prompts}
    answers = {s.id: _text(tokenizer, s.vanilla) for s in samples if s.id in followed}
    for s in samples:
        if s.index >= len(prompts) or prompts[s.index].following(answers).hash != s.prompt_hash:
            raise SkipbenchError(
                f"{store.folder}: sample {s.index} ({s.id}) is of another prompt than that row has "
                "now; fresh=true sets the run aside and starts anew, results=FOLDER keeps both"
            )
    done = {s.index for s in samples}
    order = range(len(prompts)) if settings.until_ci is None else spread(prompts)
    missing = [i for i in order if i not in done]
    ready = [i for i in missing if prompts[i].row.after is None or prompts[i].row.after in answers]
    for index in ready[: settings.warmup]:
        for arm in (Vanilla(), copy.deepcopy(method)):
            _decode(lm, arm, prompts[index].following(answers), index, settings)
    for index in missing:
        if (limit := settings.until_ci) and half_width(list(speedups(samples).values())) < limit:
            break
        prompt = prompts[index].following(answers)
        # a signal waits: both arms of a prompt are measured and written, or neither is
        with defer_signals():
            arms = arm_order(settings.seed, store.folder.name, index)
            sample, completion = _pair(lm, tokenizer, method, prompt, index, settings, arms)
            store.append(sample, completion)
        if sample.id in followed:
            answers[sample.id] = completion.vanilla
        samples.append(sample)
        progress(sample)
    return sorted(samples, key=lambda s: s.index)


def spread(prompts: Sequence[Prompt]) -> list[int]:
    """Indices with the groups in turns, but the turns of a conversation together."""
    seen, ranks = Counter[str](), list[int]()
    for prompt in prompts:
        if prompt.row.after is None:
            group = str(sorted((k, v) for k, v in prompt.row.groups.items() if k != "turn"))
            rank = seen[group]
            seen[group] += 1
        ranks.append(rank)  # a later turn has its first turn's
    return sorted(range(len(prompts)), key=lambda i: ranks[i])


def _text(tokenizer: Any, arm: Arm) -> str:
    return str(tokenizer.decode(arm.tokens, skip_special_tokens=True))


def arm_order(seed: int, cell: str, index: int) -> list[str]:
    """Order of the arms at a prompt: drawn per block of two prompts by the arguments alone, so that
    a run that goes on keeps it; reversed at the second.
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
) -> tuple[Sample, Completion]:
    """Decodes one prompt with both arms."""
    row = prompt.row
    arms: dict[str, Method] = {"vanilla": Vanilla(), "method": method}
    searching = {} if method.searching is None else {"searching": [method.searching]}
    out = {name: _decode(lm, arms[name], prompt, index, settings) for name in order}
    vanilla, (ours, verified) = out["vanilla"][0], out["method"]
    kind, divergence = _compare(lm, prompt.ids, vanilla, ours, settings.temperature == 0)
    theirs, text = _text(tokenizer, vanilla), _text(tokenizer, ours)
    scored = {t: score(settings.scorer, t, row.prompt, row.reference) for t in {theirs, text}}
    sample = Sample(
        index=index,
        id=row.id,
        prompt_hash=prompt.hash,
        prompt_tokens=len(prompt.ids),
        order=order,
        vanilla=vanilla,
        method=ours,
        lossless=kind,
        divergence=divergence,
        skip=str(method.skip),
        score={"vanilla": scored[theirs], "method": scored[text]} if scored[theirs] else {},
        groups=row.groups | ({"prompt": "cut"} if prompt.cut else {}),
        carry=method.state_dict(),
        trace=method.trace() | searching | {"verified": verified},
    )
    stream = Detokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)))
    chars = [len(stream.add(token)) for token in ours.tokens]
    return sample, Completion(index, row.id, row.prompt, row.reference, theirs, text, chars)


def _decode(
    lm: LM, method: Method, prompt: Prompt, index: int, settings: Settings
) -> tuple[Arm, list[Any]]:
    """The arm, and how its rounds were verified: `[first round, *Verified]` per change."""
    s, clock = settings, Clock(lm.output_device)
    # Both arms draw with one seed: a method without drafts then emits vanilla's very tokens.
    sampler = Sampler(s.temperature, s.top_p, s.top_k, seed=s.seed * 1_000_003 + index)
    s.meter.start()
    try:
        out = generate(lm, method, prompt.ids, s.max_new_tokens, s.eos, sampler, clock)
    except NotFinite as error:
        return Arm([], [], Seconds(0, 0, 0, 0, 0), "failed", str(error)), []
    joules = s.meter.stop()
    arm = Arm(
        out.tokens,
        out.rounds,
        Seconds(**{k: round(v, 7) for k, v in out.seconds.items()}),
        out.finish,
        looped=looped(out.tokens),
        round_s=[round(seconds, 6) for seconds in clock.round_s],
        joules=None if joules is None else round(joules, 6),
    )
    return arm, [[number, *how] for number, how in out.verified]


def looped(tokens: list[int]) -> bool:
    """True if the last 32 tokens repeat with a period of at most 8."""
    tail = tokens[-LOOP_TOKENS:]
    return len(tail) == LOOP_TOKENS and any(
        tail[p:] == tail[:-p] for p in range(1, LOOP_TOKENS // 4 + 1)
    )


def _compare(
    lm: LM, prompt: list[int], vanilla: Arm, ours: Arm, greedy: bool
) -> tuple[Lossless, Divergence | None]:
    """Compares the tokens of both arms, and finds where they part."""
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
        tokens = prompt + vanilla.tokens[:at]
        with torch.inference_mode():  # in float32: without the rounding that parted the outputs
            wide = float32_logits(lm.model, tokens)
            logits = lm.prefill(tokens)[0].float() if wide is None else wide
    except Exception as error:  # such as memory: the sample is measured, its check is not made
        return "unchecked", Divergence(at, a, b, None, f"{type(error).__name__}: {error}")
    gap, largest = float(logits[a] - logits[b]), float(logits.abs().max())
    if not math.isfinite(gap) or not math.isfinite(largest):
        return "unchecked", Divergence(at, a, b, None, "logits in float32 are not finite")
    ulp = torch.finfo(lm.dtype).eps * largest
    return ("tie" if abs(gap) <= TIE_ULPS * ulp else "diverged"), Divergence(at, a, b, gap)
