"""One round of the loop: a draft is proposed, verified and committed, and the method learns."""

from dataclasses import replace

import torch
from torch import Tensor

from skipbench.decode.draft import Draft, Launched, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.sampling import Logprob, choices, finite_best, logprobs
from skipbench.decode.verify import verify_greedy, verify_sampling
from skipbench.lm.cache import read_later, upload
from skipbench.profile.clock import PASS, WAIT, Clock
from skipbench.runs.record import Round


class NotFinite(FloatingPointError):
    """The target's logits are NaN or infinite; the sample cannot go on."""


def prefill(state: State) -> tuple[int, list[Logprob]]:
    """Fills the cache with the prompt. Returns the first token of the output."""
    state.lm.cache.length = 0
    first = _accept(state, Launched(Draft(), state.lm.prefill(state.tokens)))  # the bonus alone
    return first.bonus, first.logprobs


def advance(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
    """Proposes, verifies, commits and adapts, each marked on the clock.

    Where `state.late`, the next round's pass is launched with the token that the device knows
    before the host reads it, and the device goes on meanwhile. After EOS it was for nothing.
    """
    now, state.launched = state.launched, None
    if now is None or now.switches != state.lm.cache.switches:
        clock.mark(WAIT)
        now = _launch(state, method, clock, method.propose(state, state.remaining - 1))
    else:
        clock.mark("other", now.began)  # where the device had nothing to do
    clock.mark("draft", now.began)
    if state.late and state.remaining > 1:
        state.launched = _launch(state, method, clock, Draft(), now.best)
    verification = _accept(state, now, method.needs_top_tokens)
    at = now.ended if state.launched else None  # what the host does takes none of the device's time
    clock.mark(PASS, now.ended)
    clock.mark("verify", at)
    draft, emitted = verification.draft, state.commit(verification)
    counts = Round(
        steps=draft.steps,
        nodes=len(draft.tokens) if draft.num_verifiable is None else draft.num_verifiable,
        accepted=len(verification.accepted),
        chain=verification.chain,
        emitted=emitted,
    )
    clock.mark("other", at)
    method.adapt(state, verification)
    clock.mark("adapt", at)
    return verification, counts


def _launch(
    state: State, method: Method, clock: Clock, draft: Draft, pending: Tensor | None = None
) -> Launched:
    """Starts the verification of a draft, after `pending` [1] where the host does not know it."""
    began, lm, states = clock.moment(), state.lm, list[Tensor]()
    start = lm.cache.length + (pending is not None)
    ids: list[int] | Tensor = [state.pending, *draft.tokens]
    if pending is not None:
        ids = pending.clamp(min=0)
    elif draft.unread is not None:
        known = upload(torch.tensor([state.pending]), lm.input_device)
        ids = torch.cat((known, draft.unread.to(known.device)))
    kept = states if method.needs_hidden_states else None
    logits = lm.score(ids, draft.token_rows(start), draft.early_exit_states, kept)
    best = read = None
    if draft.unread is not None or (state.reads_late and not method.needs_top_tokens):
        best = finite_best(logits)
        unread = best[:0] if draft.unread is None else draft.unread.to(best.device)
        read = read_later(torch.cat((best, unread)))
    ended = clock.moment()
    return Launched(draft, logits, states, best, read, lm.cache.switches, began, ended)


def _accept(state: State, now: Launched, top: int = 0) -> Verification:
    """Reads what the target chose after every row, and accepts nodes; rows that neither they nor
    the bonus come from need not be finite.
    """
    draft, logits = now.draft, now.logits
    if now.read is not None:
        numbers = now.read()
        best, tokens = numbers[: len(logits)], numbers[len(logits) :]
        draft = replace(draft, tokens=tokens or draft.tokens, unread=None)
        top_tokens = choices(logits, top)[1] if top else []
    else:
        if state.process is not None:
            logits = state.process(state.tokens, draft, logits)
        best, top_tokens = choices(logits, top)
    if state.sampler.greedy or state.reference:
        accepted, bonus = verify_greedy(draft, state.forced(draft) or best)
    else:
        accepted, bonus = verify_sampling(draft, logits, state.sampler)
    if best[accepted[-1] + 1 if accepted else 0] < 0:  # and none is accepted after such a row
        raise _not_finite(state, len(state.tokens) + len(accepted))
    found = list[Logprob]()
    if state.top_logprobs is not None:  # of the model's own logits
        rows = now.logits[[0, *(node + 1 for node in accepted)]]
        emitted = [*(draft.tokens[node] for node in accepted), bonus]
        found = logprobs(rows, emitted, state.top_logprobs)
    known = [max(0, token) for token in best]
    return Verification(draft, accepted, bonus, known, now.hidden_states, top_tokens, found)


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
