"""A results folder whose every text attacks: terminals, HTML, formulas, LaTeX, paths, `_target_`s.
No reading command lets one through, or opens the tokenizer or weights that a record names.
"""

import contextlib
import csv
import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import CONFIG, METRICS, sample
from conftest import unseal
from msgspec.structs import replace

from skipbench.cli.commands import COMMANDS
from skipbench.cli.main import dispatch, one_kind_of_error
from skipbench.report.columns import STEERING
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, config_hash
from skipbench.runs.record import Completion
from skipbench.runs.store import RunStore

MARKUP = (
    "=cmd|' /C calc'!A0\u202e<img src=x onerror=alert(1)><script>alert(1)</script>"
    "\\input{/etc/passwd}|[a](javascript:alert(1))${7*7}%s"
)
CONTROLS = f"{MARKUP}\x1b[2J\x1b]0;mine\x07\x9b31m"
EVIL = {"_target_": "pathlib.Path.touch", "self": "harmed"}
TYPED = [
    *("report results=R", "status tiny results=R", "table R/tables/a.json columns=all"),
    *("table tiny results=R --render-only", "table R/tables/a.json formats=html,tabular.tex"),
    *("figure RUN", "figure R/tables/a.json"),
    *("score RUN", "score all results=R", "bundle out results=R", "bundle --check out"),
    *("cell R/submit/a-1/cells.jsonl 0", "submit tiny results=R --print", "diff R R"),
]
LOADING = ["verify RUN model=tiny", "status swift-table2 scale=embedded results=R"]


def hostile(results: Path, attack: str) -> Path:
    """A run with an attack in every text, and beside it a table and a submission."""
    config: dict[str, Any] = {**CONFIG, "stop": EVIL, "label": attack}
    for part in ("model", "method", "dataset", "engine"):
        config[part] = {**CONFIG.get(part, {}), "name": f"{attack}{part}", "path": attack}
    config["method"] |= EVIL
    folder = results / "runs" / f"a_b_c_{config_hash(config)}"
    texts = dict.fromkeys(("device", "host", "cpu", "commit", "label", "engine"), MARKUP)
    more: dict[str, Any] = {"notes": [MARKUP], "argv": [MARKUP], "versions": {"torch": MARKUP}}
    store = RunStore(folder, config, msgspec.convert({**texts, **more, "layers": 12}, Provenance))
    for index in range(2):
        store.append(
            replace(sample(index), id=f"{MARKUP}{index}", groups={"part": MARKUP}),
            Completion(index, f"{MARKUP}{index}", attack, {"text": attack}, attack, attack),
        )
    scores = {"vanilla": {MARKUP: 1.0}, "method": {MARKUP: 1.0}}
    store.write_metrics(msgspec.convert({**METRICS, "score": scores}, Metrics))
    store.status("done")
    store.close()
    unseal(folder)
    run = {"model": attack, "method": attack, "dataset": attack, "keys": {}, "metrics": None}
    run |= {"stands_for": attack, "reason": attack, "provenance": {}}
    stored = {"experiment": attack, "scale": attack, "runs": [run]}
    plain = {
        "configs": [{**config, "method": {**config["method"], **EVIL}}],
        "folders": [attack],
        "names": [attack],
    }
    given = {"tables/a.json": stored, "submit/a-1/cells.jsonl": plain}
    for name, content in given.items():
        (results / name).parent.mkdir(parents=True)
        (results / name).write_text(json.dumps(content) + "\n")
    for path in folder.glob("*.json*") if attack == CONTROLS else ():
        text = path.read_text().replace(json.dumps(MARKUP)[1:-1], json.dumps(attack)[1:-1])
        path.write_text(text)
    return folder


@functools.cache
def opened() -> list[str]:
    """Paths that Python code opens from the first call on; a hook stays as long as its process."""
    paths = list[str]()

    def note(event: str, values: tuple[object, ...]) -> None:
        if event == "open" and isinstance(path := values[0], str | bytes):
            paths.append(os.path.abspath(os.fsdecode(path)))

    sys.addaudithook(note)
    return paths


def live(path: Path) -> list[str]:
    """What of a written file would act in a browser, a spreadsheet, LaTeX or a terminal."""
    text = path.read_text()
    found = STEERING.findall(text)
    if path.suffix in (".html", ".md", ".svg"):
        found += re.findall(r"<(?:img src=x|script>alert)", text)
    if path.suffix == ".md":
        found += re.findall(r"\]\(javascript:", text)
    if path.suffix == ".csv":
        cells = (cell for row in csv.reader(text.splitlines()) for cell in row)
        found += [cell for cell in cells if cell.startswith(("=", "@", "+cmd", "-cmd"))]
    return found + (re.findall(r"\\input\{", text) if path.suffix == ".tex" else [])


@pytest.mark.filterwarnings("ignore:constrained_layout")  # a name as wide as the figure
@pytest.mark.parametrize("attack", [MARKUP, CONTROLS], ids=["markup", "controls"])
@pytest.mark.parametrize("typed", [TYPED, pytest.param(LOADING, marks=pytest.mark.slow)])
def test_nothing_of_a_hostile_folder_acts(
    typed: list[str],
    attack: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, through = hostile(Path("R"), attack), list[str]()
    records = {path for path in Path("R").rglob("*") if path.is_file()}
    (named := Path(attack)).mkdir(parents=True)  # `model.path` of the record
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (named / name).write_text("{}")
    opened().clear()
    for command in (line for line in typed if line.split()[0] in COMMANDS):
        with contextlib.suppress(SystemExit), one_kind_of_error():
            dispatch([word.replace("RUN", str(folder)) for word in command.split()])
        told = capsys.readouterr()
        lines = f"{told.out}{told.err}".split("\n")
        through += [f"{command}: {line!r}" for line in lines if not line.isprintable()]
        if "Traceback" in told.err:
            through.append(f"{command}: {told.err[-300:]}")
    files = {path for path in opened() if Path(path).parent == named.absolute()}
    through += [f"{path!r} was opened" for path in files]
    for path in Path().rglob("*"):
        if path.suffix in (".html", ".md", ".csv", ".tex", ".svg") and path not in records:
            through += [f"{path}: {what!r}" for what in live(path)]
    assert not through, "\n".join(sorted({*through}))
    assert not Path("harmed").exists()
