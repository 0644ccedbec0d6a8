"""The loop that every method decodes in, vanilla included.

One round, with K = 3 drafted tokens of which the target accepts two:

    committed          pending   draft       cache rows 0 .. length - 1 committed, then scratch
    t0 t1 t2 t3 t4     t5        a   b   c   propose: a, b, c
                       |         |   |   |
    one full pass over t5        a   b   c   score: logits after each of the four rows
                       a         b   x       the target's choices: a, b accepted, x the bonus
    t0 t1 t2 t3 t4 t5 a b        x           commit: K/V rows of t5, a, b kept; x is pending
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from skipbench.decode.draft import Draft, Finish, Launched, Process, State, Verification
from skipbench.decode.drafting import read_later
from skipbench.decode.method import Method, MethodCopies
from skipbench.decode.sampling import Logprob, Sampler, choices, finite_best, logprobs
from skipbench.decode.verify import verify_greedy, verify_sampling
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.profile.clock import Clock
from skipbench.profile.rows import price_key, time_again
from skipbench.runs.record import Round, Verified


class NotFinite(FloatingPointError):
    """The target's logits are NaN or infinite; the sample cannot go on."""


@dataclass(frozen=True)
class Generation:
    """Output of one prompt; `verified`: how rounds were verified, per first round of a change."""

    tokens: list[int]
    rounds: list[Round]
    seconds: dict[str, float]
    finish: Finish
    verified: list[tuple[int, Verified]]


@dataclass(frozen=True)
class Step:
    """Tokens that the prefill or one round emitted.

    Attributes:
        tokens: emitted ids, cut at EOS and at the token limit.
        sources: per token `Draft.sources`, or `draft`; empty for the target.
        round, verified: counts of the round, and its verification; `None` for the prefill.
        logprobs: per token, where they are asked for.
        method: what drafted, as it is after the step.
    """

    tokens: list[int]
    sources: list[str]
    round: Round | None = None
    verified: Verified | None = None
    logprobs: list[Logprob] = field(default_factory=list)
    method: Method | None = field(default=None, compare=False, repr=False)

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
    how = [step.verified for step in steps]  # of the prefill None
    changes = [(n, now) for n, now in enumerate(how[1:]) if now is not None and now != how[n]]
    rounds = [step.round for step in steps if step.round is not None]
    return Generation(state.output, rounds, seconds, state.finish, changes)


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
    round runs at a time. Closed early, it leaves the method as after the last round. Prices that
    the model has are timed again by these rounds.

    Args:
        methods: gives the method, at the first step.
        process: changes the target's logits before tokens are chosen from them.
        top_logprobs: as for `State`.
    """
    state = State(lm, prompt, sampler, max_new_tokens, eos, process, top_logprobs=top_logprobs)
    with lm.cache.turn(state):
        method = methods.take()
    clock, rows = Clock(lm.output_device), list[int]()
    steps = _steps(state, method, clock)
    try:
        while True:
            with lm.cache.turn(state):
                if (step := next(steps, None)) is None:
                    return state.finish
            if step.round is not None and step.verified is not None:
                whole = not step.verified.exit_sublayer  # an early exit spares a part of the pass
                rows.append(whole * (1 + step.round.nodes + step.verified.extra_rows))
            yield step
    finally:
        methods.give_back(method)
        key = price_key(len(state.tokens))
        if rows and process is None and top_logprobs is None and key == price_key(len(prompt)):
            clock.stop()
            time_again(lm, key, zip(rows, clock.verify_s, strict=False))  # one may be cut short


def _steps(state: State, method: Method, clock: Clock) -> Iterator[Step]:
    """The loop itself."""
    clock.start()
    first, found = _prefill(state)
    state.emit([first])
    clock.mark("prefill")
    method.begin(state)
    clock.mark("adapt")
    yield Step(state.output, [""], logprobs=found, method=method)
    while state.finish is None:
        verification, counts = decode_round(state, method, clock)
        draft = verification.draft
        how = Verified(  # everything but the number of nodes that the time depends on
            extra_rows=len(draft.tokens) - counts.nodes,
            exit_sublayer=len(draft.early_exit_states[0]) - 1 if draft.early_exit_states else 0,
            tree=draft.parent is not None,
            hidden_states=bool(verification.hidden_states),
            top_tokens=method.needs_top_tokens,
        )
        emitted = counts.emitted
        names = draft.sources or ["draft"] * len(draft.tokens)
        sources = [names[node] for node in verification.accepted[:emitted]]
        tokens = state.tokens[len(state.tokens) - emitted :]
        sources += [""] * (emitted - len(sources))
        yield Step(tokens, sources, counts, how, verification.logprobs[:emitted], method)


def decode_round(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
    """One round after a prefilled prompt, its phases marked on the clock."""
    plain = state.process is None and not state.reference and state.top_logprobs is None
    chosen = state.sampler.greedy and plain and not method.drafts
    if chosen and state.lm.output_device.type == "cuda":
        return _round_read_late(state, clock)
    draft = method.propose(state, state.remaining - 1)
    clock.mark("draft")
    verification = _verify(state, draft, method.needs_hidden_states, method.needs_top_tokens)
    clock.mark("verify")
    emitted = state.commit(verification)
    counts = Round(
        steps=draft.steps,
        nodes=len(draft.tokens) if draft.num_verifiable is None else draft.num_verifiable,
        accepted=len(verification.accepted),
        chain=verification.chain,
        emitted=emitted,
    )
    clock.mark("other")
    method.adapt(state, verification)
    clock.mark("adapt")
    return verification, counts


def _round_read_late(state: State, clock: Clock) -> tuple[Verification, Round]:
    """A round that drafts nothing, on a GPU, which goes on meanwhile: before the host reads the
    token, the pass of that token is launched. Its keys and values are in the scratch row that the
    next round commits; after EOS the pass was for nothing.
    """
    lm, now = state.lm, state.launched
    if now is None or now.switches != lm.cache.switches:
        now = _launch(state, [state.pending], 0, clock)
    clock.mark("other", now.began)  # where the device had nothing to do
    clock.mark("draft", now.began)
    state.launched = _launch(state, now.best, 1, clock) if state.remaining > 1 else None
    best = int(now.read())
    clock.mark("verify", now.ended)
    verification = Verification(Draft(), [], best, [best], [])
    if best < 0:
        state.launched, verification = None, _verify(state, Draft(), False, 0)
    return verification, Round(0, 0, 0, 0, state.commit(verification))


def _launch(state: State, token: list[int] | Tensor, ahead: int, clock: Clock) -> Launched:
    """Starts the pass of a token `ahead` rows behind the committed ones."""
    lm, began = state.lm, clock.moment()
    rows = TokenRows.chain(lm.cache.length + ahead, 1).verified()
    best = finite_best(lm.logits(token, rows))
    read = read_later(best)
    return Launched(best.clamp(min=0), read, lm.cache.switches, began, clock.moment())


def _prefill(state: State) -> tuple[int, list[Logprob]]:
    """Fills the cache with the prompt. Returns the first token of the output."""
    state.lm.cache.length = 0
    draft = Draft()  # an empty one: the bonus alone
    raw = state.lm.prefill(state.tokens)
    logits, best, _ = _choices(state, draft, raw)
    accepted, first = _accept(state, draft, logits, best)
    return first, _logprobs(state, draft, raw, accepted, first)


def _verify(state: State, draft: Draft, keeps_states: bool, top: int) -> Verification:
    """Runs the pending token and the draft through the full model; accepts nodes."""
    hidden_states: list[Tensor] = []
    kept = hidden_states if keeps_states else None
    rows, tokens = draft.token_rows(state.lm.cache.length), [state.pending, *draft.tokens]
    raw = state.lm.score(tokens, rows, draft.early_exit_states, kept)
    logits, best, top_tokens = _choices(state, draft, raw, top)
    if min(best) < 0:  # a rejected row may have reached others
        hidden_states.clear()
        raw = state.lm.score_alone(tokens, rows, kept)
        logits, best, top_tokens = _choices(state, draft, raw, top)
    accepted, bonus = _accept(state, draft, logits, best)
    found = _logprobs(state, draft, raw, accepted, bonus)
    best = [max(0, token) for token in best]
    return Verification(draft, accepted, bonus, best, hidden_states, top_tokens, found)


def _logprobs(
    state: State, draft: Draft, raw: Tensor, accepted: list[int], bonus: int
) -> list[Logprob]:
    """Of the accepted tokens and the bonus, if asked for; `raw`: the model's logits [n + 1, V]."""
    if state.top_logprobs is None:
        return []
    tokens = [*(draft.tokens[node] for node in accepted), bonus]
    return logprobs(raw[[0, *(node + 1 for node in accepted)]], tokens, state.top_logprobs)


def _choices(
    state: State, draft: Draft, logits: Tensor, top: int = 0
) -> tuple[Tensor, list[int], list[list[int]]]:
    """Logits [n + 1, V] to choose from, best tokens (-1: not finite), and `top` best ones."""
    if state.process is not None:
        logits = state.process(state.tokens, draft, logits)
    return logits, *choices(logits, top)


def _accept(state: State, draft: Draft, logits: Tensor, best: list[int]) -> tuple[list[int], int]:
    """Accepted nodes and the bonus. Rows that they do not come from need not be finite."""
    if state.sampler.greedy or state.reference:
        accepted, bonus = verify_greedy(draft, state.forced(draft) or best)
    else:
        accepted, bonus = verify_sampling(draft, logits, state.sampler)
    # no node is accepted after a row that is not finite
    if best[accepted[-1] + 1 if accepted else 0] < 0:
        state.lm.cache.clear(0)
        at = len(state.tokens) + len(accepted)
        raise NotFinite(f"logits are not finite after token {at} of the sequence")
    return accepted, bonus
