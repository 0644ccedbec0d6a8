"""One round of the loop: how a draft is proposed, verified and committed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from skipbench.decode.draft import Draft, Launched, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.sampling import Logprob, choices, finite_best, logprobs
from skipbench.decode.verify import verify_greedy, verify_sampling
from skipbench.lm.cache import read_later, upload
from skipbench.lm.rows import TokenRows
from skipbench.profile.clock import PASS, WAIT, Clock
from skipbench.runs.record import Round

Advance = Callable[[State, Method, Clock], tuple[Verification, Round]]
"""Advances a prefilled prompt by one round, its phases marked on the clock."""


class NotFinite(FloatingPointError):
    """The target's logits are NaN or infinite; the sample cannot go on."""


def in_turn(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
    """Proposes, verifies, commits, adapts: the host waits for each."""
    clock.mark(WAIT)
    draft = method.propose(state, state.remaining - 1)
    clock.mark("draft")
    needs = method.needs_hidden_states, method.needs_top_tokens
    verification = _verify(state, draft, *needs, partial(clock.mark, PASS))
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
    """A round without a draft on a GPU, which goes on meanwhile: the next pass is launched with the
    token that the device knows before the host reads it. After EOS it was for nothing.
    """
    cache, now = state.lm.cache, state.launched
    if now is None or now.switches != cache.switches:
        now = _launch(state, clock, [state.pending], cache.length)
    clock.mark("other", now.began)  # where the device had nothing to do
    clock.mark("draft", now.began)
    more, known = state.remaining > 1, now.best.clamp(min=0)
    state.launched = _launch(state, clock, known, cache.length + 1) if more else None
    (best,) = now.read()
    clock.mark(PASS, now.ended)
    if best < 0:
        raise _not_finite(state, len(state.tokens))
    verification = Verification(Draft(), [], best, [best], [])
    counts = _commit(state, verification)
    method.adapt(state, verification)
    return verification, counts


def _launch(state: State, clock: Clock, token: list[int] | Tensor, start: int) -> Launched:
    """Starts a pass of one row."""
    began, rows = clock.moment(), TokenRows.chain(start, 1).verified()
    best = finite_best(state.lm.score(token, rows))
    return Launched(best, read_later(best), state.lm.cache.switches, began, clock.moment())


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
    rows, given = draft.token_rows(state.lm.cache.length), [state.pending, *draft.tokens]
    ids: list[int] | Tensor = given
    if draft.unread is not None:
        pending = upload(torch.tensor(given[:1]), state.lm.input_device)
        ids = torch.cat((pending, draft.unread.to(pending.device)))
    raw = state.lm.score(ids, rows, draft.early_exit_states, kept)
    passed()
    if draft.unread is None:
        logits, best, top_tokens = _choices(state, draft, raw, top)
    else:
        logits, numbers = raw, torch.cat((finite_best(raw), draft.unread)).tolist()
        best, tokens = numbers[: len(given)], numbers[len(given) :]
        draft = replace(draft, tokens=tokens, unread=None)
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
        raise _not_finite(state, len(state.tokens) + len(accepted))
    return accepted, bonus


def _not_finite(state: State, at: int) -> NotFinite:
    """The error with what is known of the reason; nothing of the text stays in the cache."""
    lm, why = state.lm, "a sum overflows"
    lm.cache.clear(0)
    bad = [name for name, weight in lm.model.named_parameters() if not weight.isfinite().all()]
    if lm.dtype == torch.float16:
        why = "float16 may overflow, try dtype bfloat16 or float32"
    elif bad:
        why = f"{bad[0]} holds NaN or infinity, fetch it again"
    return NotFinite(f"logits are not finite after token {at} of the sequence; {why}")
