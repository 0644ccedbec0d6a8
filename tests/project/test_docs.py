"""The documentation: commands compose, links lead somewhere, and generated or copied facts are
today's.
"""

import doctest
import importlib
import itertools
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, WHOLE_TREE, Command, rest_slow
from hydra.core.override_parser.overrides_parser import OverridesParser

from scripts.readme_figures import README, filled
from skipbench import methods
from skipbench.bench.contract import check_contract
from skipbench.cli.command import Prompted
from skipbench.cli.commands import COMMANDS, Data, Experiments, List, Status
from skipbench.cli.help import describe
from skipbench.cli.inventory import KINDS
from skipbench.cli.main import HYDRA_FLAGS
from skipbench.cli.parser import parse
from skipbench.config import catalog
from skipbench.config.catalog import choices
from skipbench.config.compose import compose_cells
from skipbench.decode.stopping import Fixed
from skipbench.errors import SkipbenchError
from skipbench.report.tables.features import feature_tables

RESULTS = ("results/README.md", "results/gpu/h100-80gb/README.md")
ALONE = ("README.md", "CONTRIBUTING.md", *RESULTS, "notebooks/README.md")
PAGES = sorted([*(ROOT / name for name in ALONE), *(ROOT / "docs").rglob("*.md")])
START = "python -m skipbench"
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
OUTSIDE = ROOT / "docs" / "adding.md"
FILES = {
    name: text
    for name, text in re.findall(
        r"`([\w/]+\.(?:py|yaml))`[^`]*\n\n```\w+\n(.*?)^```$", OUTSIDE.read_text(), re.DOTALL | re.M
    )
    if not (ROOT / name).exists()
}
"""The files of a reader's own on that page, each a block behind a line that ends with its name."""


def blocks(path: Path, language: str = "") -> list[str]:
    """The code blocks of a page in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def commands(path: Path) -> Iterator[list[str]]:
    """The words behind `python -m skipbench` of every command on a page, in blocks and in the
    text.
    """
    text = path.read_text()
    lines = [line for block in blocks(path) for line in block.splitlines()]
    inline = re.findall(rf"`({START}[^`]*)`", FENCED.sub("", text))
    for line in [*lines, *inline]:
        if line.startswith(START):
            yield shlex.split(line, comments=True)[3:]


def points(overrides: list[str]) -> list[list[str]]:
    """The cells of a sweep, as overrides."""
    axes = [
        [f"{o.get_key_element()}={v}" for v in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [o.input_line]
        for o in OverridesParser.create().parse_overrides(overrides)
    ]
    return [list(point) for point in itertools.product(*axes)]


def cells(overrides: list[str]) -> list[list[str]]:
    """The cells of a command line, which have to compose."""
    own = [o for o in overrides if not o.startswith("hydra/")]
    return points([*own, *(["model=path"] if any("model.path=" in o for o in own) else [])])


def check(words: list[str]) -> list[list[str]]:
    """Returns the cells of a command, as overrides.

    Raises:
        SkipbenchError, AssertionError: the command cannot be meant.
    """
    overrides = [w for w in words if "=" in w and not w.startswith("-")]
    names = [w for w in words if "=" not in w and not w.startswith("-")]
    if "--help" in words:
        assert all(describe(key) for key in names if key != "KEY")
        return []
    if not words or words[0] not in COMMANDS:
        assert not names and {w for w in words if w.startswith("-")} <= HYDRA_FLAGS, words
        experiments = [o for o in overrides if o.startswith("experiment=")]
        rest = [o for o in overrides if not o.startswith(("experiment=", "scale="))]
        assert {o.partition("=")[2] for o in experiments} <= {*choices("experiment")}
        return cells(rest)
    return check_command(words[0], words[1:])


def check_command(command: str, words: list[str]) -> list[list[str]]:
    asked = parse(COMMANDS[command], words)
    if isinstance(asked, Data) and not {*asked.words} & {*choices("experiment")}:
        assert asked.words and {*asked.words} <= {*choices("dataset"), *choices("model")}
        return cells(list(asked.settings))
    if isinstance(asked, Experiments):
        # a folder of the reader's own; `status` of all that was submitted
        if asked.words[0].startswith("results/") if asked.words else isinstance(asked, Status):
            return []
        known = [*choices("experiment"), *(feature_tables() if command == "table" else [])]
        assert asked.words and {*asked.words} <= {*known}
        assert {*asked.models} <= {*choices("model")}
        assert asked.scale in (None, *choices("scale"))
        return cells(list(asked.settings))
    if isinstance(asked, List):
        assert asked.words[0] in KINDS
    elif isinstance(asked, Prompted):
        return cells([*asked.model_settings(), f"method={asked.method}"])
    return cells(list(asked.settings)) if asked.SETTINGS else []


DAILY = (ROOT / "README.md", ROOT / "docs" / "tutorial.md", OUTSIDE)


@WHOLE_TREE
@pytest.mark.parametrize(
    "path", rest_slow(PAGES, DAILY.__contains__), ids=lambda p: str(p.relative_to(ROOT))
)
def test_commands_can_be_given(path: Path) -> None:
    compose_cells(
        [cell for words in commands(path) if "--config-dir" not in words for cell in check(words)]
    )


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(page.read_text() for page in PAGES)
    named = {*re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE)}
    assert "demo" in named and named <= targets


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@WHOLE_TREE
@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_link_is_dead(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@WHOLE_TREE
def test_every_claim_of_security_names_its_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named and named <= set(re.findall(r"^def (test_\w+)", tests, re.M))
    rows = [line for line in text.split("## ")[1].splitlines() if line.startswith("| ")][1:]
    assert rows and all("`test_" in row for row in rows)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that docs/adding.md writes outside of the tree."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.slow
def test_what_is_added_outside_of_the_tree(outside: Path, skipbench: Command) -> None:
    given = [words for words in commands(OUTSIDE) if "--config-dir" in words]
    small = ["limit=1", "dataset.max_new_tokens=16", "engine.warmup=0"]
    small.append(f"results={outside / 'results'}")
    for words in given:
        words = [w.replace("myconf", str(outside / "myconf")) for w in words if "limit=" not in w]
        runs = any(w.startswith("method=") for w in words)
        done = skipbench(*words, *(small if runs else []))
        told = re.search("mine|heuristic|sums", done.stdout)
        assert done.returncode == 0 and told, (words, done.stderr)
    assert len(given) == 9 and len(FILES) == 6
    own = "--config-dir", str(outside / "myconf")
    sys.modules.pop("sums")
    (outside / "sums.py").write_text(FILES["sums.py"].replace("plus", "and"))
    refused = skipbench(*own, "dataset=sums", "method=swift", *small)
    assert refused.returncode == 2 and "made with other rows of sums" in refused.stderr
    refused = skipbench(*own, "method=mine", "method.stpe=3")
    assert refused.returncode == 2 and "Did you mean method.stop or method.step" in refused.stderr
    assert "Allowed here: method.name, method.precision" in refused.stderr


def test_the_method_of_the_docs_that_skips_and_a_skip_that_is_no_plan() -> None:
    made: dict[str, Any] = {"__name__": "mine"}
    exec(compile(FILES["mine.py"], "mine.py", "exec", dont_inherit=True), made)
    method = made["Mine"](name="mine", layers=8, stop=Fixed())
    assert method.skip.skipped == {2, 6, 10}
    method.skip = "attn:1,5"
    wanted = r"mine: skip is a str; wanted self.plan\(\[...\]\)"
    with pytest.raises(SkipbenchError, match=wanted):
        _ = method.variant
    with pytest.raises(SkipbenchError, match=wanted):
        next(check_contract(lambda layers: method))


METHODS = [
    module.name
    for module in pkgutil.walk_packages(methods.__path__, "skipbench.methods.")
    if not module.ispkg
]
OTHERS = ["decode.draft", "decode.method", "decode.stopping", "decode.tree", "decode.verify"]
OTHERS += ["config.configurable", "draft_plan"]


@pytest.mark.parametrize("name", [*METHODS, *(f"skipbench.{name}" for name in OTHERS)])
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.failed == 0 < found.attempted


def test_the_figures_of_the_readme_are_those_of_the_committed_tables() -> None:
    text = README.read_text()
    assert filled(text) == text, "run scripts/readme_figures.py"


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_of(path: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def test_notebooks_have_no_outputs() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        assert not [c for c in code_of(path) if c["outputs"] or c["execution_count"]], path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n\n".join("".join(c["source"]) for c in code_of(path)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    how = {"env": environment, "capture_output": True, "text": True, "cwd": tmp_path}
    done = subprocess.run([sys.executable, script], timeout=300, **how)
    assert done.returncode == 0, done.stderr
