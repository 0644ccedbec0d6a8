"""What README.md and docs/gpu.md say of the H100 is what its reports hold, and so are the prices of
`hardware=h100-measured`.
"""

import json
import re
from collections import defaultdict
from statistics import fmean
from typing import Any

import msgspec
from conftest import ROOT

from skipbench.config.paths import CONF
from skipbench.metrics.prices import FORMAT, Prices

H100 = ROOT / "results" / "gpu" / "h100-80gb"


def found(part: str, step: str) -> list[dict[str, Any]]:
    """The lines of JSON that a step of a report printed."""
    steps = json.loads((H100 / part / "report.json").read_text())["steps"]
    return next(one["found"] for one in steps if one["name"] == step)


def prices(engine: str) -> Prices:
    """With curves of the verifications that it timed in rounds, behind drafts as far as there were
    any; without kinds that are timed no more: other plans, trees, top tokens.
    """
    (record,) = found("as-it-is", f"prices of {engine}")
    curves = []
    for context in sorted({one["context"] for one in record["rounds"]}):
        alone, drafted = dict[int, float](), defaultdict[int, list[float]](list)
        for one in record["rounds"]:
            if one["context"] == context and not any(one["how"]) and not one["plan"]:
                if one["steps"]:
                    drafted[one["rows"]].append(one["verify_s"])
                else:
                    alone[one["rows"]] = one["verify_s"]
        seconds = {n: s for n, s in alone.items() if n > max(drafted) or n == 1}
        seconds |= {n: fmean(several) for n, several in drafted.items()}
        rows = {n: round(seconds[n] / alone[1], 5) for n in sorted(seconds)}
        curves.append({"context": context, "rows": rows})
    return msgspec.convert(record | {"curves": curves}, Prices)


def short(*values: float, digits: int = 2) -> str:
    """Figures as the pages have them, without a zero before the point."""
    return ", ".join(re.sub(r"^0", "", f"{value:.{digits}f}") for value in values)


def test_prices_of_hardware_are_those_of_the_report() -> None:
    path = CONF / "hardware" / "h100-measured.json"
    kept = msgspec.json.decode(path.read_bytes(), type=Prices)
    assert kept.package_sha256 is not None
    known = {"format": FORMAT, "package_sha256": kept.package_sha256}
    assert msgspec.structs.replace(prices("cuda_graphs"), **known) == kept


def test_figures_of_the_h100_are_those_of_its_reports() -> None:
    near = {line["figure"]: line for line in found("as-it-is", "bars")}
    far = {line["figure"]: line for line in found("with-mends", "bars at a long context")}
    roof, half, rows = "vanilla / bandwidth", "draft half skipped / full step", "verify 9 rows"
    roof, rows = f"{roof} roofline", f"{rows} / 1 row"
    record, bytes_read = prices("cuda_graphs"), prices("cuda_graphs").bytes
    first = record.points[0]
    read = bytes_read["attention"] + bytes_read["mlp"] + (first.context + 1) * bytes_read["row"]
    (copy,) = (x["copy GB/s"] for x in found("as-it-is", "probe") if x["table"] == "ceilings")
    share = (32 * read + bytes_read["head"]) / first.whole_s / (copy * 1e9)
    ms = [float(each[roof]["note"].split()[0]) for each in (near, far)]
    plans = [x for x in found("as-it-is", "draft plans") if x["engine"] == "cuda_graphs"]
    low = [x["share of a pass"] for x in plans if x.get("plan") == "int8"]
    strict = {x["strict"]: x for x in found("with-mends", "strict rows")}
    alone = f"{strict[True]['differing']} of {strict[True]['compared']:,}"
    of_copy = short(share, near[roof]["value"], far[roof]["value"])
    both = {bar: [each[bar]["value"] for each in (near, far)] for bar in (half, rows)}
    gpu, readme = (ROOT / "docs" / "gpu.md").read_text(), (ROOT / "README.md").read_text()
    for text in (
        f"| {short(first.whole_s * 1e3, *ms)} ms: {of_copy} of the rate of a copy |",
        f"| {short(*both[rows])} |",
        f"| {short(*both[half], digits=3)} |",
        f"| {short(*low)} |",
        f"| {alone} with `engine.strict`, {strict[False]['differing']} of 2,000 without |",
    ):
        assert text in gpu, text
    for text in (
        f"[{ms[0]:.2f} ms, {short(near[roof]['value'])} of the rate of a copy]",
        f"[{short(near[rows]['value'])}]",
        f"[{short(near[half]['value'], digits=3)}]",
        f"[{alone} verified rows]",
    ):
        assert text in readme, text


def test_speedups_of_the_readme_are_those_of_the_table() -> None:
    table = (H100 / "smollm2-bfloat16.md").read_text()
    rows = re.findall(r"^\| specbench +\| \S+ +\| (\S+) .*? \| ([\d.]+)x \[", table, re.M)
    speedups = {name: float(value) for name, value in rows}
    skipping = sorted(speedups[name] for name in ("clasp", "swift", "knapspec", "uniform"))
    text = (
        f"`prompt-lookup` {speedups['prompt-lookup']}x, `auto` {speedups['auto']}x, methods that "
        f"skip sub-layers {short(skipping[0])}x to {short(skipping[-1])}x"
    )
    assert text in (ROOT / "README.md").read_text()
