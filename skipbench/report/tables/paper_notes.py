"""Texts below a paper's table: cautions, notes, the lossless count and where the runs come from."""

import re
from collections.abc import Iterable, Iterator, Sequence

from skipbench.report.columns import DEFINITIONS
from skipbench.report.compared import mixed, origins
from skipbench.report.definitions import BY_PAPER, OF_PAPERS
from skipbench.report.published import Paper, Printed
from skipbench.report.tables.paper_rows import LENGTHS, Half, named
from skipbench.report.values import MISSING, count
from skipbench.runs.measures import Lossless
from skipbench.runs.run import Run

OWN = ("dtype", *LENGTHS)  # settings of the paper's runs, not ours
BATCH = "1"  # prompts are decoded one at a time
_PRINTED = ("engine", "device", "cpu", "dtype", "torch", "commit", "date")


def deviations(paper: Paper, parts: Sequence[Half], runs: Sequence[Run]) -> list[str]:
    """A line per difference from the paper: model, data, device, engine, software, settings."""
    if not (measured := [run for run in runs if run.metrics]):
        return []
    printed = [number for half in parts for number in half.numbers]
    lines = list[str]()
    lines += [
        f"{name}: {', '.join(sorted(ours))}; the paper's: {', '.join(sorted(theirs))}."
        for name, ours, theirs in _unlike(paper, printed, measured)
        if ours
    ]
    if calibration := "; ".join(_values(measured, "calibration")):
        lines.append(
            f"sparsified weights: calibrated on {calibration} (Wanda's authors: 128 sequences of "
            "C4); their zeros are multiplied as any weight, without a sparse kernel."
        )
    lines += [*origins(measured), *mixed(measured)]
    if any(run.origin.dirty for run in measured):
        lines.append("Some runs were made with uncommitted changes to the code.")
    return lines


def _unlike(
    paper: Paper, printed: Sequence[Printed], measured: Sequence[Run]
) -> Iterator[tuple[str, Iterable[str], Iterable[str]]]:
    """What is compared with the paper: its name, our values, none where alike, and the paper's."""
    ours, theirs = set[str](), set[str]()
    for run in measured:  # by the device on which the paper ran the same model
        device, model = run.origin.device or "not recorded", run.keys.get("model")
        same = [n for n in printed if n.keys.get("model") == model] or printed
        named = {n.hardware or "not named" for n in same}
        if not any(same_device(device, name) for name in named):
            ours, theirs = ours | {device}, theirs | named
    yield "device", ours, theirs
    yield "engine", _values(measured, "engine") or [MISSING], ["its own code"]
    if paper.software and (torch := _values(measured, "torch")):
        yield "software", [f"PyTorch {', '.join(torch)}"], [paper.software]
    dtypes = {str(run.keys["dtype"]) for run in measured if "dtype" in run.keys}
    for key in OWN:
        theirs = {str(value) for n in printed if (value := n.keys.get(key)) is not None}
        ours = {run.lengths[key] for run in measured if key in run.lengths}
        ours |= {BATCH} if key == "batch" else set()
        if key == "dtype":  # compared even where the paper does not name it
            ours = {*_values(measured, key)} or dtypes
        if ours != theirs if key == "dtype" else theirs and ours - theirs:
            yield key, ours or ["not recorded"], theirs or ["not named"]
    known = (r for r in measured if r.paper_samples is not None)
    pairs = {(str(r.measured.samples), str(r.paper_samples)) for r in known}
    others = [pair for pair in pairs if pair[0] != pair[1]]
    yield "n (samples per cell)", {n for n, _ in others}, {n for _, n in others}


def same_device(ours: str, theirs: str) -> bool:
    """True for the paper's single device, with the same memory where both names have it."""
    count, products = re.match(r"(\d+)x ", theirs), re.findall(r"\b[A-Z]\d{2,4}\b", theirs)
    here, there = (re.findall(r"(\d+) ?GB", name) for name in (ours, theirs))
    single, sized = not count or count[1] == "1", not (here and there) or here == there
    named = bool(products) and all(re.search(rf"\b{p}\b", ours) for p in products)
    return single and sized and named


def run_notes(runs: Sequence[Run], left: Sequence[Run]) -> list[str]:
    """Reasons of runs with numbers, and a line on those without that fit no row of the table."""
    notes = [f"{named(run)}: {run.reason}" for run in runs if run.metrics and run.reason]
    unplaced = " | ".join(named(r) + (f" ({r.reason})" if r.reason else "") for r in left)
    notes += [f"Runs that belong to no row of this table: {unplaced}."] if unplaced else []
    return list(dict.fromkeys(notes))


def definitions(paper: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Name and definition of columns."""
    known = DEFINITIONS | OF_PAPERS | BY_PAPER[paper]
    return [(name, known[name]) for name in names if name in known]


def provenance(runs: Sequence[Run]) -> list[str]:
    """The lossless count by kind, and the origins' distinct values if anything was measured."""
    measured = [run for run in runs if run.metrics]
    counted = [run.measured.lossless for run in measured]
    counts = {k: sum(getattr(one, k) for one in counted) for k in Lossless.__struct_fields__}
    same, total = counts.pop("identical"), sum(one.comparable for one in counted)
    others = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    samples = f"{same} of {total} greedy samples identical to vanilla's"
    line = f"lossless: {samples if total else 'no greedy samples'}{others and f' ({others})'}; "
    line += f"{len(measured)} {'run' if len(measured) == 1 else 'runs'}"
    if not measured:
        return [line]
    names = [*_PRINTED, *(["sparsity"] if _values(measured, "sparsity") else [])]
    n = ", ".join(sorted({count(run.measured).text for run in measured}))
    origin = "; ".join(f"{k}: {', '.join(_values(measured, k)) or MISSING}" for k in names)
    return [f"{line}; n: {n} samples per run", origin]


def _values(runs: Iterable[Run], name: str) -> list[str]:
    return sorted({str(v) for run in runs if (v := getattr(run.origin, name))})
