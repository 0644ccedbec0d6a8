"""The comment on a pull request, from the table that `bench BASE CHANGE` wrote:

    python ab_comment.py results/tables/NAME.all.csv > comment.md

Exits with 1 where the change is slower beyond the noise, or answers are missing or differ.
"""

import csv
import sys
from pathlib import Path

MARK = "<!-- skipbench: base and change -->"  # by it the workflow finds its comment again


LOW, HIGH = "speedup.e2e_ci95.0", "speedup.e2e_ci95.1"
COMPARED = "identical", "ties", "diverged", "unchecked"


def speed(row: dict[str, str]) -> str:
    """What the interval of the change's speedup says."""
    if not row.get(LOW):
        return "too few prompts to tell: give 5 or more, with C in flight 10 C"
    if float(row[LOW]) > 1:
        return "faster"
    return "SLOWER" if float(row[HIGH]) < 1 else "no difference beyond the noise"


def answers(row: dict[str, str]) -> str:
    """Whether the answers are all there and equal to those of the base, or the model's own."""
    if row["lossless.failed"] != "0":
        return f"{row['lossless.failed']} FAILED"
    same, of = row["lossless.identical"], sum(int(row[f"lossless.{kind}"]) for kind in COMPARED)
    if not of:
        return "not compared"
    return f"{same} of {of} lossless" + ("" if int(same) == of else ", others DIFFER")


def main(path: Path) -> bool:
    """Prints the comment; returns whether nothing is wrong."""
    lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    print(f"{MARK}\n### Base and change on one machine, in turns on every prompt\n")
    print("| prompts | speed | speedup [95 % interval] | n | answers |\n|---|---|---|---|---|")
    sound = True
    for row in lines:
        if row["method"] != "B":
            continue
        ends = f" [{float(row[LOW]):.2f}, {float(row[HIGH]):.2f}]" if row.get(LOW) else ""
        ratio = f"{float(row['speedup.e2e']):.2f}x{ends}" if row["speedup.e2e"] else "none"
        verdict, equal = speed(row), answers(row)
        print(f"| {row['dataset']} | {verdict} | {ratio} | {row['samples']} | {equal} |")
        sound &= not any(word in verdict + equal for word in ("SLOWER", "FAILED", "DIFFER"))
    table = path.with_name(path.name.replace(".all.csv", ".md")).read_text(encoding="utf-8")
    print(f"\n<details><summary>Whole table; A: base, B: change</summary>\n\n{table}\n</details>")
    return sound


if __name__ == "__main__":
    raise SystemExit(0 if main(Path(sys.argv[1])) else 1)
