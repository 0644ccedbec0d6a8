"""Packs the samples behind committed tables, so that every number of theirs can be computed again.

    python scripts/pack_records.py RESULTS results/laptop/tables/real.json ...

Each table gets `records/NAME.jsonl.xz` beside `tables/`: one line per sample, with the `run` that
it is of, and without prompts and texts. `unpacked` reads it.
"""

import argparse
import json
import lzma
from pathlib import Path

import msgspec

from skipbench.runs.record import Sample


def runs_of(table: Path) -> list[str]:
    """The ids of the runs of a stored table that have metrics."""
    stored = [run for run in json.loads(table.read_text())["runs"] if run.get("metrics")]
    return list(dict.fromkeys(run["id"] for run in stored if run["id"]))


def place_of(table: Path) -> Path:
    """The file of a table's samples."""
    return table.parent.parent / "records" / f"{table.stem}.jsonl.xz"


def table_of(place: Path) -> Path:
    """The stored table of a file of samples."""
    return place.parent.parent / "tables" / place.name.replace(".jsonl.xz", ".json")


def pack(results: Path, table: Path) -> Path:
    """Writes the samples of the runs of a table."""
    lines = []
    for run in runs_of(table):
        for line in (results / "runs" / run / "samples.jsonl").read_bytes().splitlines():
            lines.append(json.dumps({"run": run, "sample": json.loads(line)}))
    (place := place_of(table)).parent.mkdir(exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    place.write_bytes(lzma.compress(data, preset=9))
    return place


def unpacked(place: Path) -> dict[str, list[Sample]]:
    """The samples of every run, by its id."""
    found: dict[str, list[Sample]] = {}
    for line in lzma.decompress(place.read_bytes()).splitlines():
        one = json.loads(line)
        found.setdefault(one["run"], []).append(msgspec.convert(one["sample"], Sample))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder of the runs")
    parser.add_argument("tables", type=Path, nargs="+")
    given = parser.parse_args()
    for table in given.tables:
        print(pack(given.results, table))
