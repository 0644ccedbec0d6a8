"""The comment on a pull request, from the folder that `bench BASE CHANGE` wrote:

    python ab_comment.py results/servers/NAME > comment.md

Exits with 1 where the change is slower beyond the noise, or answers are missing or differ.
"""

import csv
import sys
from pathlib import Path

MARK = "<!-- skipbench: base and change -->"  # by it the workflow finds its comment again


def speed(row: dict[str, str]) -> str:
    """What the interval of the change's speedup says."""
    if not row["low"]:
        clients = int(row["clients"])
        return f"too few prompts to tell: give {5 if clients == 1 else 10 * clients} or more"
    if float(row["low"]) > 1:
        return "faster"
    return "SLOWER" if float(row["high"]) < 1 else "no difference beyond the noise"


def answers(row: dict[str, str]) -> str:
    """Whether the answers are all there and equal to those of the base, or the model's own."""
    if row["failed"] != "0":
        return f"{row['failed']} FAILED"
    same, _, of = row["lossless"].partition("/")
    if not of:
        return "not compared"
    return f"{same} of {of} lossless" + ("" if same == of else ", others DIFFER")


def main(folder: Path) -> bool:
    """Prints the comment; returns whether nothing is wrong."""
    lines = csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines())
    print(f"{MARK}\n### Base and change on one machine, in turns on every prompt\n")
    print(
        "| in flight | speed | speedup [95 % interval] | prompts | answers |\n|---|---|---|---|---|"
    )
    sound = True
    for row in lines:
        if row["arm"] != "B":
            continue
        ends = f" [{float(row['low']):.2f}, {float(row['high']):.2f}]" if row["low"] else ""
        ratio = f"{float(row['speedup']):.2f}x{ends}" if row["speedup"] else "none"
        verdict, equal = speed(row), answers(row)
        print(f"| {row['clients']} | {verdict} | {ratio} | {row['n']} | {equal} |")
        sound &= not any(word in verdict + equal for word in ("SLOWER", "FAILED", "DIFFER"))
    table = (folder / "table.md").read_text(encoding="utf-8")
    print(f"\n<details><summary>Whole table; A: base, B: change</summary>\n\n{table}\n</details>")
    return sound


if __name__ == "__main__":
    raise SystemExit(0 if main(Path(sys.argv[1])) else 1)
