"""One arm of a row: a method with its prompts and its record, a prompt decoded once, and the sample
of it beside vanilla.
"""

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any, NamedTuple

from skipbench.bench.prompts import Prompt
from skipbench.config.run_config import RunConfig
from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.lossless import Kind, compare
from skipbench.decode.method import Method
from skipbench.decode.rounds import NotFinite
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.metrics.prices import price_key
from skipbench.profile.clock import Clock
from skipbench.profile.peak import PeakMemory
from skipbench.runs.record import Arm, Completion, Divergence, Lossless, Sample, Seconds
from skipbench.runs.store import RunStore
from skipbench.scoring.scorers import score

# an output whose last so many tokens repeat with a period of at most a quarter of them is a loop
LOOP_TOKENS = 32
RECORDED: dict[Kind, Lossless] = {"tie": "tie", "wrong": "diverged", "unchecked": "unchecked"}
"""Kinds of a verdict in the words of the records."""


@dataclass
class Bench:
    """One arm of a row, ready to decode: the model is loaded, and the arm's folder open."""

    config: RunConfig
    lm: LM
    tokenizer: Any
    method: Method
    prompts: list[Prompt]
    eos: frozenset[int]
    store: RunStore
    others: bool = False
    """True if other arms go on where this one fails."""
    error: Exception | None = None
    """Of the method, which ended this arm."""
    samples: list[Sample] = field(init=False)
    """Of the prompts that are decoded."""
    done: set[int] = field(init=False)
    """Their indices."""
    peak_bytes: int = 0
    """Most memory of this process, or of its GPUs, while this arm decoded."""
    answers: dict[str, str] = field(default_factory=dict)
    """Vanilla's answers, by the row that a later turn comes after."""
    setup_s: float = 0.0
    """Seconds that the method was set up in; 0 once a sample has them."""

    def __post_init__(self) -> None:
        """Raises SkipbenchError where a sample is of another prompt than its row now has."""
        self.prices = self.lm.prices.own()  # the passes are those that this arm measures
        self.samples = self.store.samples()
        self.done = {s.index for s in self.samples}
        if self.samples:
            self.method.load_state_dict(self.samples[-1].carry)
        self.followed = {prompt.example.after for prompt in self.prompts}
        for s in self.samples:
            if s.id in self.followed:
                self.answers[s.id] = self.text(s.vanilla.tokens)
        for s in self.samples:
            if s.index >= len(self.prompts) or self.prompt(s.index).hash != s.prompt_hash:
                other = f"sample {s.index} ({s.id}) is of another prompt than that row has now"
                advice = "fresh=true sets the run aside and starts anew, results=FOLDER keeps both"
                raise SkipbenchError(f"{self.store.folder}: {other}; {advice}")

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def prompt(self, index: int) -> Prompt:
        """The prompt, after vanilla's answers to the turns before it."""
        return self.prompts[index].following(self.answers)

    def prepare(self) -> None:
        """The method measures what it needs of the machine for prompts of these lengths."""
        lengths = defaultdict[str, list[int]](list)
        for prompt in self.prompts:
            lengths[price_key(prompt.expected)].append(prompt.expected)
        self.lm.prices = self.prices
        began = time.perf_counter()
        for of_class in lengths.values():
            self.lm.cache.length = median_low(of_class)
            self.method.prepare(State(self.lm, [0] * (self.lm.cache.length + 1)))
        self.lm.cache.length = 0
        self.setup_s += time.perf_counter() - began

    def add(self, sample: Sample, completion: Completion) -> None:
        """Stores a sample."""
        self.store.append(sample, completion)
        if sample.id in self.followed:
            self.answers[sample.id] = completion.vanilla
        self.samples.append(sample)
        self.done.add(sample.index)

    def decode(
        self, method: Method, prompt: Prompt, index: int, reference: list[int] | None = None
    ) -> "Decoded":
        """Decodes a prompt by the arm's method, or by vanilla for it; `reference` is an output to
        force upon verification.
        """
        lm, config = self.lm, self.config
        clock, limit = Clock(lm.output_device), config.dataset.max_new_tokens
        # All arms draw with one seed: a method without drafts then emits vanilla's very tokens.
        sampler = Sampler(**asdict(config.decoding), seed=config.seed * 1_000_003 + index)
        lm.prices = self.prices
        memory = PeakMemory({*lm.devices, lm.input_device, lm.output_device})
        try:
            out = generate(lm, method, prompt.ids, limit, self.eos, sampler, clock, reference)
        except NotFinite as error:
            return Decoded(Arm([], [], Seconds(0, 0, 0, 0, 0), "failed", str(error)), [])
        seconds = Seconds(**{k: round(v, 7) for k, v in out.seconds.items()})
        measured = looped(out.tokens), [round(t, 6) for t in clock.round_s]
        arm = Arm(out.tokens, out.rounds, seconds, out.finish, None, *measured, out.strategy)
        verified = [[number, *how] for number, how in out.verified]
        return Decoded(arm, verified, memory.peak_bytes())


class Decoded(NamedTuple):
    """A prompt decoded once."""

    arm: Arm
    verified: list[Any]
    """How its rounds were verified: `[first round, *Verified]` per change."""
    peak_bytes: int = 0


def sample_of(
    bench: Bench, prompt: Prompt, index: int, order: list[str], vanilla: Arm, ours: Decoded
) -> tuple[Sample, Completion]:
    """The record of an arm's part in a turn, and its texts."""
    row, method, config = prompt.example, bench.method, bench.config
    greedy = config.decoding.temperature == 0
    kind, divergence = _compare(bench.lm, prompt.ids, vanilla, ours.arm, greedy)
    if config.teacher_forced and kind != "failed":
        kind = "unchecked"  # equal by force
    texts = bench.text(vanilla.tokens), bench.text(ours.arm.tokens)
    scorer = config.dataset.scorer
    scores = {t: score(scorer, t, row.prompt, row.reference) for t in set(texts)}
    scored = dict(zip(("vanilla", "method"), map(scores.__getitem__, texts), strict=True))
    more = {"setup_s": [round(bench.setup_s, 3)]} if bench.setup_s else {}
    bench.setup_s = 0.0
    sample = Sample(
        index=index,
        id=row.id,
        prompt_hash=prompt.hash,
        prompt_tokens=len(prompt.ids),
        order=order,
        vanilla=vanilla,
        method=ours.arm,
        lossless=kind,
        divergence=divergence,
        skip=str(method.skip),
        score=scored if scored["vanilla"] else {},
        groups=row.groups | ({"prompt": "cut"} if prompt.cut else {}),
        carry=method.state_dict(),
        trace=method.trace() | more | {"verified": ours.verified},
        question=row.question,
    )
    return sample, Completion(index, row.id, row.prompt, row.reference, *texts)


def looped(tokens: list[int]) -> bool:
    """True if the last 32 tokens repeat with a period of at most 8."""
    tail, periods = tokens[-LOOP_TOKENS:], range(1, LOOP_TOKENS // 4 + 1)
    return len(tail) == LOOP_TOKENS and any(tail[p:] == tail[:-p] for p in periods)


def _compare(
    lm: LM, prompt: list[int], vanilla: Arm, ours: Arm, greedy: bool
) -> tuple[Lossless, Divergence | None]:
    """The verdict on an arm beside vanilla, as records have it."""
    if "failed" in (vanilla.finish, ours.finish):
        return "failed", None
    if not greedy:
        return "sampled", None
    verdict = compare(lm, prompt, vanilla.tokens, ours.tokens)
    if verdict.position is None:
        return "identical", None
    if verdict.wanted is None or verdict.given is None:  # no rule of the loop allows that
        return "diverged", Divergence(verdict.position, -1, -1, 0.0)
    tokens, error = (verdict.wanted, verdict.given), verdict.error or None
    return RECORDED[verdict.kind], Divergence(verdict.position, *tokens, verdict.gap, error)
