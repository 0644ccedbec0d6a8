"""The contents of the page, from the folders of runs. Nothing but records is read."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError, printable
from skipbench.metrics.summary import summarise
from skipbench.report.columns import MISSING, exceptions, main_cells, missing_reasons, waits_cells
from skipbench.report.measured import VALUES
from skipbench.runs.measures import Metrics
from skipbench.runs.reading import run_folders
from skipbench.runs.record import SOURCES, Arm, Completion, Sample
from skipbench.runs.run import Run, read_run

MOST_TEXTS = 3
MOST_POINTS = 1000  # of one curve, so that hundreds of runs fit into one file
MOST_SETS = 200
# Skip sets have a map of their own; the others are the draft length again, or positions.
NOT_DRAWN = ("skip", "steps", "optimised", "step", "weights", "searching")
MOST_NAMES = 4  # of the models, methods and datasets in the line on top
NAMES = ("model", "method", "dataset")
MEASURED = ("M", "alpha", "tau", "TPT", "E(Spd)", "speedup", "lossless")
WAITS = ("TTFT", "ITL")
COLUMNS = (
    *("model", "method", "speedup", "dataset", "point"),
    *(name for name in MEASURED if name != "speedup"),
    *WAITS,
    *("engine", "device", "commit", "date", "note"),
)  # the first two stay in sight when a narrow screen is scrolled; the next are wanted first
OPTIONAL = ("point", *WAITS)  # columns that are left out where no run has them


class PageRun(Struct):
    """A run: `cells` (text) and `sort` (numbers) by column; `error` of one that is not readable."""

    id: str
    cells: dict[str, str]
    sort: dict[str, float]
    detail: dict[str, object]
    error: str | None = None
    run: Run | None = None  # without its samples; None of one that is not readable


def all_runs(results: Path) -> list[PageRun]:
    """Every folder under `results/runs`."""
    return [one_run(folder) for folder in run_folders(results)]


def one_run(folder: Path) -> PageRun:
    """One run on the page; a folder that cannot be read is a row with the reason."""
    cells = dict.fromkeys(COLUMNS, MISSING) | dict.fromkeys(OPTIONAL, "")
    try:
        run = _so_far(read_run(folder))
        samples = run.samples
        texts = [_text(s, run.completions.get(s.index)) for s in samples[:MOST_TEXTS]]
    except (SkipbenchError, OSError) as error:
        cells |= {"note": f"cannot be read: {error}"}
        reason = printable(f"{folder.name}: {error}")
        return PageRun(printable(folder.name), cells, {}, {"unreadable": reason}, reason)
    metrics, origin = run.metrics or Metrics(), run.origin
    measured = main_cells(metrics) | waits_cells(metrics, (50,))  # others: in `metrics`
    given = {
        **{name: getattr(run, name) for name in NAMES},
        **{name: getattr(origin, name) for name in ("engine", "device", "date")},
        **{k: v for k, v in measured.items() if k in COLUMNS and v != MISSING},
        "point": run.label,
        "commit": (origin.commit or MISSING)[:9] + ("+" if origin.dirty else ""),
    }
    cells |= {column: text for column, text in given.items() if text} | {"note": _note(run)}
    letters = {source for text in texts for *_, source in text["pieces"]}
    detail = {
        "metrics": to_builtins(run.metrics) if run.metrics else {},
        "status": to_builtins(run.status),
        "config": run.settings,
        "provenance": to_builtins(run.provenance),
        "courses": courses(samples),
        "skip": skip_sets(samples, run.provenance.layers),
        "samples": len(samples),
        "texts": texts,
        "sources": {k: v for k, v in SOURCES.items() if k in letters},
    }
    numbers = {name: VALUES[name](metrics) for name in MEASURED if name in VALUES}
    numbers |= {
        "speedup": run.speedup,
        "lossless": metrics.lossless.identical if metrics.samples else None,
        "E(Spd)": metrics.expected_speedup.measured_cost,
    }
    sort = {name: value for name, value in numbers.items() if value is not None}
    return PageRun(
        folder.name, cells, sort, detail, run=replace(run)
    )  # what it has read is left out


def _so_far(run: Run) -> Run:
    """A run that is not finished, with the metrics of the prompts that it has decoded."""
    if run.metrics or not run.samples or run.provenance.layers is None:
        return run
    metrics = summarise(run.samples, run.provenance.layers, None, None, None)
    of = f" of {limit}" if (limit := run.setting("limit")) else ""
    return replace(
        run, metrics=metrics, reason=f"{run.status.state}: {metrics.samples}{of} prompts"
    )


def _text(sample: Sample, completion: Completion | None) -> dict[str, Any]:
    """One sample's prompt and coloured output."""
    text, chars = (completion.method, completion.token_chars) if completion else (None, [])
    pieces, how = pieces_of(sample.method, text, chars, letters_of(sample.trace))
    return {
        "id": sample.id,
        "prompt": completion.prompt if completion else None,
        "pieces": pieces,
        "how": how,
        "lossless": sample.lossless,
        "tokens": len(sample.method.tokens),
        "rounds": len(sample.method.rounds),
    }


def _note(run: Run) -> str:
    """Why there are no numbers, or which of them are missing."""
    if run.metrics:
        reasons = [v for k, v in missing_reasons(run.metrics).items() if k != "roofline"]
        so_far = [run.reason] if run.reason else []
        return "; ".join([*so_far, *exceptions(run.metrics), *reasons])
    if run.status.state == "missing":
        return "not finished"
    return ": ".join(filter(None, (run.status.state, run.status.error)))


def about(runs: Sequence[PageRun]) -> str | None:
    """The line on top of the page: the runs, where and when; `None` if none can be read."""
    sound = [run.cells for run in runs if not run.error]
    if not sound:
        return None

    def distinct(column: str) -> list[str]:
        return list(dict.fromkeys(c[column] for c in sound if c[column] != MISSING))

    def some(kind: str) -> str:
        shown = ", ".join((names := distinct(kind))[:MOST_NAMES])
        return shown if len(names) <= MOST_NAMES else f"{len(names)} {kind}s ({shown}, ...)"

    count = f"{len(sound)} run{'s' if len(sound) > 1 else ''}"
    text = f"{count} of {some('model')}: {some('method')} on {some('dataset')}"
    if devices := distinct("device"):
        text += f", measured on {', '.join(devices)}"
    if dates := distinct("date"):
        text += f", {' to '.join(dict.fromkeys((min(dates), max(dates))))}"
    return f"{text}."


def courses(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A curve per quantity of rounds and trace: `name`, `values` over all samples, `starts` of the
    samples, `of` how many values, `by` round or record.
    """
    found = []
    for name in dict.fromkeys(["draft length", "accepted", *(n for s in samples for n in s.trace)]):
        parts = [_values(sample, name) for sample in samples]
        lengths = [len(part) for part in parts]
        shown = [v for part in parts for v in part][:MOST_POINTS]
        if len(shown) < 2 or not any(shown):  # a line of zeros shows nothing
            continue
        starts = [s for s in accumulate(lengths[:-1], initial=0) if s < len(shown)]
        rounds = zip(lengths, samples, strict=True)
        by = "round" if all(n in (0, len(s.method.rounds)) for n, s in rounds) else "record"
        curve = {"name": name, "values": shown, "starts": starts, "of": sum(lengths), "by": by}
        found.append(curve)
    return found


def _values(sample: Sample, name: str) -> list[float]:
    if name in ("draft length", "accepted"):
        return [r.accepted if name == "accepted" else r.steps for r in sample.method.rounds]
    found = sample.trace.get(name)
    values = map(_number, found) if isinstance(found, list) and name not in NOT_DRAWN else ()
    return [v for v in values if v is not None]


def _number(value: Any) -> float | None:
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        value = sum(value) / len(value)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value, 5) if numeric else None


def skip_sets(samples: Sequence[Sample], layers: int | None) -> dict[str, Any] | None:
    """Skip sets in use order: `layers`, `of` how many, `sets` [sample, round, attention, mlp]."""
    changes = ((s.index, int(at), str(text)) for s in samples for at, text in s.skip_changes)
    used = [next(same) for _, same in groupby(changes, key=lambda change: change[2])]
    if layers is None or not any(text for _, _, text in used):
        return None
    try:
        parsed = [(i, at, DraftPlan.parse(text, layers)) for i, at, text in used[:MOST_SETS]]
    except SkipbenchError:
        return None
    sets = [[i, at, list(s.attention), list(s.mlp)] for i, at, s in parsed]
    return {"layers": layers, "of": len(used), "sets": sets}


def letters_of(trace: Mapping[str, Any]) -> list[str]:
    """Letters of the sources of the accepted tokens, per round; empty where none are traced."""
    found = trace.get("source")
    known = isinstance(found, list) and all(
        isinstance(letters, str) and SOURCES.keys() >= set(letters) for letters in found
    )
    return list(found) if found and known else []


def kinds_of(arm: Arm, letters: Sequence[str] = ()) -> list[tuple[str, int, str]]:
    """Pieces of the output in order: kind (prefill, accepted, rejected, bonus, rest), number of
    tokens, and the source's letter of accepted ones; `letters` of `letters_of`.
    """
    pieces = [("prefill", 1, "")]
    for number, turn in enumerate(arm.rounds):
        kept = min(turn.accepted, turn.emitted)
        sources = letters[number][:kept] if number < len(letters) else ""
        pieces += [("accepted", len(list(run)), source) for source, run in groupby(sources)]
        pieces.append(("accepted", kept - len(sources), ""))
        pieces.append(("rejected", turn.nodes - turn.accepted, ""))
        pieces.append(("bonus", turn.emitted - kept, ""))
    pieces.append(("rest", len(arm.tokens), ""))
    found, left = [], len(arm.tokens)
    for kind, count, source in pieces:
        if kind != "rejected":
            count = min(count, left)
            left -= count
        if count > 0:
            found.append((kind, count, source))
    return found


def pieces_of(
    arm: Arm, text: str | None, token_chars: Sequence[int], letters: Sequence[str] = ()
) -> tuple[list[list[Any]], str]:
    """`[kind, tokens, text, source]` of each piece (Self-SD Figure 1), and what they show: pieces,
    text (`token_chars` of it are not recorded), or counts.
    """
    kinds = kinds_of(arm, letters)
    if text is None:
        return [[kind, n, "", source] for kind, n, source in kinds], "counts"
    if len(token_chars) != len(arm.tokens):
        return [["rest", len(arm.tokens), text, ""]], "text"
    ends = [0, *accumulate(token_chars)]
    ends[-1] = len(text)
    pieces, done = list[list[Any]](), 0
    for kind, n, source in kinds:
        before, done = done, done + (0 if kind == "rejected" else n)
        pieces.append([kind, n, text[ends[before] : ends[done]], source])
    return pieces, "pieces"


def as_script(value: object) -> Markup:
    """JSON that may stand inside a script element: no text in it can close the element."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), sort_keys=True, default=str)
