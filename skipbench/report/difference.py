"""Two folders of results against each other: cells of the same settings, whatever their `limit`,
paired by prompt.
"""

from pathlib import Path
from statistics import geometric_mean

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import mean
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.runs.reading import run_folders
from skipbench.runs.record import paired
from skipbench.runs.run import Run, read_run

ORIGIN = ["device", "engine", "threads", "layers"]
ORIGIN += ["weights_sha256", "method_sha256", "commit"]


def differences(first: Path, second: Path) -> tuple[list[str], int]:
    """Lines on every cell in both folders, A and B, on other origins, and on cells in only one; and
    in how many cells the interval leaves out 1. Raises SkipbenchError where no cell is in both.
    """
    a, b = (
        {
            f"{path.parent.name}/{path.name}": path
            for path in run_folders(folder)
            if (path.parent / "turns.jsonl").exists()
        }
        for folder in (first, second)
    )
    if not (both := [name for name in a if name in b]):
        raise SkipbenchError(f"{first} and {second} hold no cell of the same settings")
    width, apart, origins = max(map(len, both)), 0, dict[str, None]()
    lines = [f"{'cell':<{width}}  {'samples':>9}  {'A':>7}  {'B':>7}  B / A"]
    for name in both:
        runs = read_run(a[name]), read_run(b[name])
        differ, own = _difference(*runs)
        lines += [f"{name:<{width}}  {own[0]}", *own[1:]]
        apart += differ
        origins |= dict.fromkeys(_origins(*runs))
    lines += [f"origin: {text}" for text in origins]
    for folder, here, there in ((first, a, b), (second, b, a)):
        if alone := [name for name in here if name not in there]:
            lines.append(f"only in {folder}: {', '.join(alone)}")
    lines.append(f"{len(both)} cells in both; {apart} whose interval leaves out 1")
    return lines, apart


def _difference(first: Run, second: Run) -> tuple[bool, list[str]]:
    """Whether the 95 % interval of B's speedup over A's, per question, leaves out 1; and what a
    cell's lines say behind its name.
    """
    a, b = ({(s.id, s.prompt_hash): s for s in run.sound} for run in (first, second))
    ids = [i for i in a if i in b]
    own = ((a, first), (b, second))
    before, after = (paired((of[i] for i in ids), run.base, run.arm) for of, run in own)
    pairs = [(before[q], after[q]) for q in before if q in after]
    ratio, interval = paired_ratio_interval([y / x for x, y in pairs]) if pairs else (None, None)
    speeds = [f"{geometric_mean(each):.3f}x" for each in zip(*pairs, strict=True)]
    x, y = speeds or ("-", "-")
    text = f"{len(ids):>9}  {x:>7}  {y:>7}  {'-' if ratio is None else f'{ratio:.3f}'}"
    apart = interval is not None and not interval[0] <= 1 <= interval[1]
    if interval is not None:
        text += " [{:.3f}, {:.3f}]".format(*interval) + " *" * apart
    arms = [[of[i].arms[run.arm] for i in ids] for of, run in own]
    same = sum(x.same(y) for x, y in zip(*arms, strict=True))
    limits = [run.status.limit for run in (first, second)]
    if limits[0] == limits[1] and same == len(ids):
        return apart, [text]
    emitted = (mean(r.emitted for arm in each for r in arm.rounds) for each in arms)
    ms = " and ".join("-" if m is None else f"{m:.4g}" for m in emitted)
    asked = " and ".join("all" if limit is None else str(limit) for limit in limits)
    tokens = f"{same} of {len(ids)} outputs have the same tokens"
    return apart, [text, f"  {tokens}; M {ms}; limit {asked}"]


def _origins(first: Run, second: Run) -> list[str]:
    """Differences in where two runs come from."""
    here, there = first.provenance, second.provenance
    origins = [(f"{key}:", getattr(here, key), getattr(there, key)) for key in ORIGIN]
    packages = sorted({*here.versions, *there.versions})
    origins += [(name, here.versions.get(name), there.versions.get(name)) for name in packages]
    return [f"{name} {x} | {y}" for name, x, y in origins if x != y]
