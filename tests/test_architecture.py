"""The direction of imports: a room imports only rooms above it, and itself; only `lm` knows transformers."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "skipbench"
ROOMS = [
    "errors", "skipset", "runs", "sweep", "metrics", "report", "data", "scoring", "search",
    "lm", "profile", "decode", "methods", "bench",
    "config", "catalogue", "compose", "grid", "cells", "tables", "survey", "submit", "figure", "keeping", "commands", "cli", "__main__",
]  # fmt: skip
WITHOUT_TORCH = [*ROOMS[: ROOMS.index("lm")], "config", "catalogue", "compose", "grid"]
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.stat().st_size)


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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    here = ROOMS.index(room(path))
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "skipbench" and rest and rest[0] in ROOMS:
            assert ROOMS.index(rest[0]) <= here, f"{path.name} imports {name}"
            if room(path) == "methods" and rest[0] == "methods":
                assert rest[1] in ("fixed", path.stem), f"a paper's file imports another paper's: {name}"
        if top == "transformers":
            assert room(path) == "lm", f"{path.name} imports transformers"
        if top == "torch":
            assert room(path) not in WITHOUT_TORCH, f"{path.name} imports torch"
        if top in ("hydra", "omegaconf"):
            assert room(path) in ("catalogue", "compose", "config"), f"{path.name} imports {top}"


def test_every_room_is_listed() -> None:
    rooms = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(ROOMS)
