"""One arm of a row: a method with its prompts and its record, a prompt decoded once, and judged
beside vanilla.
"""

import time
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

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
from skipbench.profile.clock import Clock
from skipbench.profile.peak import PeakMemory
from skipbench.runs.record import VANILLA, Arm, Divergence, Lossless, Seconds, Turn
from skipbench.runs.store import RunStore, read_turns
from skipbench.scoring.scorers import score as score_text

# an output whose last so many tokens repeat with a period of at most a quarter of them is a loop
LOOP_TOKENS = 32
RECORDED: dict[Kind, Lossless] = {"tie": "tie", "wrong": "diverged", "unchecked": "unchecked"}


@dataclass
class ArmRunner:
    """One arm of a row, ready to decode: the model is loaded, and the arm's folder open."""

    config: RunConfig
    lm: LM
    tokenizer: Any
    method: Method
    prompts: list[Prompt]
    eos: frozenset[int]
    store: RunStore
    others: bool = False  # true if other arms go on where this one fails
    error: Exception | None = None  # of the method, which ended this arm
    turns: list[Turn] = field(init=False)  # of the prompts that are decoded
    done: set[int] = field(init=False)  # their indices
    peak_bytes: int = 0  # most memory of this process, or of its GPUs, while this arm decoded
    answers: dict[str, str] = field(default_factory=dict)  # vanilla's, by id, that turns follow
    setup_s: float = 0.0  # seconds that the method was set up in; 0 once a turn has them

    def __post_init__(self) -> None:
        """Raises SkipbenchError where a turn is of another prompt than its place now has."""
        self.prices = replace(self.lm.prices, host={})  # the host's part is this arm's own
        self.turns = read_turns(self.store.folder)
        self.done = {turn.index for turn in self.turns}
        if self.turns:
            self.method.load_state_dict(self.turns[-1].arms[self.name].carry)
        self.followed = {prompt.example.after for prompt in self.prompts}
        for turn in self.turns:
            if turn.id in self.followed:
                self.answers[turn.id] = self.text(turn.arms[VANILLA].tokens)
        for turn in self.turns[: len(self.prompts)]:
            if self.prompt(turn.index).hash != turn.prompt_hash:
                other = f"turn {turn.index} ({turn.id}) is of another prompt than is there now"
                advice = "fresh=true sets the run aside and starts anew, results=FOLDER keeps both"
                raise SkipbenchError(f"{self.store.folder}: {other}; {advice}")

    @property
    def name(self) -> str:
        """Of the arm in turns."""
        return self.store.folder.name

    @property
    def missing(self) -> list[int]:
        """Places of the prompts that it has to decode."""
        return [at for at in range(len(self.prompts)) if at not in self.done]

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def prompt(self, index: int) -> Prompt:
        """The prompt, after vanilla's answers to the turns before it."""
        return self.prompts[index].following(self.answers)

    def prepare(self) -> None:
        """The method makes what it keeps of the weights, at the prompts' median length."""
        self.lm.prices, began = self.prices, time.perf_counter()
        self.lm.cache.length = median_low(prompt.expected for prompt in self.prompts)
        self.method.prepare(State(self.lm, [0] * (self.lm.cache.length + 1)))
        self.lm.cache.length = 0
        self.setup_s += time.perf_counter() - began

    def add(self, turn: Turn, vanilla: str) -> None:
        """Takes note of a stored turn, in which vanilla wrote this."""
        self.store.beat()
        if turn.id in self.followed:
            self.answers[turn.id] = vanilla
        self.turns.append(turn)
        self.done.add(turn.index)

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
    verified: list[Any]  # how its rounds were verified: `[first round, *Verified]` per change
    peak_bytes: int = 0


def scored(runner: ArmRunner, prompt: Prompt, arm: Arm) -> tuple[Arm, str]:
    """The arm with the scores of its text, and the text."""
    text, example = runner.text(arm.tokens), prompt.example
    score = score_text(runner.config.dataset.scorer, text, example.prompt, example.reference)
    return replace(arm, score=score), text


def judged(runner: ArmRunner, prompt: Prompt, vanilla: Arm, ours: Decoded) -> tuple[Arm, str]:
    """What an arm decoded, beside vanilla's, and what its method tells of it; and its text."""
    method, config = runner.method, runner.config
    greedy = config.decoding.temperature == 0
    kind, divergence = _compare(runner.lm, prompt.ids, vanilla, ours.arm, greedy)
    if config.teacher_forced and kind != "failed":
        kind = "unchecked"  # equal by force
    more = {"setup_s": [round(runner.setup_s, 3)]} if runner.setup_s else {}
    runner.setup_s = 0.0
    arm, text = scored(runner, prompt, ours.arm)
    told = {"skip": str(method.skip), "carry": method.state_dict()}
    trace = method.trace() | more | {"verified": ours.verified}
    return replace(arm, lossless=kind, divergence=divergence, trace=trace, **told), text


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
