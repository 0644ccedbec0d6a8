"""Plants faults in a copy of this tree, one after the other, and runs the test that must see each.

    python scripts/mutants.py                    # all of scripts/mutants.toml, some minutes
    python scripts/mutants.py --only NAME ...

A fault is a snippet of one file that another takes the place of, and the name of the one test that
has to fail with it. That the named tests pass without a fault is shown first. The copy lies in a
folder of its own, so no test finds recorded values beside the checkout: what is caught here is
caught in any clone. Libraries are loaded once: tests run in processes forked from this one.

Ends with status 1 where a fault is not caught, or a snippet or a test is not there any more.
"""

import argparse
import importlib.util
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path(__file__).with_suffix(".toml")
COPIED = ("conf", "docs", "scripts", "skipbench", "tests", "pyproject.toml", "README.md")
PASSED, FAILED = 0, 1  # exit statuses of pytest; others mean that no test ran to its end


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Args:
        what: what the code does with it, in a sentence.
        file: path in the tree.
        edits: pairs of a snippet, which stands once in the file, and what takes its place.
        test: the one test that must fail, as pytest names it.
    """

    name: str
    what: str
    file: str
    edits: tuple[tuple[str, str], ...]
    test: str


def faults(path: Path = FAULTS) -> list[Fault]:
    """The faults of a TOML file: one table each, with `old` and `new`, or several under `edits`."""
    found = []
    for name, table in tomllib.loads(path.read_text()).items():
        edits = table.get("edits") or [[table["old"], table["new"]]]
        pairs = tuple((old, new) for old, new in edits)
        found.append(Fault(name, table["what"], table["file"], pairs, table["test"]))
    return found


def planted(fault: Fault, text: str) -> str:
    """The text of the file with the fault in it.

    Raises:
        ValueError: a snippet does not stand in it exactly once.
    """
    for old, new in fault.edits:
        if (count := text.count(old)) != 1:
            raise ValueError(f"stands {count} times in {fault.file}, not once: {old!r}")
        text = text.replace(old, new)
    return text


@contextmanager
def in_place(path: Path, wrong: str) -> Iterator[None]:
    """A file has another text within the block."""
    whole = path.read_text()
    compiled = Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_text(wrong)
        compiled.unlink(missing_ok=True)  # it might be of the same second and size
        yield
    finally:
        path.write_text(whole)
        compiled.unlink(missing_ok=True)


def load_libraries() -> None:
    """Imports what every test needs, once; a process that is forked from this one has it."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import pytest  # noqa: F401  # imported to be in memory, as the next ones
    import scipy.stats
    import torch

    if not torch.cuda.is_available():  # before Triton is loaded, as tests/interpreted.py has it
        os.environ["TRITON_INTERPRET"] = "1"
    from transformers import LlamaForCausalLM, Qwen3ForCausalLM  # noqa: F401  # as above

    assert scipy.stats and torch
    assert not any(name.partition(".")[0] == "skipbench" for name in sys.modules)


def status_of(tree: Path, tests: Sequence[str], seconds: float = 600) -> tuple[int, str]:
    """Exit status of pytest over the named tests, of whatever tier, and what it printed.

    In a process of its own, which imports the package from the tree. What takes more CPU seconds,
    ten times that by the clock, or 12 GiB of addresses ends, with what it started.
    """
    words = ["-n", "0", "-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-m", "", *tests]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of the libraries loaded before
    with tempfile.TemporaryFile("w+") as printed:
        if (child := os.fork()) == 0:
            import pytest

            try:
                os.setpgid(0, 0)
                signal.alarm(10 * round(seconds))
                resource.setrlimit(resource.RLIMIT_CPU, (round(seconds),) * 2)
                resource.setrlimit(resource.RLIMIT_AS, (12 << 30,) * 2)
                for stream in (1, 2):
                    os.dup2(printed.fileno(), stream)
                os.chdir(tree)
                os.environ["PYTHONPATH"] = str(tree)
                own = (ROOT, ROOT / "scripts")
                sys.path[:] = [str(tree), *(p for p in sys.path if Path(p).resolve() not in own)]
                status = int(pytest.main(words))
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # whatever it is, no forked process goes on from here
                traceback.print_exc()
                sys.stderr.flush()
                status = 70
            os._exit(status)
        try:
            _, ended = os.waitpid(child, 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        printed.seek(0)
        return os.waitstatus_to_exitcode(ended), printed.read()


def verdict(tree: Path, fault: Fault) -> str:
    """`caught`, or why not."""
    try:
        path = tree / fault.file
        with in_place(path, planted(fault, path.read_text())):
            status, text = status_of(tree, [fault.test])
    except (OSError, ValueError) as error:
        return f"NOT PLANTED: {error}"
    if status == FAILED:
        return "caught"
    if status == PASSED:
        return "SURVIVES" if " passed" in text else "NOT RUN: the test is skipped"
    return f"NOT RUN: pytest ends with {status}: {' '.join(text.splitlines()[-1:])}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plant_all(chosen: Sequence[Fault], tree: Path) -> dict[str, str]:
    """The verdict of every fault, by name; progress goes to stderr."""
    found: dict[str, str] = {}
    began = time.monotonic()
    for number, fault in enumerate(chosen, 1):
        found[fault.name] = verdict(tree, fault)
        past = time.monotonic() - began
        left = past / number * (len(chosen) - number)
        took = f"{past:.0f} s, about {left:.0f} s left"
        say(f"[{number}/{len(chosen)}] {fault.name}: {found[fault.name]} ({took})")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Plants the chosen faults, prints a table, and returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults and no others")
    parser.add_argument("--faults", type=Path, default=FAULTS, help="another file of faults")
    given = parser.parse_args(words)
    known = {fault.name: fault for fault in faults(given.faults)}
    if unknown := set(given.only or ()) - set(known):
        parser.error(f"no fault of the name {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in given.only or known]
    load_libraries()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        tests = sorted({fault.test for fault in chosen})
        say(f"{len(tests)} tests without a fault")
        status, text = status_of(tree, tests)
        if status != PASSED:
            print(f"the tests fail without a fault:\n{text}")
            return 1
        found = plant_all(chosen, tree)
    width = max(map(len, found))
    for fault in chosen:
        print(f"{fault.name:{width}}  {found[fault.name]:9} {fault.what} | {fault.test}")
    caught = sum(text == "caught" for text in found.values())
    print(f"caught {caught} of {len(chosen)}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
