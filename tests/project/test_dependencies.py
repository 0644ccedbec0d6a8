"""What pyproject.toml asks for is what the package imports, no more and no less."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from conftest import ROOT


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_dependencies_are_what_is_imported() -> None:
    imported: set[str] = set()
    for path in (ROOT / "skipbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    imported -= {"skipbench", "conf", *sys.stdlib_module_names}
    imported -= {"triton"}  # comes with torch's CUDA builds; elsewhere nothing needs it
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
