"""The recipes of containers, read: what they copy is in the tree, what they install is the lock,
with a build of torch for CUDA, and both install the same.
"""

import re
import subprocess
import tomllib

import pytest
from conftest import ROOT
from packaging.specifiers import SpecifierSet

PLACE = "/opt/skipbench/"


def dockerfile() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with their arguments."""
    text = (ROOT / "scripts/container/Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def definition() -> dict[str, list[str]]:
    """Sections of the Apptainer recipe, the head under an empty name."""
    text = (ROOT / "scripts/container/skipbench.def").read_text()
    head, *parts = re.split(r"^%(\w+)\n", re.sub(r"^#.*\n", "", text, flags=re.M), flags=re.M)
    sections = {"": head} | dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: body.split("\n") for name, body in sections.items()}


def test_both_recipes_install_the_same() -> None:
    steps, parts = dockerfile(), definition()
    (image,) = [rest for word, rest in steps if word == "FROM"]
    assert f"From: {image}" in parts[""] and "Bootstrap: docker" in parts[""]
    *runs, user = [rest for word, rest in steps if word == "RUN"]
    assert user.startswith("useradd") and ("USER", "skipbench") in steps
    assert [line.strip() for line in parts["post"] if line.strip()] == [f"cd {PLACE[:-1]}", *runs]
    copied = [name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]]
    pairs = [line.split() for line in parts["files"] if line.strip()]
    assert pairs == [[name, PLACE + name] for name in copied]
    (start,) = [rest for word, rest in steps if word == "ENTRYPOINT"]
    assert start == '["python", "-m", "skipbench"]'
    assert parts["runscript"][0].strip() == 'exec python -m skipbench "$@"'


def test_what_is_copied_is_in_the_tree_and_not_left_out() -> None:
    copied = [name for word, rest in dockerfile() if word == "COPY" for name in rest.split()[:-1]]
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no repository here")
    assert {*copied} <= {
        part for name in listed.stdout.split() for part in (name, name.split("/")[0])
    }
    kept = re.findall(r"^!(.+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert kept == copied
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert {*copied, "scripts", ".dockerignore"} - {"pyproject.toml"} <= {
        *shipped["targets"]["sdist"]["include"]
    }


def test_torch_is_the_lock_s_and_for_cuda() -> None:
    """A `+cpu` behind its version, or no CUDA library beside it, would be another build."""
    installs = [rest for word, rest in dockerfile() if word == "RUN" and "pip install" in rest]
    assert ["--require-hashes --requirement requirements.lock" in i for i in installs] == [
        True,
        False,
    ]
    assert "--no-deps --no-build-isolation ." in installs[1]
    lock = (ROOT / "requirements.lock").read_text()
    (torch,) = re.findall(r"^torch==(\S+)", lock, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [line for line in project["dependencies"] if line.startswith("torch")]
    assert torch in SpecifierSet(wanted.removeprefix("torch")) and "+" not in torch
    (cuda,) = re.findall(
        r"^nvidia-cudnn-cu(\d+)==\S+ ; sys_platform == 'linux'", lock, re.MULTILINE
    )
    assert f"CUDA {cuda}" in (ROOT / "scripts/container/Dockerfile").read_text()
    assert f"CUDA {cuda}" in (ROOT / "docs/cluster.md").read_text()
    (image,) = [rest for word, rest in dockerfile() if word == "FROM"]
    python = re.match(r"python:(\d+\.\d+)-", image)
    assert python and python[1] in SpecifierSet(project["requires-python"])
    for extra in ("big", "quant"):  # models over several GPUs, and tables in fewer bits
        assert all(f"\n{name}==" in lock for name in project["optional-dependencies"][extra])
