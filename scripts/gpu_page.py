"""The page of `scripts/gpu_report.py`: from the report's JSON, by Python alone."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from scripts.gpu_predictions import Card, card_of, markdown, rows_of
from scripts.gpu_verdict import GATES, Claim, conditions, default, faults, lines, ran

Found = dict[str, Any]  # a line of JSON that a step printed
Row = dict[str, Any]
LONGEST = 120  # characters of a text in a table
BESIDE = ("kind", "table", "notes", "engine_asked", "own", "lacking", "folder")
"""Keys of lines that are no columns: they stand in the first lines, or below the tables."""


def page(report: Found) -> str:
    """Markdown: what ran and the verdict, what is wrong, then every step with its tables."""
    steps, rehearsal = report["steps"], report["rehearsal"]
    name = next((line["gpu"] for line in lines(steps) if "gpu" in line), "a GPU")
    kind = "Rehearsal on a CPU: no figure here means a GPU" if rehearsal else f"{name}, measured"
    head = [
        f"# {kind}",
        f"`engine=cuda_graphs` where a CUDA device is: {default(steps, rehearsal)}",
        claims("what ran", ran(steps)),
        claims("condition of the default", conditions(steps, rehearsal)),
        "## Wrong",
        "\n".join(f"- {line}" for line in wrong(steps)) or "Nothing.",
        "## The report",
        f"`python scripts/gpu_report.py` at commit {report['commit']}, begun {report['began']}; "
        f"{report['seconds']:.0f} s of {report['budget_s']:.0f}. Data: [report.json](report.json). "
        "Open an issue with this page, and `report.json` as a file: figures of any GPU help.",
    ]
    card = None if rehearsal else card_of(lines(steps))
    return "\n\n".join([*head, *(b for step in steps for b in section(step, card))]) + "\n"


def claims(heading: str, found: Sequence[Claim]) -> str:
    """A table of them; each says yes, no, or nothing where it is not known."""
    says = {True: "yes", False: "**no**", None: ""}
    rows = [{heading: c.what, "wanted": c.wanted, "found": c.found, "": says[c.holds]}
            for c in found]  # fmt: skip
    return table(rows, longest=1000)


def wrong(steps: Sequence[Found]) -> list[str]:
    """What any gate says, those of the first lines first."""
    return [line for gate in GATES for line in faults(gate, steps)]


def section(step: Found, card: Card | None) -> Iterator[str]:
    """A step's heading, command, and a table per kind of line; notes once, in full."""
    yield f"## {step['name'][0].upper()}{step['name'][1:]}"
    why = f", {step['why']}" if step["why"] else ""
    yield f"{step['shows']} {step['state'].capitalize()}{why}, {step['seconds']:.0f} s."
    if card and (predicted := rows_of({step["name"]: step["found"]}, step["name"], card)):
        yield markdown(predicted).rstrip()
    titled = [(line.get("table", ""), row) for line in step["found"] for row in _rows(line)]
    for title, group in groupby(titled, lambda pair: pair[0]):
        if title:
            yield f"**{title}**"
        yield table([row for _, row in group])
    said = "; ".join(str(line["notes"]) for line in step["found"] if line.get("notes"))
    if said:
        yield f"Notes: {'; '.join(dict.fromkeys(said.split('; ')))}"
    if step["state"] == "failed" and step["tail"]:
        yield "\n".join(["```", *step["tail"].replace("```", "").splitlines()[-12:], "```"])


def _rows(line: Found) -> list[Row]:
    if "points" in line:
        return [{"points": len(line["points"]), "folder": "latency"}]
    if "metrics" in line:
        return _cell(line)
    return [{k: v for k, v in line.items() if k not in BESIDE}]


def table(rows: Sequence[Row], longest: int = LONGEST) -> str:
    """Markdown of rows whose keys are the columns; one row alone is turned on its side."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(rows) == 1 and len(columns) > 7:
        rows, columns = [{"": k, "value": rows[0][k]} for k in columns], ["", "value"]
    cells = [[_text(r.get(c), longest) for c in columns] for r in rows]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *cells]
    )


def _text(value: object, longest: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = str(value).replace("|", "/").replace("\n", " ")
    return text if len(text) <= longest else f"{text[:longest]}..."


def _cell(line: Found) -> list[Row]:
    metrics = line["metrics"]
    if not metrics:
        return []
    return [{
        "method": line["method"], "engine": line["engine"], "dtype": line["dtype"],
        "samples": metrics["samples"], "tok/s": metrics["tokens_per_s"],
        "vanilla tok/s": metrics["vanilla"]["tokens_per_s"], "speedup": metrics["speedup"]["e2e"],
        "M": metrics["M"], "alpha": metrics.get("alpha"),
        "lossless": ", ".join(f"{n} {k}" for k, n in metrics["lossless"].items() if n),
    }]  # fmt: skip
