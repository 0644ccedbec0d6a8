"""docs/examples/ab.yml and its script: what the comment says, and when the job fails."""

import csv
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from fake import fakes
from test_docs import check_command
from test_servers import bench, prompts

from docs.examples.ab_comment import COMPARED, HIGH, LOW, MARK, answers, main, speed

WORKFLOW = ROOT / "docs" / "examples" / "ab.yml"


def test_the_comment_of_a_bench_and_of_one_with_another_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"<{n}>" for n in range(6)]
    for other, sound in (([], "6 of 6 lossless"), (["<3>"], "5 of 6 lossless, others DIFFER")):
        folder = tmp_path / str(len(other))
        folder.mkdir()
        with fakes({}, {"other": other}) as (a, b):
            bench(folder, a.url, b.url, *prompts(folder, texts))
        (path,) = folder.glob("tables/*.all.csv")
        rows = list(csv.DictReader(path.read_text().splitlines()))
        for low, high, word in ((0.9, 1.1, "no difference"), (0.8, 0.9, "SLOWER")):
            drawn = [row | {"speedup.e2e": 1.0, LOW: low, HIGH: high} for row in rows]
            with path.open("w") as file:
                writer = csv.DictWriter(file, drawn[0])
                writer.writeheader()
                writer.writerows(drawn)
            capsys.readouterr()
            assert main(path) is (word != "SLOWER" and not other)
            text = capsys.readouterr().out
            assert text.startswith(MARK) and text.count(word) == 1
            assert f"| 1.00x [{low:.2f}, {high:.2f}] | 6 | {sound} |" in text
            assert next(folder.glob("tables/*.md")).read_text() in text


def test_what_is_missing_is_said() -> None:
    row = {f"lossless.{kind}": "0" for kind in (*COMPARED, "failed")}
    assert "too few prompts" in speed(row) and answers(row) == "not compared"
    assert speed(row | {LOW: "1.01", HIGH: "1.2"}) == "faster"
    assert answers(row | {"lossless.failed": "2", "lossless.identical": "4"}) == "2 FAILED"


def test_the_workflow_is_of_commands_that_can_be_given() -> None:
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["speed"]
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    for script in scripts:
        assert subprocess.run(["bash", "-n", "-c", script]).returncode == 0, script
    (words,) = re.findall(r"python -m skipbench bench (.*)", "\n".join(scripts))
    assert check_command("bench", words.split())
    assert any(f'startswith("{MARK}")' in script for script in scripts)
