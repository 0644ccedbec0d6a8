"""What is read is data: every place where a value could become code has its line in `trust`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skipbench.config import trust
from skipbench.config.extensions import registered
from skipbench.config.paths import PACKAGE
from skipbench.errors import SkipbenchError

CALLS = {
    *("instantiate", "import_module", "__import__", "exec_module", "run_path", "run_module"),
    *("CDLL", "PyDLL", "LoadLibrary", "dlopen", "load_library", "load_inline"),
    *("from_pretrained", "load_dataset", "recv", "broadcast_object_list"),
}
"""Names that are dangerous whatever holds them; `exec`, `eval` and `compile` are, alone."""
BUILTINS = {"exec", "eval", "compile"}
LOADERS = {"torch.load", "np.load", "numpy.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "runpy", "imp", "code"}
WORDS = re.compile(rf"\b(?:\w*load|{'|'.join([*CALLS, *BUILTINS, *MODULES])})\b")
"""In the text of a file that is worth parsing."""


def dangerous(tree: ast.AST) -> Iterator[str]:
    """The names by which a file could make code of a value, called or passed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr.endswith("load"):
                yield from {ast.unparse(node)} & LOADERS
            elif node.attr in CALLS:
                yield node.attr
        elif isinstance(node, ast.Name) and node.id in CALLS | BUILTINS:
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
            yield from sorted({name.partition(".")[0] for name in names} & MODULES)


def test_every_place_where_a_value_could_become_code_says_why() -> None:
    places = {
        f"{path.relative_to(PACKAGE)} {name}"
        for path in PACKAGE.rglob("*.py")
        if WORDS.search(text := path.read_text(encoding="utf-8"))
        for name in dangerous(ast.parse(text))
    }
    known = {**trust.CODE, **registered("code")}
    assert places == known.keys() and all(known.values())


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from joblib import load", "f = torch.load", "a.b.import_module(x)",
     "ctypes.CDLL(p)", "eval(text)", "yaml.load(t, L)", "map(hydra.utils.instantiate, nodes)"],
)  # fmt: skip
def test_it_would_be_seen(source: str) -> None:
    assert [*dangerous(ast.parse(source))]


def test_what_only_sounds_so_is_none() -> None:
    source = "re.compile(p); model.eval(); json.load(f); ast.literal_eval(t); from x import y"
    assert not [*dangerous(ast.parse(source))]


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    (place := tmp_path / "cache" / "native").mkdir(parents=True)
    place.chmod(0o775)
    assert trust.private_folder(place).stat().st_mode & 0o777 == 0o700
    assert trust.private_folder(tmp_path / "new" / "native").parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(PermissionError, match="no folder of this user's own"):
        trust.private_folder(tmp_path / "link")


def test_a_sealed_file_is_this_users_and_as_its_name_says(tmp_path: Path) -> None:
    (made := tmp_path / "made.so").write_bytes(b"code")
    made.chmod(0o700)
    sealed = made.rename(tmp_path / f"name-{trust.digest(made)}.so")
    assert trust.is_sealed(sealed)
    sealed.chmod(0o770)
    assert not trust.is_sealed(sealed)
    sealed.chmod(0o700)
    sealed.write_bytes(b"c0de")
    assert not trust.is_sealed(sealed)
    assert not trust.is_sealed(tmp_path / "gone.so")


@pytest.mark.parametrize(
    "node",
    [{"_target_": "os.system"}, {"a": [{"_target_": "pandas.read_pickle"}]}, {"b": "${oc.env:A}"},
     {"stop": {"_target_": ["skipbench"]}}],
)  # fmt: skip
def test_a_target_that_no_file_names_is_refused(node: dict[str, object]) -> None:
    with pytest.raises(SkipbenchError, match=r"_target_=|is an interpolation"):
        trust.check_targets({"_target_": "known", **node}, {"known"})
