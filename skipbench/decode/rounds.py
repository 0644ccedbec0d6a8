"""One round of the loop: how a draft is proposed, verified and committed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from skipbench.decode.draft import Draft, Launched, State, Verification
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
    """How the next round is advanced, one of `STRATEGIES`: late on a GPU, where the method allows
    it and nothing but the best token is asked for.
    """
    late = method.read_late and state.only_best and state.works_ahead
    return "late" if late else "in_turn"


def in_turn(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
    """Proposes, verifies, commits, adapts: the host waits for each."""
    state.launched = None  # by a late round before: it is run again
    draft = method.propose(state, state.remaining - 1)
    clock.mark("draft")
    kept = method.needs_hidden_states, method.needs_top_tokens
    verification = _verify(state, draft, *kept, partial(clock.mark, PASS))
    draft = verification.draft
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


def late(state: State, method: Method, clock: Clock) -> tuple[Verification, Round]:
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
    clock.mark(PASS, now.ended)
    verification = Verification(Draft(), [], best, [best], [])
    if best < 0:
        state.launched, verification = None, _verify(state, Draft(), False, 0, lambda: None)
    counts = Round(0, 0, 0, 0, state.commit(verification))
    method.adapt(state, verification)
    return verification, counts


def _launch(state: State, token: list[int] | Tensor, ahead: int, clock: Clock) -> Launched:
    """Starts the pass of a token `ahead` rows behind the committed ones."""
    lm, began = state.lm, clock.moment()
    rows = TokenRows.chain(lm.cache.length + ahead, 1).verified()
    best = finite_best(lm.logits(token, rows))
    read = read_later(best)
    return Launched(best.clamp(min=0), read, lm.cache.switches, began, clock.moment())


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
    state: State, draft: Draft, keeps_states: bool, top: int, passed: Callable[[], None]
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
        raise NotFinite(f"logits are not finite after token {at} of the sequence; {_why(state.lm)}")
    return accepted, bonus


def _why(lm: LM) -> str:
    """What is known of logits that are not finite."""
    if lm.dtype == torch.float16:
        return "float16 may overflow, try dtype bfloat16 or float32"
    bad = [name for name, weight in lm.model.named_parameters() if not weight.isfinite().all()]
    return f"{bad[0]} holds NaN or infinity, fetch it again" if bad else "a sum overflows"
