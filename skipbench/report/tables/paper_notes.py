"""Texts below a paper's table: cautions, notes, definitions, the lossless count and where the runs
come from.
"""

import re
from collections.abc import Iterable, Sequence

from skipbench.report.columns import (
    MISSING,
    known,
    number,
    sample_count,
    search_phases,
    stopped_early,
)
from skipbench.report.definitions import PAPER_DEFINITIONS, SCORE, STAND_INS
from skipbench.report.measured import SCORES
from skipbench.report.origins import mixed, origin_of, origins, told
from skipbench.report.published import Paper, Printed
from skipbench.report.tables.paper_rows import Half, named
from skipbench.runs.run import Run

_PRINTED = ("engine", "device", "dtype", "torch", "commit", "date")
_PRINTED_IF_ANY = ("sparsity",)  # printed only if a run has it
_COMPARED = ("max_new_tokens", "max_length", "batch")


def definitions(columns: Iterable[str]) -> list[tuple[str, str]]:
    """Name and sentence of the columns that a run can fill."""
    known = PAPER_DEFINITIONS | dict.fromkeys(SCORES, SCORE)
    return [(column, known[column]) for column in columns if column in known]


def deviations(printed: Sequence[Printed], runs: Sequence[Run]) -> list[str]:
    """A line for each of model, data, device, engine, number format and settings that is not the
    paper's.
    """
    measured = [run for run in runs if run.metrics]
    if not measured:
        return []
    stands = sorted({str(run.stands_for) for run in measured if run.stands_for})
    # By its own name: weights from the package index have another than those of the hub.
    used = {run.keys.get("model"): run.model for run in measured}
    made = [f"Made with {STAND_INS[key]} {used[key]}" for key in used if key in STAND_INS]
    stands = [*made, *stands]
    lines = [f"{', '.join(stands)}: not a replication."] if stands else []
    lines += _devices(printed, measured)
    lines.append(_unlike("engine", _values(measured, "engine") or [MISSING], ["its own code"]))
    theirs = {str(dtype) for n in printed if (dtype := n.keys.get("dtype"))}
    ours = {*_values(measured, "dtype")} or _settings(measured, "dtype")
    if ours != theirs:
        lines.append(_unlike("dtype", ours or ["not recorded"], theirs or ["not named"]))
    for key in _COMPARED:
        theirs = {str(n.keys[key]) for n in printed if key in n.keys}
        ours = _settings(measured, key)
        if theirs and ours - theirs:
            lines.append(_unlike(key, ours, theirs))
    lines += _samples(measured)
    if texts := _values(measured, "calibration"):
        lines.append(
            f"sparsified weights: calibrated on {'; '.join(texts)} (Wanda's authors: 128 sequences "
            "of C4); their zeros are multiplied as any weight, without a sparse kernel."
        )
    lines += _origins(measured)
    lines += mixed(measured)
    if any(run.origin.dirty for run in measured):
        lines.append("Some runs were made with uncommitted changes to the code.")
    return lines


def _unlike(name: str, ours: Iterable[str], theirs: Iterable[str]) -> str:
    return f"{name}: {', '.join(sorted(ours))}; the paper's: {', '.join(sorted(theirs))}."


def sample_counts(runs: Sequence[Run]) -> str:
    """The numbers of prompts behind the runs that have metrics."""
    counts = dict.fromkeys(sample_count(run.metrics) for run in runs if run.metrics)
    return f"; n: {', '.join(sorted(counts))} samples per run" if counts else ""


def _samples(measured: Sequence[Run]) -> list[str]:
    """A line where a run rests on fewer prompts than the paper's, or on more."""
    counts = {
        (run.metrics.n, run.paper_samples)
        for run in measured
        if run.metrics and run.paper_samples is not None
    }
    unlike = {(ours, theirs) for ours, theirs in counts if ours != theirs}
    ours, theirs = ({str(pair[i]) for pair in unlike} for i in (0, 1))
    return [_unlike("n (samples per cell)", ours, theirs)] if unlike else []


def _settings(runs: Sequence[Run], key: str) -> set[str]:
    return {str(run.keys[key]) for run in runs if run.keys.get(key) is not None}


def _origins(measured: Sequence[Run]) -> list[str]:
    """A line for each commit, device and version that the runs are from, with the rows that are its
    own.
    """
    marks = origins(measured)
    lines = [f"The runs are from {len(marks)} origins: compare them with care."] if marks else []
    for origin, mark in marks.items():
        own = dict.fromkeys(named(run) for run in measured if origin_of(run) == origin)
        lines.append(f"origin {mark}: {told(origin)}: {' | '.join(own)}.")
    return lines


def same_device(ours: str, theirs: str) -> bool:
    """Compares a device's name with the paper's: true for the same single device, with the same
    memory where both names have it.
    """
    count = re.match(r"(\d+)x ", theirs)
    products = re.findall(r"\b[A-Z]\d{2,4}\b", theirs)
    if not products or (count and count[1] != "1"):
        return False
    memories = re.findall(r"(\d+) ?GB", ours), re.findall(r"(\d+) ?GB", theirs)
    return all(re.search(rf"\b{p}\b", ours) for p in products) and (
        not all(memories) or memories[0] == memories[1]
    )


def _devices(printed: Sequence[Printed], measured: Sequence[Run]) -> list[str]:
    """One line where a run's device is not that on which the paper ran the same model."""
    unlike, theirs = set[str](), set[str]()
    for run in measured:
        device = run.origin.device or "not recorded"
        model = run.keys.get("model")
        same = [n for n in printed if n.keys.get("model") == model] or printed
        hardware = {n.hardware or "not named" for n in same}
        if not any(same_device(device, named) for named in hardware):
            unlike.add(device)
            theirs |= hardware
    return [_unlike("device", unlike, theirs)] if unlike else []


def paper_notes(paper: Paper, table: str) -> list[str]:
    """The transcription's notes on the table as a whole, then those on the paper that touch it."""
    own = [note.text for note in paper.tables[table].notes if not note.where]
    return [*own, *(note.text for note in paper.notes if touches(note.text, table))]


def run_notes(runs: Sequence[Run], left: Sequence[Run], parts: Sequence[Half]) -> list[str]:
    """Notes on the runs: whose vanilla arm is shown, their reasons, and which are not shown.

    Args:
        runs: all of them.
        left: those that belong to no row.
        parts: the joined halves of the table.
    """
    arms = ", ".join(sorted({arm for half in parts for arm in half.arms_of}))
    reasons = [f"{named(r)}: {r.reason}" for r in runs if r.metrics and r.reason]
    phases = [
        f"{named(run)}: {'; '.join(told)}."
        for run in runs
        if run.metrics and (told := search_phases(run.metrics))
    ]
    twice = " | ".join(text for half in parts for text in half.twice)
    stopped = [
        f"{named(run)}: {end}."
        for run in runs
        if run.metrics and (end := stopped_early(run.metrics))
    ]
    # a run with metrics has its reason among `reasons`
    unplaced = " | ".join(
        named(r) + (f" ({r.reason})" if r.reason and not r.metrics else "") for r in left
    )
    notes = {
        f"vanilla without a run of its own is the vanilla arm of {arms}.": arms,
        **dict.fromkeys([*reasons, *phases, *stopped], True),
        f"several runs stand for the same numbers, the first is shown: {twice}.": twice,
        f"Runs that belong to no row of this table: {unplaced}.": unplaced,
    }
    return [note for note, wanted in notes.items() if wanted]


def skipped_shares(runs: Sequence[Run]) -> list[str]:
    """A line of the share of sub-layers that each method's runs skip, the least and the most."""
    found: dict[str, set[str]] = {}
    for run in runs:
        skipped = run.metrics.skipped if run.metrics else None
        if skipped and known(skipped.ratio) and run.method != "vanilla":
            found.setdefault(run.method, set()).add(number(skipped.ratio))
    shares = [
        f"{method} {' to '.join(dict.fromkeys((min(of), max(of))))}" for method, of in found.items()
    ]
    return [f"skipped share of the sub-layers: {'; '.join(shares)}."] if shares else []


def touches(text: str, table: str) -> bool:
    """True for a note of the whole paper that names `table`, or no table or figure at all."""
    named = set[str]()
    for kind, numbers in re.findall(r"\b(Table|Figure)s? (\d\w*(?:(?:, | and | to )\d\w*)*)", text):
        named |= {f"{kind}{number}".lower() for number in re.findall(r"\d\w*", numbers)}
        for first, last in re.findall(r"(\d+) to (\d+)", numbers):
            named |= {f"{kind}{number}".lower() for number in range(int(first), int(last))}
    return not named or table in named


def lossless(runs: Sequence[Run]) -> str:
    """Counts the samples of all runs that are identical to vanilla's, and the others by kind."""
    kinds = ("identical", "ties", "diverged", "unchecked", "sampled", "failed")
    # one run of a mini dataset may stand for several of the paper's
    unique = {
        repr([run.model, run.method, run.dataset, run.metrics]): run.metrics
        for run in runs
        if run.metrics
    }.values()
    count = {k: sum(getattr(metrics.lossless, k) for metrics in unique) for k in kinds}
    total = sum(count[k] for k in ("identical", "ties", "diverged", "unchecked"))
    others = ", ".join(f"{count[k]} {k}" for k in kinds[1:] if count[k])
    text = "no greedy samples"
    if total:
        text = f"{count['identical']} of {total} greedy samples identical to vanilla's"
    counted = f"{len(unique)} {'run' if len(unique) == 1 else 'runs'}"
    return f"{text}{f' ({others})' if others else ''}; {counted}"


def provenance(runs: Sequence[Run]) -> list[str]:
    """A line of the distinct values over the runs with metrics; a dash for what was not recorded.

    Empty where nothing was measured.
    """
    measured = [run for run in runs if run.metrics]
    names = [*_PRINTED, *(name for name in _PRINTED_IF_ANY if _values(measured, name))]
    line = "; ".join(f"{n}: {', '.join(_values(measured, n)) or MISSING}" for n in names)
    return [line] if measured else []


def _values(runs: Iterable[Run], name: str) -> list[str]:
    return sorted({str(v) for run in runs if (v := getattr(run.origin, name))})
