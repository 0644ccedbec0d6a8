"""Makes the program of a completion, and the tests that judge it; `execute.py` runs them."""

import re
from typing import NamedTuple

from skipbench.data.rows import Reference
from skipbench.scoring.text import need

EXECUTED = ("code", "humaneval")
"""Scorers that run the completion."""
RULES = {
    "code": "a completion that continues the prompt counts up to the first statement outside of "
    "its function; one that does not begin indented and holds a Markdown fence counts as what "
    "stands in the first fence: the whole function, or its body",
    "tests": "run in a process of their own and compare what the function returns as plain data: "
    "None, numbers, texts, bytes, and lists, tuples, sets, dicts and iterators of these; at least "
    "one of their assertions has to run",
    "program": "Python's standard library; no numpy, no threads or processes, no network, no "
    "input, no file to write; what it prints is not read",
}
"""How generated code is scored, for the record."""
_TEXTS = r'"""(?s:.*?)"""|\'\'\'(?s:.*?)\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*'
_NEXT_STATEMENT = re.compile(rf"{_TEXTS}|(?P<next>\n(?=\S))")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n`]*\n(.*?)(?:^[ \t]*(?:```|~~~)|\Z)", re.M | re.S)


class Program(NamedTuple):
    """`tests` call the function `entry_point` of `code` as CANDIDATE, from another process."""

    code: str
    tests: str = ""
    entry_point: str = ""


def is_fenced(completion: str) -> bool:
    """True for an answer with a Markdown fence, not the prompt's continuation."""
    continues = completion.lstrip("\n")[:1] in (" ", "\t")
    return not continues and _FENCE.search(completion) is not None


def function_body(completion: str) -> str:
    """The completion up to the first statement outside the function that the prompt begins.

    A model goes on after the function; the first line is never cut, for it continues the prompt,
    and no line of a triple-quoted text is a statement.
    """
    found = (m for m in _NEXT_STATEMENT.finditer(completion) if m["next"])
    return completion[: m.start()] if (m := next(found, None)) else completion


def _whole(completion: str, prompt: str, name: str) -> str:
    """The program's text: the prompt and what continues it, or what a fence holds."""
    if not is_fenced(completion):
        return f"{prompt}{function_body(completion)}\n"
    inside = next(_FENCE.finditer(completion))[1]
    if re.search(rf"^(?:async )?def {re.escape(name)}\b", inside, re.M):
        return f"{_helpers(prompt)}{inside}\n"  # the prompt's imports and other functions stay
    return f"{prompt}{function_body(inside)}\n"


def _helpers(prompt: str) -> str:
    """The prompt as a whole program: its last function does nothing."""
    return f"{prompt}    pass\n" if prompt.rstrip().endswith(":") else f"{prompt}\n"


def program_of(scorer: str, completion: str, prompt: str, reference: Reference) -> Program:
    """The program that passes its tests exactly if the completion is right; SkipbenchError for a
    reference without the entries of the scorer, one of `EXECUTED`.
    """
    if scorer == "code":
        tests, name = need(reference, "tests", str), need(reference, "entry_point", str)
        return Program(_whole(completion, prompt, name), f"{name} = CANDIDATE\n{tests}\n", name)
    # The task's own prompt: the one that the model saw may be indented by tabs, and then so is what
    # it wrote.
    own, test = need(reference, "prompt", str), need(reference, "test", str)
    name = need(reference, "entry_point", str)
    code = _whole(completion.replace("\t", "    "), own, name)
    # Tests use the prompt's other functions: as it gives them, not as the program may have them.
    return Program(code, f"{_helpers(own)}{name} = CANDIDATE\n{test}\ncheck({name})\n", name)
