"""Packs the turns behind committed tables, so that every number of theirs can be computed again.

    python scripts/pack_records.py RESULTS results/laptop/tables/real.json ...

Each table gets `records/NAME.jsonl.xz` beside `tables/`: one line per turn, with the `row` that it
is of and the arms of the table, and without prompts and texts. `unpacked` reads it.
"""

import argparse
import json
import lzma
from pathlib import Path

import msgspec

from skipbench.runs.record import VANILLA, Turn, dump
from skipbench.runs.store import row_turns


def runs_of(table: Path) -> list[str]:
    """The ids of the runs of a stored table that have metrics."""
    stored = [run for run in json.loads(table.read_text())["runs"] if run.get("metrics")]
    return list(dict.fromkeys(run["id"] for run in stored if run["id"]))


def place_of(table: Path) -> Path:
    """The file of a table's turns."""
    return table.parent.parent / "records" / f"{table.stem}.jsonl.xz"


def table_of(place: Path) -> Path:
    """The stored table of a file of turns."""
    return place.parent.parent / "tables" / place.name.replace(".jsonl.xz", ".json")


def pack(results: Path, table: Path) -> Path:
    """Writes the turns of the runs of a table."""
    lines, rows = "", dict[str, set[str]]()
    for run in runs_of(table):
        row, arm = run.split("/")
        rows.setdefault(row, {VANILLA}).add(arm)
    for row, names in rows.items():
        for turn in row_turns(results / "runs" / row):
            if (kept := turn.only(names)).arms.keys() - {VANILLA}:
                lines += f'{{"row":{json.dumps(row)},"turn":{dump(kept)}}}\n'
    (place := place_of(table)).parent.mkdir(exist_ok=True)
    place.write_bytes(lzma.compress(lines.encode(), preset=9))
    return place


def unpacked(place: Path) -> dict[str, list[Turn]]:
    """The turns of every run, by its id."""
    found: dict[str, list[Turn]] = {}
    for line in lzma.decompress(place.read_bytes()).splitlines():
        one = json.loads(line)
        turn = msgspec.convert(one["turn"], Turn)
        for arm in turn.arms.keys() - {VANILLA}:
            found.setdefault(f"{one['row']}/{arm}", []).append(turn)
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
