"""The numbers of a server, from its turns alone."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from skipbench.contrib.servers.told import FIELDS
from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.summary import percentiles
from skipbench.runs.measures import Lossless, Metrics, Speedup
from skipbench.runs.record import Arm, Turn
from skipbench.runs.run import Run


def summarised(run: Run) -> Metrics:
    """A server's numbers in the names of a method's; None for what is not known."""
    ratios, own = run.paired(), run.arms
    both = [turn for turn in run.sound if turn.arms[run.base].lossless != "failed"]
    mean, ends = paired_ratio_interval([*ratios.values()]) if ratios else (None, None)
    steps, drafted, accepted = drafts(own)
    more, base = over(accepted, steps), Metrics(**rates([turn.arms[run.base] for turn in both]))
    return Metrics(
        samples=len(own),
        M=None if more is None else 1 + more,
        accepted_share=over(accepted, drafted),
        speedup=Speedup(e2e=mean, e2e_ci95=ends, by_question=ratios) if ratios else Speedup(),
        lossless=lossless(run, both),
        **rates(own),
        vanilla=base if run.arm != run.base else None,
    )


def first_of(run: Run, prompts: int) -> Run:
    """A server's run over the first prompts of its dataset."""
    kept = replace(run, kept=[turn for turn in run.turns if turn.index < prompts])
    return replace(kept, metrics=summarised(kept))


def lossless(run: Run, both: Sequence[Turn]) -> Lossless:
    """Answers that are the model's, by verdicts; without such those of the first server, where
    nothing was drawn. Of another text nobody knows whether it is wrong: it is unchecked.
    """
    kinds = list[str]()
    if judged(run):
        kinds = [one.lossless or "unchecked" for one in run.arms]
    elif run.arm != run.base and not run.setting("decoding.temperature"):
        equal = [turn.arms[run.arm].same(turn.arms[run.base]) for turn in both]
        kinds = ["identical" if one else "unchecked" for one in equal]
    found = Counter(kinds)
    failed = len(run.turns) - len(run.sound)
    return Lossless(ties=found.pop("tie", 0), failed=failed, **found)


def judged(run: Run) -> bool:
    """Whether answers of its row have verdicts of the oracle."""
    kinds = {arm.lossless for turn in run.turns for arm in turn.arms.values()}
    return not kinds <= {None, "failed"}


def rates(arms: Sequence[Arm]) -> dict[str, Any]:
    """Rates and times that a user waits for."""
    seconds = math.fsum(arm.seconds.decode for arm in arms)
    each = [s for arm in arms if (s := arm.s_per_token) is not None]
    return {
        "tokens_per_s": over(sum(arm.emitted for arm in arms), seconds),
        "ttft_s": percentiles([(arm.seconds.prefill, 1) for arm in arms]),
        "s_per_output_token": percentiles([(s, 1) for s in each]),
    }


def drafts(arms: Sequence[Arm]) -> list[int | None]:
    """Sums by `FIELDS` over the answers that tell; over the turns by counters, where answers do
    not tell, or no verifications.
    """
    served = [arm.served for arm in arms if arm.served]
    each = [one.told for one in served if one.told]
    if not each or any(one.steps is None for one in each):
        each = [one.counted for one in served if one.counted] or each
    values = [[getattr(one, name) for one in each] for name in FIELDS]
    return [sum(of) if of and None not in of else None for of in values]
