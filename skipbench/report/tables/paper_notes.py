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
from skipbench.report.origins import mixed, origin_of, origin_text, origins
from skipbench.report.published import Paper, Printed
from skipbench.report.tables.paper_rows import Half, named
from skipbench.runs.measures import Lossless
from skipbench.runs.run import Run

_PRINTED = ("engine", "device", "dtype", "torch", "commit", "date")
_COMPARED = ("max_new_tokens", "max_length", "batch")


def definitions(columns: Iterable[str]) -> list[tuple[str, str]]:
    """Name and sentence of the columns that a run can fill."""
    sentences = PAPER_DEFINITIONS | dict.fromkeys(SCORES, SCORE)
    return [(column, sentences[column]) for column in columns if column in sentences]


def deviations(printed: Sequence[Printed], runs: Sequence[Run]) -> list[str]:
    """A line for each of model, data, device, engine, number format and settings that is not the
    paper's.
    """
    measured = [run for run in runs if run.metrics]
    if not measured:
        return []
    # By its own name: weights from the package index have another than those of the hub.
    used = {run.keys.get("model"): run.model for run in measured}
    made = [f"Made with {STAND_INS[key]} {used[key]}" for key in used if key in STAND_INS]
    made += sorted({run.stands_for for run in measured if run.stands_for})
    counts = {
        (run.measured.n, run.paper_samples) for run in measured if run.paper_samples is not None
    }
    unlike = [pair for pair in counts if pair[0] != pair[1]]
    calibration = "; ".join(_values(measured, "calibration"))
    marks = origins(measured)
    of_origin = {
        mark: " | ".join(dict.fromkeys(named(r) for r in measured if origin_of(r) == origin))
        for origin, mark in marks.items()
    }
    lines = [
        f"{', '.join(made)}: not a replication." if made else "",
        _device(printed, measured),
        _unlike("engine", _values(measured, "engine") or [MISSING], ["its own code"]),
        *(_setting(printed, measured, key) for key in ("dtype", *_COMPARED)),
        _unlike("n (samples per cell)", *({str(pair[i]) for pair in unlike} for i in (0, 1)))
        if unlike
        else "",
        f"sparsified weights: calibrated on {calibration} (Wanda's authors: 128 sequences of C4); "
        "their zeros are multiplied as any weight, without a sparse kernel."
        if calibration
        else "",
        f"The runs are from {len(marks)} origins: compare them with care." if marks else "",
        *(
            f"origin {mark}: {origin_text(origin)}: {of_origin[mark]}."
            for origin, mark in marks.items()
        ),
        *mixed(measured),
        "Some runs were made with uncommitted changes to the code."
        if any(run.origin.dirty for run in measured)
        else "",
    ]
    return [line for line in lines if line]


def _unlike(name: str, ours: Iterable[str], theirs: Iterable[str]) -> str:
    return f"{name}: {', '.join(sorted(ours))}; the paper's: {', '.join(sorted(theirs))}."


def _setting(printed: Sequence[Printed], measured: Sequence[Run], key: str) -> str:
    """The line of a setting that is not the paper's; one that the paper does not name is compared
    if it is the number format.
    """
    theirs = {str(value) for n in printed if (value := n.keys.get(key)) is not None}
    ours = {str(value) for run in measured if (value := run.keys.get(key)) is not None}
    if key == "dtype":
        ours = {*_values(measured, key)} or ours
        unlike = ours != theirs
        return _unlike(key, ours or ["not recorded"], theirs or ["not named"]) if unlike else ""
    return _unlike(key, ours, theirs) if theirs and ours - theirs else ""


def sample_counts(runs: Sequence[Run]) -> str:
    """The numbers of prompts of the runs that have metrics."""
    counts = {sample_count(run.metrics) for run in runs if run.metrics}
    return f"; n: {', '.join(sorted(counts))} samples per run" if counts else ""


def same_device(ours: str, theirs: str) -> bool:
    """Compares a device's name with the paper's: true for the same single device, with the same
    memory where both names have it.
    """
    count = re.match(r"(\d+)x ", theirs)
    products = re.findall(r"\b[A-Z]\d{2,4}\b", theirs)
    if not products or (count and count[1] != "1"):
        return False
    memories = [re.findall(r"(\d+) ?GB", name) for name in (ours, theirs)]
    return all(re.search(rf"\b{p}\b", ours) for p in products) and (
        not all(memories) or memories[0] == memories[1]
    )


def _device(printed: Sequence[Printed], measured: Sequence[Run]) -> str:
    """The line where a run's device is not that on which the paper ran the same model."""
    unlike, theirs = set[str](), set[str]()
    for run in measured:
        device, model = run.origin.device or "not recorded", run.keys.get("model")
        same = [n for n in printed if n.keys.get("model") == model] or printed
        hardware = {n.hardware or "not named" for n in same}
        if not any(same_device(device, name) for name in hardware):
            unlike.add(device)
            theirs |= hardware
    return _unlike("device", unlike, theirs) if unlike else ""


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
    measured = [(named(run), run, run.metrics) for run in runs if run.metrics]
    twice = " | ".join(text for half in parts for text in half.twice)
    # a run with metrics has its reason in a line of its own
    unplaced = " | ".join(
        named(r) + (f" ({r.reason})" if r.reason and not r.metrics else "") for r in left
    )
    notes = [
        f"vanilla without a run of its own is the vanilla arm of {arms}." if arms else "",
        *(f"{name}: {run.reason}" for name, run, _ in measured if run.reason),
        *(f"{name}: {'; '.join(of)}." for name, _, m in measured if (of := search_phases(m))),
        *(f"{name}: {end}." for name, _, m in measured if (end := stopped_early(m))),
        f"several runs stand for the same numbers, the first is shown: {twice}." if twice else "",
        f"Runs that belong to no row of this table: {unplaced}." if unplaced else "",
    ]
    return list(dict.fromkeys(note for note in notes if note))


def skipped_shares(runs: Sequence[Run]) -> list[str]:
    """A line of the share of sub-layers that each method's runs skip, from the smallest to the
    largest.
    """
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
    # one run of a mini dataset may stand for several of the paper's
    unique = {
        repr([run.model, run.method, run.dataset, run.metrics]): run.metrics.lossless
        for run in runs
        if run.metrics
    }.values()
    kinds = [kind for kind in Lossless.__struct_fields__ if kind != "identical"]
    same, total = sum(one.identical for one in unique), sum(one.comparable for one in unique)
    counts = {kind: sum(getattr(one, kind) for one in unique) for kind in kinds}
    others = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    text = f"{same} of {total} greedy samples identical to vanilla's"
    return (
        f"{text if total else 'no greedy samples'}{f' ({others})' if others else ''}; "
        f"{len(unique)} {'run' if len(unique) == 1 else 'runs'}"
    )


def provenance(runs: Sequence[Run]) -> list[str]:
    """A line of the distinct values over the runs with metrics; a dash for what was not recorded.

    Empty where nothing was measured.
    """
    measured = [run for run in runs if run.metrics]
    names = [*_PRINTED, *(["sparsity"] if _values(measured, "sparsity") else [])]
    line = "; ".join(f"{n}: {', '.join(_values(measured, n)) or MISSING}" for n in names)
    return [line] if measured else []


def _values(runs: Iterable[Run], name: str) -> list[str]:
    return sorted({str(v) for run in runs if (v := getattr(run.origin, name))})
