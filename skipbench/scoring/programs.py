"""Makes the program of a completion with the tests that judge it; `execute.py` runs it."""

import ast
import re

from markdown_it import MarkdownIt

from skipbench.data.rows import Reference
from skipbench.scoring.text import need

EXECUTED = ("code", "humaneval")  # scorers that run the completion
RULES = {
    "code": "what stands behind </think>; the first of these that parses and defines the function: "
    "the prompt and what continues it, up to the first statement outside of the function; what a "
    "Markdown fence holds, the whole function or its body",
    "tests": "run behind the code in the same process, which has to reach their end",
    "program": "Python's standard library; no numpy, no threads or processes, no network, no "
    "input, no file to write; what it prints is not read",
}  # how generated code is scored, for the record
_TEXTS = r'"""(?s:.*?)"""|\'\'\'(?s:.*?)\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*'
_NEXT_STATEMENT = re.compile(rf"{_TEXTS}|(?P<next>\n(?=\S))")
_FUTURE = re.compile(r"^from __future__ import .*\n?", re.M)


def fences(text: str) -> list[str]:
    """Contents of Markdown's fences, the last perhaps unclosed, without the fence's indentation."""
    tokens = MarkdownIt().disable("html_block").parse(text)
    return [token.content for token in tokens if token.type == "fence" and token.content.strip()]


def defines(code: str, name: str) -> bool:
    """True if a program parses, and defines a function `name` that does something."""
    try:
        tree = ast.parse(_FUTURE.sub("", code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [n for n in tree.body if isinstance(n, functions) and n.name == name]
    body = found[-1].body if found else []
    texts = [n for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return any(n not in texts and not isinstance(n, ast.Pass) for n in body)


def function_body(completion: str) -> str:
    """The completion up to the first statement outside the function that the prompt begins."""
    found = (m for m in _NEXT_STATEMENT.finditer(completion) if m["next"])
    return completion[: m.start()] if (m := next(found, None)) else completion


def _whole(completion: str, prompt: str, name: str) -> str:
    """The first text that parses and defines the function: the prompt and what continues it, or a
    fence with the function or its body.
    """
    answer = completion.rpartition("</think>")[2]  # behind the thoughts of a reasoning model
    continued = f"{prompt}{function_body(answer)}\n"
    if defines(continued, name):
        return continued
    candidates = []
    for inside in fences(answer):
        helped = _helpers(prompt)  # the prompt's imports and other functions stay
        if re.search(rf"^(?:async )?def {re.escape(name)}\b", inside, re.M):
            candidates.append(f"{helped}{inside}\n")
        candidates.append(f"{prompt}{function_body(inside)}\n")
    found = next((code for code in candidates if defines(code, name)), None)
    return found or [*candidates, continued][0]


def _helpers(prompt: str) -> str:
    """The prompt as a whole program: its last function does nothing."""
    return f"{prompt}    pass\n" if prompt.rstrip().endswith(":") else f"{prompt}\n"


def _ordered(code: str) -> str:
    """The program with its imports of the future first, as Python wants them."""
    first = "".join(line.rstrip("\n") + "\n" for line in _FUTURE.findall(code))
    return first + _FUTURE.sub("", code)


def program_of(scorer: str, completion: str, prompt: str, reference: Reference) -> str:
    """The program that reaches its end exactly if the completion is right; SkipbenchError for a
    reference without the entries of the scorer, one of `EXECUTED`.
    """
    if scorer == "code":
        tests, name = need(reference, "tests", str), need(reference, "entry_point", str)
        return _tested(_whole(completion, prompt, name), name, f"{name} = CANDIDATE\n{tests}\n")
    # The task's own prompt: the one that the model saw may be indented by tabs, and then so is what
    # it wrote.
    own, test = need(reference, "prompt", str), need(reference, "test", str)
    name = need(reference, "entry_point", str)
    code = _whole(completion.replace("\t", "    "), own, name)
    # Tests use the prompt's other functions: as it gives them, not as the program may have them.
    tests = f"{_helpers(own)}{name} = CANDIDATE\n{test}\ncheck({name})\n"
    return _tested(code, name, tests)


def _tested(code: str, name: str, tests: str) -> str:
    """The code as a module of its own; the tests see its function `name` as CANDIDATE."""
    return (
        "import sys, types\n"
        'program = sys.modules["program"] = types.ModuleType("program")\n'
        f"exec({_ordered(code)!r}, program.__dict__)\n"
        f"CANDIDATE = getattr(program, {name!r})\n{tests}"
    )
