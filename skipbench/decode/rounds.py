"""One round of the loop: how a draft is proposed, verified and committed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from skipbench.decode.draft import Ahead, Draft, Launched, State, Verification
from skipbench.decode.draft_pass import read_later
from skipbench.decode.method import Method
from skipbench.decode.sampling import Logprob, choices, finite_best, logprobs
from skipbench.decode.verify import verify_greedy, verify_sampling
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload
from skipbench.profile.clock import PASS, Clock
from skipbench.runs.record import Round

Advance = Callable[[State, Method, Clock], tuple[Verification, Round]]
"""Advances a prefilled prompt by one round, its phases marked on the clock."""


class NotFinite(FloatingPointError):
    """The target's logits are NaN or infinite; the sample cannot go on."""


def strategy_of(state: State, method: Method) -> str:
    """How the next round is advanced, one of `STRATEGIES`: late on a GPU, where the method and the
    engine allow it and nothing but the best token is asked for.
    """
    steps = method.late_steps
    if steps is None or not (state.only_best and state.works_ahead):
        return "in_turn"
    known = not steps or state.launched is not None
    return "late" if known or _take_places(state, state.lm.cache.length, steps) else "in_turn"


def in_turn(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
    """Proposes, verifies, commits, adapts: the host waits for each."""
    state.launched = None  # by a late round before: it is run again
    draft = method.propose(state, state.remaining - 1)
    clock.mark("draft")
    needs = method.needs_hidden_states, method.needs_top_tokens
    verification = _verify(state, draft, *needs, partial(clock.mark, PASS))
    draft = verification.draft
    clock.mark("verify")
    counts = _commit(state, verification)
    clock.mark("other")
    method.adapt(state, verification)
    clock.mark("adapt")
    return verification, counts


def _commit(state: State, verification: Verification) -> Round:
    draft, emitted = verification.draft, state.commit(verification)
    return Round(
        steps=draft.steps,
        nodes=len(draft.tokens) if draft.num_verifiable is None else draft.num_verifiable,
        accepted=len(verification.accepted),
        chain=verification.chain,
        emitted=emitted,
    )


def late(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
    """A round whose draft is empty or a chain of fixed length, on a GPU, which goes on meanwhile:
    before the host reads what was accepted, the next round is launched from the pending token and
    the cache rows that the device knows. After EOS it was for nothing.
    """
    now = state.launched
    if now is None or now.switches != state.lm.cache.switches:
        now = _launch(state, method, clock, min(method.late_steps or 0, state.remaining - 1))
    clock.mark("other", now.began)  # where the device had nothing to do
    clock.mark("draft", now.drafted)
    state.launched = _launch_behind(state, method, clock, now)
    numbers = now.read()
    clock.mark(PASS, now.ended)
    n = len(now.draft.tokens)
    best, draft = numbers[: n + 1], replace(now.draft, tokens=numbers[n + 1 :], unread=None)
    if min(best) < 0:
        state.launched, verification = None, _verify(state, draft)
    else:
        verification = Verification(draft, *verify_greedy(draft, best), best, [])
    counts = _commit(state, verification)
    method.adapt(state, verification)
    return verification, counts


def _launch(state: State, method: Method, clock: Clock, steps: int) -> Launched:
    """Starts a round of so many draft steps at most, from `state.ahead` if it is set."""
    lm, switches, began = state.lm, state.lm.cache.switches, clock.moment()
    draft = method.propose(state, steps) if steps else Draft()
    drafted, rows = clock.moment(), state.rows_behind(0, 1 + len(draft.tokens)).verified()
    token = upload(torch.as_tensor(state.pending_ids), lm.output_device)
    if draft.unread is None:
        best = finite_best(lm.score(token, rows))
        numbers, pending, places = best, best, None
    else:
        best = finite_best(lm.score(torch.cat((token, draft.unread)), rows))
        numbers = torch.cat((best, draft.unread))
        accepted = (draft.unread == best[:-1]).cumprod(0).sum(0, keepdim=True)  # `verify_greedy`
        place = rows.place
        if place is None:
            place = upload(torch.tensor([rows.start]), lm.output_device)
        places = place + accepted + torch.arange(1, 1 + rows.rows, device=lm.output_device)
        pending = best.index_select(0, accepted)
    start = pending.clamp(min=0), places
    return Launched(draft, read_later(numbers), *start, switches, began, drafted, clock.moment())


def _launch_behind(state: State, method: Method, clock: Clock, now: Launched) -> Launched | None:
    """Starts the round after one that the host has not read; `None` where that may leave too few
    tokens for its draft, or the engine must know its cache rows.
    """
    steps, n = method.late_steps, len(now.draft.tokens)
    most = state.lm.cache.length + 1 + n
    if steps is None or state.remaining - 1 - n <= steps:
        return None
    if now.places is not None and not _take_places(state, most, steps):
        return None
    state.ahead = Ahead(now.pending, most, now.places)
    try:
        return _launch(state, method, clock, steps)
    finally:
        state.ahead = None


def _take_places(state: State, most: int, steps: int) -> bool:
    """True if the passes of a round, at cache row `most` or before, read their place."""
    drafted = (TokenRows.chain(row, 1) for row in (most, most + steps - 1))
    return all(map(state.lm.reads_place, (*drafted, TokenRows.chain(most, 1 + steps).verified())))


STRATEGIES: dict[str, Advance] = {"in_turn": in_turn, "late": late}


def prefill(state: State) -> tuple[int, list[Logprob]]:
    """Fills the cache with the prompt. Returns the first token of the output."""
    state.lm.cache.length = 0
    draft = Draft()  # an empty one: the bonus alone
    raw = state.lm.prefill(state.tokens)
    logits, best, _ = _choices(state, draft, raw)
    accepted, first = _accept(state, draft, logits, best)
    return first, _logprobs(state, draft, raw, accepted, first)


def _verify(
    state: State,
    draft: Draft,
    keeps_states: bool = False,
    top: int = 0,
    passed: Callable[[], None] = lambda: None,
) -> Verification:
    """Runs the pending token and the draft through the full model; accepts nodes. Calls `passed`
    behind the pass, before anything of it is read.
    """
    hidden_states: list[Tensor] = []
    kept = hidden_states if keeps_states else None
    rows, tokens = draft.token_rows(state.lm.cache.length), [state.pending, *draft.tokens]
    if draft.unread is None:
        raw = state.lm.score(tokens, rows, draft.early_exit_states, kept)
        passed()
        logits, best, top_tokens = _choices(state, draft, raw, top)
    else:
        device = state.lm.input_device
        ids = torch.cat((upload(torch.tensor(tokens[:1]), device), draft.unread.to(device)))
        raw = state.lm.score(ids, rows, draft.early_exit_states, kept)
        passed()
        logits, numbers = raw, torch.cat((finite_best(raw), draft.unread)).tolist()
        best, tokens[1:] = numbers[: len(tokens)], numbers[len(tokens) :]
        draft = replace(draft, tokens=tokens[1:], unread=None)
        top_tokens = choices(raw, top)[1] if top else []
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
        raise NotFinite(f"logits are not finite after token {at} of the sequence; {_why(state.lm)}")
    return accepted, bonus


def _why(lm: LM) -> str:
    """What is known of logits that are not finite."""
    if lm.dtype == torch.float16:
        return "float16 may overflow, try dtype bfloat16 or float32"
    bad = [name for name, weight in lm.model.named_parameters() if not weight.isfinite().all()]
    return f"{bad[0]} holds NaN or infinity, fetch it again" if bad else "a sum overflows"
