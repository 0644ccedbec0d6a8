"""One cell: vanilla and a method take turns on every prompt, and each pair becomes one record."""

import copy
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from skipbench.bench.prompts import Prompt
from skipbench.config.run_config import RunConfig
from skipbench.console import progress
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
from skipbench.runs.state import defer_signals
from skipbench.runs.store import RunStore
from skipbench.scoring.scorers import score

# an output whose last so many tokens repeat with a period of at most a quarter of them is a loop
LOOP_TOKENS = 32
TIE_ULPS = 2


@dataclass
class Bench:
    """A cell that is ready to decode: its model is loaded, and its folder open."""

    config: RunConfig
    lm: LM
    tokenizer: Any
    method: Method
    prompts: list[Prompt]
    eos: frozenset[int]
    store: RunStore
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    samples: list[Sample] = field(init=False)
    """Of the prompts that are decoded."""

    def __post_init__(self) -> None:
        self.samples = self.store.samples()

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def decode_missing(bench: Bench) -> list[Sample]:
    """Decodes the prompts that have no sample yet, stores one record per prompt, and returns all
    samples by index; raises SkipbenchError if one is of another prompt than its row now has.

    A method that carries state across prompts goes on from the state in the last record. A later
    turn of a conversation comes after vanilla's answer to the turn before it, for both arms.
    """
    config, prompts, samples, store = bench.config, bench.prompts, bench.samples, bench.store
    if samples:
        bench.method.load_state_dict(samples[-1].carry)
    followed = {prompt.row.after for prompt in prompts}
    answers = {s.id: bench.text(s.vanilla.tokens) for s in samples if s.id in followed}
    for s in samples:
        if s.index >= len(prompts) or prompts[s.index].following(answers).hash != s.prompt_hash:
            other = f"sample {s.index} ({s.id}) is of another prompt than that row has now"
            advice = "fresh=true sets the run aside and starts anew, results=FOLDER keeps both"
            raise SkipbenchError(f"{store.folder}: {other}; {advice}")
    done, ratios = {s.index for s in samples}, list[float]()
    order = range(len(prompts)) if config.until_ci is None else spread(prompts)
    missing = [i for i in order if i not in done]
    ready = [i for i in missing if prompts[i].row.after is None or prompts[i].row.after in answers]
    with progress("samples", len(prompts), len(samples)) as advance:
        for index in ready[: config.engine.warmup]:
            for arm in (Vanilla(), copy.deepcopy(bench.method)):
                _decode(bench, arm, prompts[index].following(answers), index)
        for index in missing:
            if config.until_ci and half_width([*speedups(samples).values()]) < config.until_ci:
                break
            # a signal waits: both arms of a prompt are measured and written, or neither is
            with defer_signals():
                sample, completion = _pair(bench, prompts[index].following(answers), index)
                store.append(sample, completion)
            if sample.id in followed:
                answers[sample.id] = completion.vanilla
            samples.append(sample)
            ratios += [] if sample.speedup is None else [sample.speedup]
            advance(f"speedup so far {statistics.geometric_mean(ratios):.2f}x" if ratios else "")
    samples.sort(key=lambda s: s.index)
    return samples


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


def arm_order(seed: int, cell: str, index: int) -> list[str]:
    """Order of the arms at a prompt: drawn per block of two prompts by the arguments alone, so that
    a run that goes on keeps it; reversed at the second.
    """
    order = ["method", "vanilla"]
    random.Random(f"{seed}/{cell}/{index // 2}").shuffle(order)
    return order[::-1] if index % 2 else order


def _pair(bench: Bench, prompt: Prompt, index: int) -> tuple[Sample, Completion]:
    row, method, config = prompt.row, bench.method, bench.config
    forced = config.teacher_forced
    order = arm_order(config.seed, bench.store.folder.name, index)
    order = ["vanilla", "method"] if forced else order
    arms = {"vanilla": Vanilla(), "method": method}
    searching = {} if method.searching is None else {"searching": [method.searching]}
    out: dict[str, tuple[Arm, Any]] = {}
    for name in order:
        reference = out["vanilla"][0].tokens if forced and name == "method" else None
        out[name] = _decode(bench, arms[name], prompt, index, reference)
    vanilla, (ours, verified) = out["vanilla"][0], out["method"]
    greedy = config.decoding.temperature == 0
    kind, divergence = _compare(bench.lm, prompt.ids, vanilla, ours, greedy)
    kind = "unchecked" if forced and kind != "failed" else kind  # equal by force
    texts = bench.text(vanilla.tokens), bench.text(ours.tokens)
    scorer = config.dataset.scorer
    scores = {t: score(scorer, t, row.prompt, row.reference) for t in set(texts)}
    scored = dict(zip(arms, map(scores.__getitem__, texts), strict=True))
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
        score=scored if scored["vanilla"] else {},
        groups=row.groups | ({"prompt": "cut"} if prompt.cut else {}),
        carry=method.state_dict(),
        trace=method.trace() | searching | {"verified": verified},
    )
    chars = [len(piece) for piece in map(Detokenizer(bench.text).add, ours.tokens)]
    return sample, Completion(index, row.id, row.prompt, row.reference, *texts, chars)


def _decode(
    bench: Bench, method: Method, prompt: Prompt, index: int, reference: list[int] | None = None
) -> tuple[Arm, Any]:
    """The arm, and how its rounds were verified: `[first round, *Verified]` per change."""
    lm, config, meter = bench.lm, bench.config, bench.meter
    clock, limit = Clock(lm.output_device), config.dataset.max_new_tokens
    # Both arms draw with one seed: a method without drafts then emits vanilla's very tokens.
    sampler = Sampler(**asdict(config.decoding), seed=config.seed * 1_000_003 + index)
    meter.start()
    try:
        out = generate(lm, method, prompt.ids, limit, bench.eos, sampler, clock, reference)
    except NotFinite as error:
        return Arm([], [], Seconds(0, 0, 0, 0, 0), "failed", str(error)), []
    joules, seconds = meter.stop(), Seconds(**{k: round(v, 7) for k, v in out.seconds.items()})
    joules = None if joules is None else round(joules, 6)
    measured = looped(out.tokens), [round(t, 6) for t in clock.round_s], joules
    arm = Arm(out.tokens, out.rounds, seconds, out.finish, None, *measured)
    return arm, [[number, *how] for number, how in out.verified]


def looped(tokens: list[int]) -> bool:
    """True if the last 32 tokens repeat with a period of at most 8."""
    tail, periods = tokens[-LOOP_TOKENS:], range(1, LOOP_TOKENS // 4 + 1)
    return len(tail) == LOOP_TOKENS and any(tail[p:] == tail[:-p] for p in periods)


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
