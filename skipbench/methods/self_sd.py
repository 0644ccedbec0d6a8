"""Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding
(Self-SD), arXiv:2309.08168.

A skip set over the 2L sub-layers is searched offline so that the time per verified token on a few
development prompts is smallest (section 3.3, Eq. 1). While decoding, the set stays as it is and
drafting ends at the first token whose probability falls below an adaptive threshold (section 3.4,
Eqs. 2 to 4, in `skipbench.decode.stopping.Adaptive`).

| paper | here | |
|---|---|---|
| z in {0, 1}^2L | `DraftPlan` | sub-layers that the draft leaves out |
| f(z) | `seconds_per_verified_token` | seconds per token, drafting and verification |
| K | `stop.max_steps` | maximum draft tokens per round |
| gamma, alpha, epsilon, beta1, beta2 | `stop.*` | adaptive draft-exiting |

Deviations from the paper and its published code, with their switches: docs/methods/self-sd.md.
"""

from collections.abc import Callable

from skipbench.decode.loop import generate
from skipbench.decode.stopping import StopRule
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.methods.fixed import Explicit, FixedSet


class SelfSD(Explicit):
    """Self-SD with the set that a search found (SWIFT Table 10 adds SWIFT's tree).

    >>> from skipbench.decode.stopping import Adaptive
    >>> method = SelfSD(name="self-sd", layers=12, skip="attn:3,5;mlp:4", stop=Adaptive())
    >>> method.skip.ratio
    0.125
    """

    skip: DraftPlan
    """The set in text form, or `stored` for the one that `search` stored for this model."""


def objective(
    lm: LM,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos: frozenset[int],
    stop: Callable[[], StopRule],
    cheaper: Callable[[DraftPlan], DraftPlan] = lambda skip: skip,
) -> Callable[[DraftPlan], tuple[float, dict[str, float]]]:
    """f(z) of Eq. 1: decode seconds per token over development prompts, with the stop rule;
    `cheaper` turns a skip set into the plan that drafts.
    """

    def seconds_per_verified_token(skip: DraftPlan) -> tuple[float, dict[str, float]]:
        method = FixedSet("self-sd", cheaper(skip), stop())
        outs = [generate(lm, method, prompt, max_new_tokens, eos) for prompt in prompts]
        rounds = [r for out in outs for r in out.rounds]
        seconds = sum(sum(out.seconds.values()) - out.seconds["prefill"] for out in outs)
        emitted = sum(r.emitted for r in rounds)
        return seconds / max(emitted, 1), {
            "alpha": sum(r.accepted for r in rounds) / max(sum(r.steps for r in rounds), 1),
            "tokens_per_s": emitted / seconds,
            "skipped": len(skip.skipped),
        }

    return seconds_per_verified_token
