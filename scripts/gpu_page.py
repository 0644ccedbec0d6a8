"""The page of `scripts/gpu_report.py`: from the report's JSON, by Python alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from scripts.gpu_bars import BARS
from scripts.gpu_predictions import markdown, predictions, rows_of

Found = dict[str, Any]  # a line of JSON that a step printed
Row = dict[str, Any]
LONGEST = 120  # characters of a text in a table


def page(report: Found) -> str:
    """Markdown: what is missing or wrong first, then every step with its tables."""
    steps = {step["name"]: step for step in report["steps"]}
    name = _first(steps, "environment").get("gpu", "a GPU")
    kind = (
        "Rehearsal on a CPU: no figure here means a GPU"
        if report["rehearsal"]
        else f"{name}, measured"
    )
    head = [
        f"# {kind}",
        f"`python scripts/gpu_report.py` at commit {report['commit']}, begun {report['began']}; "
        f"{report['seconds']:.0f} s of {report['budget_s']:.0f}. Data: [report.json](report.json).",
        "## Missing or wrong",
        "\n".join(f"- {line}" for line in dict.fromkeys(wrong(report["steps"]))) or "Nothing.",
    ]
    return (
        "\n\n".join([*head, *(block for step in report["steps"] for block in section(step, steps))])
        + "\n"
    )


def wrong(steps: Iterable[Found]) -> Iterator[str]:
    """Steps that are not done, bars that are missed, figures that are not as predicted,
    engines in place of others, failed tests and failed probes.
    """
    for step in steps:
        yield from unforeseen(step)
        if step["state"] != "done":
            yield f"**{step['name']}**: {step['state']}" + (
                f", {step['why']}" if step["why"] else ""
            )
        for line in step["found"]:
            if asked := line.get("engine_asked"):
                yield f"{step['name']}: engine {line['engine']} in place of {asked}"
            if line.get("met") is False:
                bar = f"{_text(line['value'])}, wanted {line['bar']}"
                yield f"{step['name']}: {line['figure']} is {bar}"
            elif line.get("outcome") in ("failed", "error"):
                yield f"test {line['test']}: {line['why']}"
            elif "error" in line:
                yield f"{step['name']}, {line.get('table', '')}: {line['error']}"


def unforeseen(step: Found) -> Iterator[str]:
    """Figures that are outside of what was predicted, or miss a bar that was predicted with."""
    for one in predictions():
        value = one.measured(step["found"]) if one.step == step["name"] else None
        if value is None:
            continue
        if one.bar is not None and value > one.bar:
            yield f"{step['name']}: {one.what} is {value:.4g}, wanted at most {one.bar:.4g}"
        if not one.low <= value <= one.high:
            wanted = f"predicted {one.low:.4g} to {one.high:.4g}"
            yield f"{step['name']}: {one.what} is {value:.4g}, {wanted}"


def section(step: Found, steps: dict[str, Found]) -> Iterator[str]:
    """A step's heading, command, and a table per kind of line."""
    yield f"## {step['name'][0].upper()}{step['name'][1:]}"
    why = f", {step['why']}" if step["why"] else ""
    yield f"{step['shows']} {step['state'].capitalize()}{why}, {step['seconds']:.0f} s."
    if predicted := rows_of({step["name"]: step["found"]}, step["name"]):
        yield markdown(predicted).rstrip()
    found = [line for line in step["found"] if "error" not in line]
    rows = [row for line in found for row in _shape(line)(line, steps)]
    for title, group in groupby(rows, lambda row: row.get("table", "")):
        if title:
            yield f"**{title}**"
        yield table([{k: v for k, v in row.items() if k != "table"} for row in group])
    if step["state"] == "failed" and step["tail"]:
        yield "\n".join(["```", *step["tail"].replace("```", "").splitlines()[-12:], "```"])


def table(rows: Sequence[Row]) -> str:
    """Markdown of rows whose keys are the columns; one row alone is turned on its side."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(rows) == 1 and len(columns) > 7:
        rows, columns = [{"": k, "value": rows[0][k]} for k in columns], ["", "value"]
    cells = [columns, ["---"] * len(columns), *([_text(r.get(c)) for c in columns] for r in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = str(value).replace("|", "/").replace("\n", " ")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _first(steps: dict[str, Found], table: str) -> Found:
    found = (line for step in steps.values() for line in step["found"])
    return next((line for line in found if line.get("table") == table), {})


def _as_is(line: Found, steps: dict[str, Found]) -> list[Row]:
    return [{k: v for k, v in line.items() if k != "kind"}]


def _bar(line: Found, steps: dict[str, Found]) -> list[Row]:
    row = {key: line.get(key) for key in ("figure", "value", "bar", "met", "note")}
    return [row | {"why this bar": BARS[line["figure"]].why if line["figure"] in BARS else ""}]


def _prices(line: Found, steps: dict[str, Found]) -> list[Row]:
    """A row per context and number of rows; the share is of the rate that the probe measured."""
    sizes, layers = line["bytes"], line["model"]["layers"]
    reads = _first(steps, "ceilings").get("read GB/s")
    rows = []
    for point in line["points"]:
        cached = (point["context"] + point["rows"]) * sizes["row"]
        moved = layers * (sizes["attention"] + sizes["mlp"] + cached) + sizes["head"]
        rate = moved / point["whole_s"] / 1e9
        rows.append({
            "context": point["context"], "rows": point["rows"], "ms": 1e3 * point["whole_s"],
            "GB": moved / 1e9, "GB/s": rate, "of the read rate": rate / reads if reads else None,
            "attention us": 1e6 * point["attention_s"], "MLP us": 1e6 * point["mlp_s"],
            "head us": 1e6 * point["head_s"],
        })  # fmt: skip
    return rows


def _cell(line: Found, steps: dict[str, Found]) -> list[Row]:
    metrics = line.get("metrics")
    if not metrics:
        return []
    # as it stands in reports of before there were turns
    vanilla = metrics.get("vanilla") or {"tokens_per_s": metrics["tokens_per_s_vanilla"]}
    return [{
        "method": line["method"], "engine": line["engine"], "dtype": line["dtype"],
        "samples": metrics["samples"], "tok/s": metrics["tokens_per_s"],
        "vanilla tok/s": vanilla["tokens_per_s"], "speedup": metrics["speedup"]["e2e"],
        "M": metrics["M"], "alpha": metrics.get("alpha"),
        "lossless": ", ".join(f"{n} {k}" for k, n in metrics["lossless"].items() if n),
    }]  # fmt: skip


SHAPES: dict[str, Callable[[Found, dict[str, Found]], list[Row]]] = {
    "figure": _bar, "points": _prices, "metrics": _cell,
}  # fmt: skip
"""What a line becomes, by a key that it has."""


def _shape(line: Found) -> Callable[[Found, dict[str, Found]], list[Row]]:
    return next((shape for key, shape in SHAPES.items() if key in line), _as_is)
