"""What stands under a paper's table: cautions, notes, definitions, the lossless count and where the
runs come from.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skipbench.report.cell import MISSING, value_at
from skipbench.report.definitions import DEFINITIONS, STAND_INS
from skipbench.report.measured import SCORES
from skipbench.report.origins import origin_of, origins, told
from skipbench.report.paperjoin import Half

Run = Mapping[str, Any]
_NAMES = {
    "expected_speedup": "E(Spd)",
    "tokens_per_s": "tok/s",
    "ratio": "skipped",
    "memory_gb": "memory",
}
_OWN = {
    "tokens_per_s": "decoded tokens per second of the method, pooled, without the prefill.",
    "expected_speedup": "M alpha / ((M - 1) c + alpha) (SWIFT Eq. 6) with c = 1 - r, r the mean "
    "skipped ratio of the sets that drafted, and c = 0 for drafts without a forward pass.",
    "ms_per_token": "1000 / tokens_per_s.",
    "share": "seconds of the phase / seconds of decoding, without the prefill.",
    "memory_gb": (
        "the most that was allocated at one time during the run of both arms, in 10^9 bytes."
    ),
    "ratio": DEFINITIONS["skipped"],
}
_ORIGIN = ("engine", "device", "dtype", "torch", "commit", "date")
_WHERE_SAID = ("sparsity",)  # of the origin what only some runs have
_COMPARED = ("max_new_tokens", "max_length", "batch")


def definitions(columns: Iterable[str]) -> list[tuple[str, str]]:
    """Name and sentence of those columns that a run can fill."""
    found = []
    for column in columns:
        text = _OWN.get(column) or DEFINITIONS.get(_NAMES.get(column, column))
        text = "the method's score, a mean over the samples." if column in SCORES else text
        if text:
            found.append((column, text))
    return found


def deviations(rows: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> list[str]:
    """A line for each of model, data, device, engine, number format and settings that is not the
    paper's.
    """
    measured = [run for run in runs if run.get("metrics")]
    if not measured:
        return []
    lines = []
    stands = sorted({str(run["stands_for"]) for run in measured if run.get("stands_for")})
    used_models = dict.fromkeys(run["keys"].get("model") for run in measured)
    made = [f"Made with {STAND_INS[model]}" for model in used_models if model in STAND_INS]
    if made or stands:
        lines.append(f"{', '.join([*made, *stands])}: not a replication.")
    lines += _devices(rows, measured)
    lines.append(
        f"engine: {', '.join(_values(measured, 'engine')) or MISSING}; the paper's: its own code."
    )
    formats = sorted({str(row["dtype"]) for row in rows if row.get("dtype")})
    used = _values(measured, "dtype") or sorted(
        {str(r["keys"]["dtype"]) for r in measured if r["keys"].get("dtype")}
    )
    if used != formats:
        lines.append(
            f"dtype: {', '.join(used) or 'not recorded'}; the paper's: "
            f"{', '.join(formats) or 'not named'}."
        )
    for key in _COMPARED:
        theirs = {str(row[key]) for row in rows if key in row}
        ours = {str(run["keys"][key]) for run in measured if key in run["keys"]}
        if theirs and ours - theirs:
            lines.append(
                f"{key}: {', '.join(sorted(ours))}; the paper's: {', '.join(sorted(theirs))}."
            )
    if texts := _values(measured, "calibration"):
        lines.append(
            f"sparsified weights: calibrated on {'; '.join(texts)} (Wanda's authors: 128 "
            "sequences of C4); their zeros are "
            f"multiplied as any weight, without a sparse kernel."
        )
    lines += _origins(measured)
    if any(value_at(run, "provenance", "dirty") for run in measured):
        lines.append("Some runs were made with uncommitted changes to the code.")
    return lines


def _origins(measured: Sequence[Run]) -> list[str]:
    """A line for each commit, device and version that the runs are from, with the rows that are its
    own.
    """
    marks = origins(measured)
    lines = [f"The runs are from {len(marks)} origins: compare them with care."] if marks else []
    for origin, mark in marks.items():
        own = dict.fromkeys(_named(run) for run in measured if origin_of(run) == origin)
        lines.append(f"origin {mark}: {told(origin)}: {' | '.join(own)}.")
    return lines


def same_device(ours: str, theirs: str) -> bool:
    """Whether a device's name is that of the one device in `theirs`, its memory included where both
    names have it.
    """
    count = re.match(r"(\d+)x ", theirs)
    products = re.findall(r"\b[A-Z]\d{2,4}\b", theirs)
    if not products or (count and count[1] != "1"):
        return False
    memories = re.findall(r"(\d+) ?GB", ours), re.findall(r"(\d+) ?GB", theirs)
    return all(re.search(rf"\b{p}\b", ours) for p in products) and (
        not all(memories) or memories[0] == memories[1]
    )


def _devices(rows: Sequence[Mapping[str, Any]], measured: Sequence[Run]) -> list[str]:
    """One line where a run's device is not that on which the paper ran the same model."""
    unlike, theirs = set[str](), set[str]()
    for run in measured:
        device, model = (
            str(value_at(run, "provenance", "device") or "not recorded"),
            run["keys"].get("model"),
        )
        same = [row for row in rows if row.get("model") == model] or rows
        hardware = {str(row["hardware"] or "not named") for row in same}
        if not any(same_device(device, named) for named in hardware):
            unlike.add(device)
            theirs |= hardware
    return (
        [f"device: {', '.join(sorted(unlike))}; the paper's: {', '.join(sorted(theirs))}."]
        if unlike
        else []
    )


def paper_notes(document: Mapping[str, Any], table: str) -> list[str]:
    """The transcription's notes on the table as a whole, then those on the paper that touch it."""
    own = [n["text"] for n in document["tables"][table].get("notes", []) if "where" not in n]
    return [*own, *(n["text"] for n in document.get("notes", []) if touches(n["text"], table))]


def run_notes(runs: Sequence[Run], left: Sequence[Run], parts: Sequence[Half]) -> list[str]:
    """What a reader must know of the runs: whose arm vanilla is, what is told of them, which are
    not shown.
    """
    told = [
        f"{_named(run)}: {run['reason']}"
        for run in runs
        if run.get("metrics") and run.get("reason")
    ]
    arms = sorted(
        {str(run["arm_of"]) for half in parts for run in half.runs.values() if run.get("arm_of")}
    )
    twice = [text for half in parts for text in half.twice]
    return [
        *(
            [f"vanilla without a run of its own is the vanilla arm of {', '.join(arms)}."]
            if arms
            else []
        ),
        *dict.fromkeys(told),
        *(
            [f"several runs stand for the same numbers, the first is shown: {' | '.join(twice)}."]
            if twice
            else []
        ),
        *(
            [f"Runs that belong to no row of this table: {' | '.join(map(_with_reason, left))}."]
            if left
            else []
        ),
    ]


def _with_reason(run: Run) -> str:
    """Of a run that has metrics its reason is told by itself."""
    return _named(run) + (
        f" ({run['reason']})" if run.get("reason") and not run.get("metrics") else ""
    )


def _named(run: Run) -> str:
    return ", ".join(f"{key}={value}" for key, value in run["keys"].items())


def touches(text: str, table: str) -> bool:
    """Whether a note of the whole paper concerns `table`: it names it, or it names no table or
    figure at all.
    """
    named = set[str]()
    for kind, numbers in re.findall(r"\b(Table|Figure)s? (\d\w*(?:(?:, | and | to )\d\w*)*)", text):
        named |= {f"{kind}{number}".lower() for number in re.findall(r"\d\w*", numbers)}
        for first, last in re.findall(r"(\d+) to (\d+)", numbers):
            named |= {f"{kind}{number}".lower() for number in range(int(first), int(last))}
    return not named or table in named


def lossless(runs: Sequence[Run]) -> str:
    """How many samples of all runs are identical to vanilla's, and what the others are."""
    kinds = ("identical", "ties", "diverged", "unchecked", "sampled", "failed")
    # one run of a mini dataset may stand for several of the paper's
    names = ("model", "method", "dataset", "metrics")
    unique = {
        repr([run.get(name) for name in names]): run for run in runs if run.get("metrics")
    }.values()
    count = {k: sum(value_at(run, "metrics", "lossless", k) or 0 for run in unique) for k in kinds}
    total = sum(count[k] for k in ("identical", "ties", "diverged", "unchecked"))
    others = ", ".join(f"{count[k]} {k}" for k in kinds[1:] if count[k])
    text = (
        f"{count['identical']} of {total} greedy samples identical to vanilla's"
        if total
        else "no greedy samples"
    )
    return (
        f"{text}{f' ({others})' if others else ''}; {len(unique)} "
        f"{'run' if len(unique) == 1 else 'runs'}"
    )


def provenance(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Distinct values over the runs with metrics; a dash for what was not recorded."""
    measured = [run for run in runs if run.get("metrics")]
    said = [name for name in _WHERE_SAID if _values(measured, name)]
    return (
        [(name, ", ".join(_values(measured, name)) or MISSING) for name in (*_ORIGIN, *said)]
        if measured
        else []
    )


def _values(runs: Iterable[Run], name: str) -> list[str]:
    return sorted({str(v) for run in runs if (v := value_at(run, "provenance", name))})
