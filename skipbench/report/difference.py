"""Two folders of results against each other: cells of the same settings, whatever their `limit`,
paired by prompt.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from skipbench.metrics.acceptance import mean
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.runs.reading import run_folders
from skipbench.runs.record import paired
from skipbench.runs.run import Run, read_run

ORIGIN = ["device", "engine", "threads", "layers"]
ORIGIN += ["weights_sha256", "method_sha256", "commit"]


@dataclass(frozen=True)
class CellDifference:
    """One cell of both folders, A and B, over the prompts that both decoded."""

    name: str
    samples: int
    speedups: tuple[float | None, float | None]  # of A and of B, as in the tables of runs
    ratio: float | None  # geometric mean of B's speedup over A's, per question
    interval: tuple[float, float] | None  # 95 %, of the ratio
    same_tokens: int  # samples whose output is the same in both
    M: tuple[float | None, float | None]  # over the prompts that both decoded
    limits: tuple[int | None, int | None]  # prompts that each was asked for
    origins: tuple[str, ...]  # differences in where the two come from

    @property
    def apart(self) -> bool:
        """True if the interval leaves out 1."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


def differences(first: Path, second: Path) -> tuple[list[CellDifference], list[list[str]]]:
    """Every cell in both folders, whatever its `limit`, and the names of cells in only one."""
    folders = (run_folders(first), run_folders(second))
    a, b = (
        {"/".join(path.parts[-2:]): path for path in of if (path.parent / "turns.jsonl").exists()}
        for of in folders
    )
    both = [_difference(read_run(a[name]), read_run(b[name])) for name in a if name in b]
    return both, [[n for n in a if n not in b], [n for n in b if n not in a]]


def _difference(first: Run, second: Run) -> CellDifference:
    a, b = ({(s.id, s.prompt_hash): s for s in run.sound} for run in (first, second))
    ids = [i for i in a if i in b]
    own = ((a, first), (b, second))
    before, after = (paired((of[i] for i in ids), run.base, run.arm) for of, run in own)
    pairs = [(before[q], after[q]) for q in before if q in after]
    ratio, interval = paired_ratio_interval([y / x for x, y in pairs]) if pairs else (None, None)
    x, y = (geometric_mean(each) for each in zip(*pairs, strict=True)) if pairs else (None, None)
    arms = [[of[i].arms[run.arm] for i in ids] for of, run in own]
    same = sum(x.same(y) for x, y in zip(*arms, strict=True))
    rounds = ([r.emitted for arm in each for r in arm.rounds] for each in arms)
    m, n = (mean(emitted) for emitted in rounds)
    limits = first.status.limit, second.status.limit
    here, there = first.provenance, second.provenance
    origins = [(f"{key}:", getattr(here, key), getattr(there, key)) for key in ORIGIN]
    packages = sorted({*here.versions, *there.versions})
    origins += [(name, here.versions.get(name), there.versions.get(name)) for name in packages]
    unlike = tuple(f"{name} {x} | {y}" for name, x, y in origins if x != y)
    name, speeds = str(first.id), (x, y)
    return CellDifference(name, len(ids), speeds, ratio, interval, same, (m, n), limits, unlike)
