"""THE loop: every method, vanilla included, decodes here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skipbench.decode.method import Draft, Method, Verdict
from skipbench.decode.sampling import Sampler, best_tokens
from skipbench.decode.state import Finish, State
from skipbench.decode.verify import verify_greedy, verify_sampling
from skipbench.lm.model import LM
from skipbench.lm.span import Span
from skipbench.profile.clock import Clock
from skipbench.runs.record import Round


class NotFinite(FloatingPointError):
    """The target's logits are NaN or infinite; the sample cannot go on."""


@dataclass(frozen=True)
class Generation:
    """Output of one prompt: emitted ids, counts a round, seconds by phase, and why it ended."""

    tokens: list[int]
    rounds: list[Round]
    seconds: dict[str, float]
    finish: Finish


@torch.inference_mode()
def generate(
    lm: LM,
    method: Method,
    prompt: list[int],
    max_new_tokens: int,
    eos: frozenset[int] = frozenset(),
    sampler: Sampler | None = None,
    clock: Clock | None = None,
) -> Generation:
    """Decodes one prompt.

    Args:
        prompt: at least one token id; with `max_new_tokens` and the draft's scratch it must fit into `lm.cache`.
        eos: ids that end the output; the first one emitted is kept.

    Raises:
        NotFinite: NaN or infinite logits.
        SkipbenchError: the cache is too small.
    """
    clock = clock or Clock(lm.output_device)
    clock.start()
    lm.cache.length = 0
    state = State(lm, prompt, sampler or Sampler(), max_new_tokens, eos)
    _, bonus, _ = _verify(state, Draft(), lm.prefill(prompt))
    state.emit([bonus])
    clock.mark("prefill")
    method.begin(state)
    clock.mark("adapt")
    rounds: list[Round] = []
    while state.finish is None:
        draft = method.propose(state, state.room - 1)
        clock.mark("draft")
        states: list[Tensor] = []
        logits = _score(state, draft, states if method.needs_states else None)
        path, bonus, choice = _verify(state, draft, logits)
        clock.mark("verify")
        emitted = state.commit(draft, path, bonus)
        chain = len(draft.first_choices().intersection(path)) if draft.parent is not None else len(path)
        nodes = len(draft.tokens) if draft.candidates is None else draft.candidates
        rounds.append(Round(draft.steps, nodes, len(path), chain, emitted))
        clock.mark("other")
        method.adapt(state, Verdict(draft, path, bonus, choice, states))
        clock.mark("adapt")
    return Generation(state.output, rounds, clock.stop(), state.finish)


def _span(lm: LM, draft: Draft) -> Span:
    """The rows of the pending token and the draft behind the committed ones."""
    if draft.parent is None:
        return Span.chain(lm.cache.length, 1 + len(draft.tokens)).verified()
    return Span.tree(lm.cache.length, (-1, *(parent + 1 for parent in draft.parent))).verified()


def _score(state: State, draft: Draft, taps: list[Tensor] | None) -> Tensor:
    """Logits [n + 1, V] behind the pending token and every node; `taps` receives the S + 1 states [n + 1, D].

    With `draft.early`, only the rows behind those that already ran pass the early sub-layers, and all pass the rest.
    """
    lm = state.lm
    tokens = [state.pending, *draft.tokens]
    if not draft.early:
        return lm.logits(tokens, _span(lm, draft), taps=taps)
    base, done, first = lm.cache.length, len(draft.early), len(draft.early[0]) - 1
    early: list[list[Tensor]] = [*draft.early]
    if done < len(tokens):
        early.append([])
        behind = Span.chain(base + done, len(tokens) - done).verified()
        lm.run(lm.embed(tokens[done:]), behind, last=first, taps=early[-1])
    hidden = torch.cat([states[first] for states in early])
    if taps is not None:
        taps += [torch.cat([states[s] for states in early]) for s in range(first)]
    return lm.head(lm.run(hidden, Span.chain(base, len(tokens)).verified(), first=first, taps=taps))


def _verify(state: State, draft: Draft, logits: Tensor) -> tuple[list[int], int, list[int]]:
    choice = best_tokens(logits)
    best = logits.gather(-1, choice[:, None])[:, 0]
    choices: list[int] = choice.masked_fill(~best.isfinite(), -1).tolist()  # one transfer
    if min(choices) < 0:
        raise NotFinite(f"logits are not finite behind token {len(state.tokens)} of the sequence")
    verify = verify_greedy(draft, choices) if state.sampler.greedy else verify_sampling(draft, logits, state.sampler)
    return *verify, choices
