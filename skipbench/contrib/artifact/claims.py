"""The numbers of each run and what they rest on, by its samples; the check of a bundle."""

import hashlib
import re
import shlex
from collections.abc import Iterator
from math import isclose
from operator import attrgetter
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skipbench.config.extensions import load
from skipbench.errors import SkipbenchError
from skipbench.metrics.interval import Interval
from skipbench.metrics.summary import summarise
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import read_bytes, read_json, readable, run_folders
from skipbench.runs.record import VANILLA
from skipbench.runs.run import Run, read_run
from skipbench.runs.store import row_turns

CLAIMS, SUMS = "claims.json", "SHA256SUMS"
SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)")  # a line of `sha256sum`
Quantities = dict[str, tuple[str, str | None]]
QUANTITIES: Quantities = {
    "speedup.e2e": ("speedup over vanilla, prefill included", "speedup.e2e_ci95"),
    "speedup.paired": ("speedup over vanilla, decode only", "speedup.ci95"),
    "M": ("tokens per verification", None),
    "alpha": ("accepted draft tokens per draft step", None),
    "tokens_per_s": ("tokens per second, without the prefill", None),
    "vanilla.tokens_per_s": ("vanilla's tokens per second, without the prefill", None),
    "lossless.identical": ("samples with vanilla's tokens", None),
}  # by path in metrics.json: words of a claim, and path of the 95 % interval
SERVED: Quantities = {
    "speedup.e2e": ("speedup over the first server, end to end", "speedup.e2e_ci95"),
    "M": ("tokens per verification, as the server tells", None),
    "accepted_share": ("accepted share of draft tokens, as the server tells", None),
    "tokens_per_s": ("tokens per second of a request, after its first", None),
    "lossless.identical": ("answers of the first server, or judged right", None),
}  # the same of a bench of servers
EXACT = 1e-9  # relative difference that another order of summation may make


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One number of one run."""

    claim: str
    run: str
    quantity: str  # path in metrics.json
    number: float
    interval: Interval | None  # 95 %; None for a quantity without one, or below 5 questions
    samples: int
    command: str
    hardware: str
    commit: str | None
    protocol: int | None = None  # version of docs/protocol.md


class _Claims(msgspec.Struct):
    claims: list[Claim]


def claims_of(folder: Path) -> list[Claim]:
    """A run's claims, not from `metrics.json`. Raises SkipbenchError for unreadable files."""
    run = computed(read_run(folder))
    metrics, provenance = run.measured, run.provenance
    return [
        Claim(
            claim=f"{run.method} on {run.model}, {run.dataset}: {words}",
            run=str(run.id),
            quantity=quantity,
            number=number,
            interval=attrgetter(ends)(metrics) if ends else None,
            samples=metrics.samples,
            command=shlex.join(provenance.argv),
            hardware=hardware(provenance),
            commit=provenance.commit and provenance.commit + "+" * bool(provenance.dirty),
            protocol=provenance.protocol,
        )
        for quantity, (words, ends) in quantities_of(run).items()
        if (number := attrgetter(quantity)(metrics)) is not None
    ]


def computed(run: Run) -> Run:
    """With the numbers of its turns alone. Raises SkipbenchError for turns of another form."""
    folder = run.folder or Path()
    with readable(folder):
        turns = [turn for turn in row_turns(folder.parent) if run.arm in turn.arms]
        if run.base == VANILLA:
            return replace(run, metrics=summarise(turns, run.arm, run.provenance.layers or 0))
        return replace(run, metrics=load("summary", "servers")(replace(run, kept=turns)))


def quantities_of(run: Run) -> Quantities:
    """What is claimed of a run: of a server no lossless answers where none were compared, and no
    speedup of the first one.
    """
    if run.base == VANILLA:
        return QUANTITIES
    left_out = {"speedup.e2e"} if run.arm == run.base else set[str]()
    left_out |= set() if run.measured.lossless.comparable else {"lossless.identical"}
    return {k: v for k, v in SERVED.items() if k not in left_out}


def hardware(provenance: Provenance) -> str:
    """The processor that computed, and its threads; of servers what was said of their machine."""
    chip = provenance.cpu if provenance.device in (None, "cpu") else provenance.device
    if provenance.threads is None:
        return str(chip)
    return f"{chip}, {provenance.threads} threads of {provenance.cores} cores"


def check(folder: Path) -> Iterator[tuple[bool, str]]:
    """Whether each claim and each file holds. Raises SkipbenchError for what is no bundle."""
    stored = read_json(folder / CLAIMS, _Claims)
    if stored is None or not (folder / SUMS).is_file():
        raise SkipbenchError(f"{folder} is no bundle: it has no {CLAIMS} and {SUMS}")
    made, broken = dict[tuple[str, str], Claim](), dict[str, str]()
    for path in run_folders(folder):
        try:
            made |= {(claim.run, claim.quantity): claim for claim in claims_of(path)}
        except (SkipbenchError, TypeError) as error:
            broken["/".join(path.parts[-2:])] = str(error)
    for claim in stored.claims:
        again = made.pop((claim.run, claim.quantity), None)
        wrong = broken.get(claim.run, "its samples give no such number")
        if again is not None:
            pairs = [(k, getattr(claim, k), getattr(again, k)) for k in Claim.__struct_fields__]
            unlike = [pair for pair in pairs if not _same(*pair[1:])]
            parts = (f"{k} is {now} by the run's files, not {was}" for k, was, now in unlike)
            wrong = "; ".join(parts)
        told = f"{claim.claim} = {claim.number:.6g}"
        yield not wrong, f"{told}: {wrong}" if wrong else told
    for name in broken.keys() - {claim.run for claim in stored.claims}:
        yield False, f"{name}: {broken[name]}"
    for (name, _), claim in made.items():
        yield False, f"{claim.claim}: {name} gives {claim.number:.6g}, which nothing claims"
    versions = sorted({str(claim.protocol or "not named") for claim in stored.claims})
    yield True, f"protocol: {', '.join(versions)}"
    yield from _files(folder)


def _same(there: object, here: object) -> bool:
    match there, here:
        case float() | int(), float() | int():
            return isclose(there, here, rel_tol=EXACT)
        case tuple(), tuple():
            return all(map(_same, there, here))
    return there == here


def _files(folder: Path) -> Iterator[tuple[bool, str]]:
    """Every file against its digest in `SHA256SUMS`."""
    lines = (read_bytes(folder / SUMS) or b"").decode(errors="replace").rstrip("\n").split("\n")
    matches = [SUM_LINE.fullmatch(line) for line in lines]
    known = {match[2]: match[1] for match in matches if match}
    if len(known) < len(lines):
        yield False, f"{SUMS}: {len(lines) - len(known)} of its lines name no file, or one again"
    made = sums(folder)
    for name in sorted(known.keys() | made.keys()):
        if name not in made:
            yield False, f"{name}: missing"
        elif name not in known:
            yield False, f"{name}: not in {SUMS}"
        elif made[name] != known[name]:
            yield False, f"{name}: another sha256 than in {SUMS}"
    yield True, f"{len(known)} files compared with {SUMS}"


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a bundle but `SHA256SUMS`, by its path there."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    files = {name: path for name, path in paths.items() if path.is_file() and name != SUMS}
    return {
        name: hashlib.sha256(read_bytes(path) or b"").hexdigest()
        for name, path in sorted(files.items())
    }
