"""The direction of imports: a room imports only rooms above it, and itself; and from outside what
is asked for.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from conftest import ROOT, WHOLE_TREE

PACKAGE = ROOT / "skipbench"
ROOMS = [
    "errors", "draft_plan", "skipset", "config", "runs", "console",
    "metrics", "data", "scoring", "search", "report", "lm", "models", "profile", "decode",
    "methods", "bench", "experiments", "launch", "language_model", "api", "cli", "__main__",
    "__init__", "contrib",
]  # fmt: skip
WITHOUT_TORCH = ROOMS[: ROOMS.index("lm")]
MOST_ARROWS = 130
KNOW_TRANSFORMERS, KNOW_HYDRA = ("lm", "models", "contrib"), ("config", "launch")
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.stat().st_size)


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_imports() -> list[tuple[Path, list[str]]]:
    """Files, and the parts of a name of the package that each imports."""
    every = ((path, name.split(".")) for path in FILES for name in imports(path))
    return [(path, name) for path, name in every if name[0] == "skipbench" and len(name) > 1]


def violations(path: Path) -> list[str]:
    here, floor = room(path), ROOMS.index(room(path))
    found = []
    for name in sorted(imports(path)):
        top, *rest = name.split(".")
        if top == "skipbench" and rest and rest[0] in ROOMS:
            if ROOMS.index(rest[0]) > floor:
                found.append(f"imports {name}, a room below")
            if here == rest[0] == "methods" and rest[1] not in ("fixed", path.stem):
                found.append(f"imports {name}, another paper's file")
        if top == "transformers" and here not in KNOW_TRANSFORMERS:
            found.append("imports transformers")
        if top == "torch" and here in WITHOUT_TORCH:
            found.append("imports torch")
        if top in ("hydra", "omegaconf") and here not in KNOW_HYDRA:
            found.append(f"imports {top}")
    return [f"{path.relative_to(PACKAGE)} {what}" for what in found]


def test_imports_go_one_way() -> None:
    assert [text for path in FILES for text in violations(path)] == []


def test_parts_of_contrib_import_one_another_as_the_page_says() -> None:
    page = (PACKAGE.parent / "docs" / "structure.md").read_text()
    said = re.findall(r"`(\w+)` may import ((?:`\w+`(?: and )?)+)", page)
    may = {(part, other) for part, others in said for other in re.findall(r"`(\w+)`", others)}
    inside = [(path, name) for path, name in own_imports() if room(path) == name[1] == "contrib"]
    found = {(path.parent.name, name[2]) for path, name in inside}
    assert {(part, other) for part, other in found if part != other} <= may


def test_no_two_modules_import_each_other() -> None:
    """Nor by way of others, inside of a function or for types: graphlib raises CycleError."""
    modules = {
        ".".join(("skipbench", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in FILES
    }
    graph = {
        name: {module for n in imports(path) for module in (n, n.rpartition(".")[0])} & {*modules}
        for name, path in modules.items()
    }
    assert len([*TopologicalSorter(graph).static_order()]) == len(modules)


def test_few_arrows_lead_from_room_to_room() -> None:
    """Of the core: pairs of rooms of which one imports the other."""
    arrows = {(room(path), name[1]) for path, name in own_imports() if name[1] in ROOMS}
    assert len({(a, b) for a, b in arrows if a != b and "contrib" not in (a, b)}) <= MOST_ARROWS


@pytest.mark.parametrize(
    "module", ["experiments.grid", "experiments.plan", "cli.table", "cli.figure", "cli.experiments"]
)
@pytest.mark.slow
def test_what_plans_and_draws_starts_without_torch(module: str) -> None:
    """These rooms may import torch, and do where a cell runs; a table or a status needs none."""
    code = f"import sys, skipbench.{module}; print(*{{'torch', 'transformers'}} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


# What pyproject.toml asks for is what the package imports, no more and no less


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@WHOLE_TREE
def test_the_dependencies_are_what_is_imported() -> None:
    imported = {name.partition(".")[0] for path in FILES for name in imports(path)}
    # torch's builds for GPUs bring Triton, and where it is absent torch's operators do its work
    imported -= {"skipbench", "conf", "triton", *sys.stdlib_module_names}
    of = packages_distributions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked, optional = (
        {normal(re.split(r"[^\w.-]", line)[0]) for line in lines}
        for lines in (
            project["dependencies"],
            [line for extra in project["optional-dependencies"].values() for line in extra],
        )
    )
    needed = {normal(name) for module in imported for name in of.get(module, [module])}
    assert asked - needed == set(), "nothing imports these"
    assert needed - asked - optional == set(), "these come only with others"


def test_the_lock_has_a_hash_of_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    locked = [entry for entry in entries if not entry.startswith("#")]
    pinned = {normal(m[1]): m[2] for e in locked if (m := re.match(r"([\w.-]+)==(\S+)", e))}
    assert len(pinned) > 50 and all("--hash=sha256:" in entry for entry in locked)
    assert {normal(re.split(r"[^\w.-]", line)[0]) for line in wanted} <= pinned.keys()
    constraints = [entry.partition(" \\")[0] for entry in locked]
    assert (ROOT / "constraints.txt").read_text().splitlines() == constraints, "run: make lock"
