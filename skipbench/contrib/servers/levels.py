"""The numbers of a bench of servers, from its records alone."""

import math
from collections import Counter
from collections.abc import Sequence

from skipbench.contrib.servers.records import Record, Verdicts
from skipbench.contrib.servers.told import FIELDS
from skipbench.metrics.acceptance import over
from skipbench.metrics.interval import geometric, paired_ratio_interval
from skipbench.metrics.summary import percentiles
from skipbench.runs.measures import Lossless, Metrics, Percentiles, Speedup

KINDS = {"tie": "ties", "wrong": "diverged"}  # verdicts that `Lossless` has another name for


class Level:
    """The records of one number of clients; `own` are an arm's, `sound` those with an answer."""

    def __init__(self, records: Sequence[Record], arms: Sequence[str], verdicts: Verdicts) -> None:
        self.arms, self.clients = arms, records[0].concurrency
        self.verdicts = {key: kind for key, kind in verdicts.items() if key[1] == self.clients}
        self.own = {name: [r for r in records if r.arm == name] for name in arms}
        self.sound = {name: {r.id: r for r in of if not r.error} for name, of in self.own.items()}
        self.drawn = any(r.request["temperature"] for r in records)

    def pairs(self, arm: str) -> list[tuple[Record, Record]]:
        """Answers of the first arm and of this one to the same prompts."""
        base, own = self.sound[self.arms[0]], self.sound[arm]
        return [(base[k], own[k]) for k in base if k in own]

    def ratios(self, arm: str) -> dict[str, float]:
        """Speed over the first arm's by question, with several clients by turn, whose requests wait
        for each other: equal texts have equal numbers of tokens.
        """
        found = dict[str, list[float]]()
        for a, b in self.pairs(arm):
            more = 1.0 if a.texts == b.texts else b.tokens / a.tokens
            unit = b.question if self.clients == 1 else a.turn
            found.setdefault(unit, []).append(more * a.seconds / b.seconds)
        return {unit: geometric(each) for unit, each in found.items()}

    def speedup(self, arm: str) -> Speedup:
        """Over the first arm, which itself has none."""
        ratios = self.ratios(arm) if arm != self.arms[0] else {}
        if not ratios:
            return Speedup()
        mean, ends = paired_ratio_interval([*ratios.values()])
        return Speedup(e2e=mean, e2e_ci95=ends, by_question=ratios)

    def lossless(self, arm: str) -> Lossless:
        """Answers that are the model's, by the verdicts; without such those of the first arm, where
        nothing was drawn. Of another text nobody knows whether it is wrong: it is unchecked.
        """
        kinds = list[str]()
        if self.verdicts:
            names = self.sound[arm]
            kinds = [self.verdicts.get((arm, self.clients, id), "unchecked") for id in names]
        elif arm != self.arms[0] and not self.drawn:
            equal = [a.texts == b.texts for a, b in self.pairs(arm)]
            kinds = ["identical" if one else "unchecked" for one in equal]
        kinds += ["failed"] * (len(self.own[arm]) - len(self.sound[arm]))
        return Lossless(**Counter(KINDS.get(kind, kind) for kind in kinds))

    def metrics(self, arm: str) -> Metrics:
        """An arm's numbers in the names of a run's; None for what is not known."""
        own, speedup = [*self.sound[arm].values()], self.speedup(arm)
        pairs = self.pairs(arm) if speedup.by_question else []
        steps, drafted, accepted = drafts(own)
        mean = over(accepted, steps)
        return Metrics(
            samples=len(own),
            M=None if mean is None else 1 + mean,
            accepted_share=over(accepted, drafted),
            tokens_per_s=decoding(own),
            speedup=speedup,
            lossless=self.lossless(arm),
            ttft_s=shares([r.ttft_s for r in own]),
            s_per_output_token=shares([r.itl_s for r in own]),
            vanilla=Metrics(
                tokens_per_s=decoding([a for a, _ in pairs]),
                ttft_s=shares([a.ttft_s for a, _ in pairs]),
                s_per_output_token=shares([a.itl_s for a, _ in pairs]),
            ),
        )


def by_clients(records: Sequence[Record], arms: Sequence[str], verdicts: Verdicts) -> list[Level]:
    """A level per number of clients, the smallest first."""
    found = sorted({r.concurrency for r in records})
    return [Level([r for r in records if r.concurrency == n], arms, verdicts) for n in found]


def miscounted(a: Record, b: Record) -> bool:
    """Whether two equal texts have other numbers of tokens: one of their servers is wrong."""
    return a.texts == b.texts and a.tokens != b.tokens


def spans(records: Sequence[Record]) -> float:
    """Seconds of an arm's turns, each from its first request to its last answer."""
    turns = dict[str, list[Record]]()
    for record in records:
        turns.setdefault(record.turn, []).append(record)
    return math.fsum(
        max(r.at + r.seconds for r in of) - min(r.at for r in of) for of in turns.values()
    )


def decoding(records: Sequence[Record]) -> float | None:
    """Tokens per second of a request, after its first."""
    seconds = math.fsum(r.seconds - r.ttft_s for r in records)
    return over(sum(r.tokens - 1 for r in records), seconds)


def drafts(records: Sequence[Record]) -> list[int | None]:
    """Sums by `FIELDS` over the requests that tell; over the turns by counters, where answers do
    not tell, or no verifications.
    """
    each = [r.acceptance for r in records if r.acceptance]
    if not each or any(one.steps is None for one in each):
        each = [r.counted for r in records if r.counted] or each
    values = [[getattr(one, name) for one in each] for name in FIELDS]
    return [sum(of) if of and None not in of else None for of in values]


def shares(values: Sequence[float | None]) -> Percentiles | None:
    """Percentiles of what is known."""
    return percentiles([(v, 1) for v in values if v is not None])
