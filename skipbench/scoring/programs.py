"""From a completion to the program that tests it.

Nothing here runs a program: `execute.py` does, in the sandbox.
"""

import re
from collections.abc import Callable
from typing import Any

from skipbench.scoring.text import need

_NEXT_STATEMENT = re.compile(r"\n(?=\S)")


def program_of(scorer: str, completion: str, prompt: str, reference: dict[str, Any]) -> str:
    """The program that ends without an error exactly if the completion is right; `scorer` is one of
    `EXECUTED`.

    Raises:
        SkipbenchError: a reference without what the scorer needs.
    """
    return EXECUTED[scorer](completion, prompt, reference)


def function_body(completion: str) -> str:
    """The completion up to the first statement outside the function that the prompt begins.

    A model goes on after the function; the first line is never cut, for it continues the prompt.
    """
    return _NEXT_STATEMENT.split(completion, maxsplit=1)[0]


def _code(completion: str, prompt: str, reference: dict[str, Any]) -> str:
    return f"{prompt}{function_body(completion)}\n{need(reference, 'tests', str)}"


def _humaneval(completion: str, prompt: str, reference: dict[str, Any]) -> str:
    # The task's own prompt: the one that the model saw may be indented by tabs, and then so is what
    # it wrote.
    body = function_body(completion).replace("\t", "    ")
    tests, name = need(reference, "test", str), need(reference, "entry_point", str)
    return f"{need(reference, 'prompt', str)}{body}\n{tests}\ncheck({name})\n"


EXECUTED: dict[str, Callable[[str, str, dict[str, Any]], str]] = {
    "code": _code,
    "humaneval": _humaneval,
}
