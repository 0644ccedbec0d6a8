"""Prompts on which settings are chosen, disjoint from every dataset that results are reported on:
summaries of docstrings, questions, code to go on with, code to edit, and sums.

Docstrings and code are those of packages of Python's standard library: `stdlib-code` reads only its
single modules, and `pydoc-summary` only the language reference. `urllib` is left out: a function of
`cgi` has its docstring.
"""

import ast
import functools
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from skipbench.data.library import functions, parsed
from skipbench.data.rows import Row, sample_rows
from skipbench.errors import SkipbenchError

EACH = 12  # rows of a kind
DOCSTRING = (700, 2600)  # characters, for prompts of 200 to 700 tokens
PACKAGES = (
    *("asyncio", "concurrent/futures", "email", "http", "importlib", "json", "logging"),
    *("multiprocessing", "unittest", "wsgiref", "xml/dom", "xml/etree", "xmlrpc"),
)
QUESTIONS = (
    "Why does bread rise in the oven, and why does it stop rising?",
    "My neighbour's dog barks all night. Draft a polite note that I can put into their letter box.",
    "Compare travelling by night train with travelling by plane, for a family of four.",
    "What is the difference between weather and climate? Give one example of each.",
    "List seven things to check before buying a used bicycle, each with one short reason.",
    "Explain to a ten-year-old how a lighthouse helps a ship.",
    "Which is heavier, a litre of oil or a litre of water, and how could I show it at home?",
    "Plan three dinners that use up rice, carrots and eggs.",
    "How does a library decide which books to remove from its shelves?",
    "Write the opening of a mystery that is set in a clock repair shop.",
    "What happens to a letter between the post box and the door? Describe it step by step.",
    "Name the advantages and the disadvantages of working in shifts.",
)
SUMS = (
    "A ferry carries {a} cars per crossing and makes {b} crossings on a weekday. At the weekend it "
    "makes {c} crossings a day. How many cars can it carry in a whole week?",
    "A printer needs {a} seconds for a page and {b} more seconds for a page with a picture. A "
    "brochure has {c} pages, and every second page has a picture. How long does one copy take?",
    "A baker fills trays of {a} rolls. After {b} trays, {c} rolls are burnt and thrown away. The "
    "rest is sold in bags of 5. How many full bags are there?",
    "A path is {c} metres long. Lamps stand at both ends and every {a} metres between. Each lamp "
    "uses {b} watts. How many watts do all lamps use together?",
)


def tuning(size: int | None, seed: int, shuffle: bool) -> list[Row]:
    """The rows, their kinds in turns, grouped by the `task`. Arguments are those of `sample_rows`;
    SkipbenchError if the library's source is not installed.
    """
    return sample_rows(_rows(Path(sysconfig.get_path("stdlib"))), size, seed, shuffle)


@functools.cache  # parsing takes seconds
def _rows(folder: Path) -> tuple[Row, ...]:
    code, texts = list[Row](), list[Row]()
    for path in (path for name in PACKAGES for path in sorted((folder / name).glob("*.py"))):
        code += functions(path)
        texts += _docstrings(path)
    code, texts = _spread(code, 2 * EACH), _spread(texts, EACH)
    if len(code) < 2 * EACH or len(texts) < EACH:
        raise SkipbenchError(
            f"tuning: {folder} holds too little source of the standard library; use a Python "
            "installed with it, or dataset=prompts"
        )
    kinds = {
        "summary": texts,
        "question": [Row(str(n), question) for n, question in enumerate(QUESTIONS)],
        "code": [
            Row(row.id, f"Complete this function. Answer with code only.\n\n{row.prompt}")
            for row in code[::2]
        ],
        "edit": [Row(row.id, _renaming(row)) for row in code[1::2]],
        "sum": list(_sums()),
    }
    return tuple(
        Row(f"{task}-{row.id}", row.prompt, groups={"task": task})
        for turn in zip(*kinds.values(), strict=True)
        for task, row in zip(kinds, turn, strict=True)
    )


def _spread(rows: list[Row], count: int) -> list[Row]:
    """`count` of the rows, evenly over all of them."""
    return rows[:: max(1, len(rows) // count)][:count]


def _docstrings(path: Path) -> Iterator[Row]:
    """A summary of each docstring of a module, its classes and functions that is long enough."""
    _, tree = parsed(path)
    nodes = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    for node in (tree, *nodes):
        text = ast.get_docstring(node) or ""
        if DOCSTRING[0] <= len(text) <= DOCSTRING[1]:
            name = ".".join((path.stem, *([] if isinstance(node, ast.Module) else [node.name])))
            yield Row(name, f"{text}\n\nSum up this documentation of {name} in four sentences.")


def _renaming(row: Row) -> str:
    """The whole function, to be given another name: nearly all of the answer is a copy."""
    whole = f"{row.prompt}{row.reference['code']}"
    name = row.id.rpartition(".")[2]
    return f"```python\n{whole}```\n\nRename the function {name} to {name}_old. Print all its code."


def _sums() -> Iterator[Row]:
    draw = random.Random(0)
    for n in range(EACH):
        a, b = draw.randint(3, 9), draw.randint(4, 12)
        c = a * draw.randint(8, 20)
        yield Row(str(n), SUMS[n % len(SUMS)].format(a=a, b=b, c=c) + " Show the steps.")
