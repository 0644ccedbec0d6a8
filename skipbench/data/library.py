"""Real text that comes with Python: functions of its standard library to complete, and sections of
its language reference to summarise and to answer questions on.

Rows are the same wherever the same version of Python is installed in full; the hash of the rows in
a run's record distinguishes others.
"""

import ast
import functools
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from skipbench.data.rows import Example, sample_rows
from skipbench.errors import SkipbenchError

DOCUMENTED = 40  # characters of the shortest docstring
LINES = (12, 80)  # of a function; shorter ones leave nothing to write
SHOWN = 0.25  # share of the lines below the docstring that are in the prompt
SECTION = (1200, 4000)  # characters, for prompts of 300 to 1500 tokens
NEEDED = 3  # times that a term must stand in a section to be asked for
LEFT_OUT = ("idlelib", "lib2to3", "this", "antigravity", "turtle")


def stdlib_code(size: int | None, seed: int, shuffle: bool) -> list[Example]:
    """Functions of the standard library, read from the interpreter that runs this: the signature,
    the docstring and the first lines; the rest is `reference["code"]`. Arguments are those of
    `sample_rows`; SkipbenchError if the library's source is not installed.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    if not (rows := _library(folder)):
        raise SkipbenchError(f"stdlib-code: {folder} holds no source of the standard library")
    return sample_rows(rows, size, seed, shuffle)


@functools.cache  # parsing takes seconds, and every cell of a table asks
def _library(folder: Path) -> tuple[Example, ...]:
    files = [p for p in sorted(folder.glob("*.py")) if p.stem not in LEFT_OUT]
    return tuple(row for path in files for row in _functions(path))


def _functions(path: Path) -> Iterator[Example]:
    """The functions of a module, from its first level, that are documented and long enough."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return
    lines = [f"{line}\n" for line in source.split("\n")]  # as `ast` counts them
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2 or node.end_lineno is None:
            continue
        length = node.end_lineno - node.lineno + 1
        if not LINES[0] <= length <= LINES[1] or len(ast.get_docstring(node) or "") < DOCUMENTED:
            continue
        documented = node.body[0].end_lineno or node.lineno
        cut = documented + max(1, round((node.end_lineno - documented) * SHOWN))
        if node.end_lineno - cut < 4:
            continue
        head = f"# {path.name} of Python's standard library\n\n"
        prompt, rest = "".join(lines[node.lineno - 1 : cut]), "".join(lines[cut : node.end_lineno])
        yield Example(f"{path.stem}.{node.name}", head + prompt, {"code": rest})


def pydoc_summary(size: int | None, seed: int, shuffle: bool) -> list[Example]:
    """Sections of the language reference in `pydoc_data.topics`, each with an instruction: to
    summarise it, or to quote and explain what it says of a term. Grouped by the `task`. Arguments
    are those of `sample_rows`; SkipbenchError if the topics are not installed.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise SkipbenchError("pydoc-summary: this Python comes without pydoc_data") from error
    rows = []
    for topic, text in sorted(topics.items()):
        for number, section in enumerate(_sections(text)):
            prompts = {
                "summary": "Summarise this section of the Python language reference in a short "
                f"paragraph. Keep its own terms.\n\n{section}"
            }
            if term := _term(section):
                prompts["question"] = (
                    f"{section}\n\nWhat does this section of the Python language reference say "
                    f"about {term}? Quote the sentences that answer it, then explain them."
                )
            rows += [
                Example(f"{topic}-{number}-{task}", prompt, groups={"task": task})
                for task, prompt in prompts.items()
            ]
    return sample_rows(rows, size, seed, shuffle)


def _sections(text: str) -> Iterator[str]:
    """Neighbouring paragraphs of a topic that together have the length of a prompt; what is left
    over at its end, or too long by itself, is left out.
    """
    found, least, most = "", *SECTION
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        joined = f"{found}\n\n{paragraph}" if found else paragraph
        if len(joined) <= most:
            found = joined
            continue
        if len(found) >= least:
            yield found
        found = paragraph if len(paragraph) <= most else ""
    if len(found) >= least:
        yield found


def _term(section: str) -> str | None:
    """The word that a section puts in quotes most often; None below `NEEDED` times."""
    counts = Counter(re.findall(r'"([a-z_]\w+)(?:\(\))?"', section, re.IGNORECASE))
    return next((f'"{word}"' for word, n in counts.most_common(1) if n >= NEEDED), None)
