"""The loop that every method decodes in, vanilla included.

One round, with K = 3 drafted tokens of which the target accepts two:

    committed          pending   draft       cache rows 0 .. length - 1 committed, then scratch
    t0 t1 t2 t3 t4     t5        a   b   c   propose: a, b, c
                       |         |   |   |
    one full pass over t5        a   b   c   score: logits after each of the four rows
                       a         b   x       the target's choices: a, b accepted, x the bonus
    t0 t1 t2 t3 t4 t5 a b        x           commit: K/V rows of t5, a, b kept; x is pending
"""

import contextlib
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from skipbench.decode.draft import Finish, Process, State
from skipbench.decode.method import Method, MethodCopies
from skipbench.decode.rounds import advance, prefill
from skipbench.decode.sampling import Logprob, Sampler
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.metrics.host import Timed
from skipbench.profile.clock import Clock
from skipbench.runs.record import Round, Verified


@dataclass(frozen=True)
class Generation:
    """Output of one prompt.

    Attributes:
        verified: how rounds were verified, per first round of a change.
        strategy: `late` where rounds were launched before the host read those before, else
            `in_turn`.
    """

    tokens: list[int]
    rounds: list[Round]
    seconds: dict[str, float]
    finish: Finish
    verified: list[tuple[int, Verified]]
    strategy: str


@dataclass(frozen=True)
class Step:
    """Tokens that the prefill or one round emitted.

    Attributes:
        tokens: emitted ids, cut at EOS and at the token limit.
        sources: per token `Draft.sources`, or `draft`; empty for the target.
        round, verified: counts of the round, and its verification; `None` for the prefill.
        passes, plan: forward passes of its draft, and their plan, as of `Draft`.
        logprobs: per token, where they are asked for.
    """

    tokens: list[int]
    sources: list[str]
    round: Round | None = None
    verified: Verified | None = None
    passes: int = 0
    plan: DraftPlan | None = None
    logprobs: list[Logprob] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that the round verified."""
        assert self.round is not None and self.verified is not None
        return 1 + self.round.nodes + self.verified.extra_rows

    def cut(self, count: int) -> "Step":
        """The step with its first `count` tokens alone."""
        parts = self.tokens[:count], self.sources[:count], self.logprobs[:count]
        return replace(self, tokens=parts[0], sources=parts[1], logprobs=parts[2])


@torch.inference_mode()
def generate(
    lm: LM,
    method: Method,
    prompt: list[int],
    max_new_tokens: int,
    eos: frozenset[int] = frozenset(),
    sampler: Sampler | None = None,
    clock: Clock | None = None,
    reference: list[int] | None = None,
) -> Generation:
    """Decodes one prompt.

    Args:
        prompt: at least one token id; with `max_new_tokens` and the draft's scratch it must fit
            into `lm.cache`.
        eos: ids that end the output; the first one emitted is kept.
        sampler: greedy where none is given.
        reference: an output to force upon verification; the target's own choices are computed, and
            a method that learns from them sees them, but they decide nothing.

    Raises:
        NotFinite: NaN or infinite logits.
        SkipbenchError: the cache is too small.
    """
    state = State(lm, prompt, sampler, max_new_tokens, eos, reference=reference)
    clock = clock or Clock(lm.output_device)
    with lm.cache.turn():
        steps = list(_steps(state, method, clock))
        seconds = clock.stop()
    assert state.finish is not None
    _observe(state, method.name, steps, clock)
    how = [step.verified for step in steps]  # of the prefill None
    changes = [(n, now) for n, now in enumerate(how[1:]) if now is not None and now != how[n]]
    rounds = [step.round for step in steps if step.round is not None]
    strategy = "late" if state.late else "in_turn"
    return Generation(state.output, rounds, seconds, state.finish, changes, strategy)


@torch.inference_mode()
def stream(
    lm: LM,
    methods: MethodCopies,
    prompt: list[int],
    max_new_tokens: int,
    eos: frozenset[int] = frozenset(),
    sampler: Sampler | None = None,
    process: Process | None = None,
    top_logprobs: int | None = None,
) -> Generator[Step, None, Finish | None]:
    """Decodes one prompt and yields what every round emitted; arguments and errors as `generate`.

    Several may be interleaved or in threads: each has its rows of the cache and its method, and one
    round runs at a time. Closed early, it leaves the method as after the last round.

    Args:
        methods: gives the method, at the first step.
        process: changes the target's logits before tokens are chosen from them.
        top_logprobs: as for `State`.
    """
    state = State(lm, prompt, sampler, max_new_tokens, eos, process, top_logprobs=top_logprobs)
    with lm.cache.turn(state):
        method = methods.take()
    clock, done = Clock(lm.output_device), list[Step]()
    steps = _steps(state, method, clock)
    try:
        while True:
            with lm.cache.turn(state):
                if (step := next(steps, None)) is None:
                    return state.finish
            done.append(step)
            yield step
    finally:
        methods.give_back(method)
        if len(done) > 1 and process is None and top_logprobs is None:
            with lm.cache.lock:  # it waits for a GPU, where another request may capture a graph
                clock.stop()
            _observe(state, method.name, done, clock)


def _observe(state: State, name: str, steps: Sequence[Step], clock: Clock) -> None:
    """Moves the prices of the model's rounds, for those behind these, and keeps them."""
    lm, lengths = state.lm, itertools.accumulate(len(step.tokens) for step in steps)
    rounds = [
        Timed(state.prompt_length + length - 1, step.rows, step.passes, step.plan, *seconds)
        for length, step, *seconds in zip(
            lengths, steps[1:], clock.draft_s, clock.pass_s, clock.round_s, strict=False
        )
    ]
    if lm.prices.observe(name, rounds) and lm.price_file is not None:
        with contextlib.suppress(SkipbenchError):  # read-only: for this process
            lm.prices.save(lm.price_file)


def _steps(state: State, method: Method, clock: Clock) -> Iterator[Step]:
    """The loop itself."""
    clock.start()
    first, found = prefill(state)
    state.emit([first])
    clock.mark("prefill")
    state.host = state.lm.prices.host_of(method.name)
    method.begin(state)
    clock.mark("adapt")
    yield Step(state.output, [""], logprobs=found)
    state.late = state.reads_late and not method.drafts
    while state.finish is None:
        verification, counts = advance(state, method, clock)
        draft = verification.draft
        how = Verified(  # everything but the number of nodes that the time depends on
            extra_rows=len(draft.tokens) - counts.nodes,
            exit_sublayer=len(draft.early_exit_states[0]) - 1 if draft.early_exit_states else 0,
            tree=draft.parent is not None,
            hidden_states=bool(verification.hidden_states),
            top_tokens=len(verification.top_tokens[0]) if verification.top_tokens else 0,
        )
        emitted = counts.emitted
        names = draft.sources or ["draft"] * len(draft.tokens)
        sources = [names[node] for node in verification.accepted[:emitted]]
        tokens = state.tokens[len(state.tokens) - emitted :]
        sources += [""] * (emitted - len(sources))
        found = verification.logprobs[:emitted]
        yield Step(tokens, sources, counts, how, draft.passes, draft.plan, found)
