"""What pyproject.toml asks for is what the package imports, no more and no less."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from conftest import ROOT, WHOLE_TREE
from test_architecture import FILES, imports


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
