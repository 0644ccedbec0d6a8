"""A program and its tests as two processes that exchange calls and results as plain data.

A fresh interpreter gets the source of this file: it may import only the standard library, and as
little of that as it can, for the program finds those modules loaded. The process of the tests holds
no code of the program and decodes built-in types only: no `__eq__`, no frame, no exit handler of
the program has a part in a comparison.
"""

import builtins
import contextlib
import itertools
import json
import os
import resource
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

OPEN_FILES = 64
MOST_BYTES = 32 << 20  # of one call or result
DETAIL_BYTES = 1000
# by name: what is sent as such, and what makes it of its parts
KINDS: dict[str, tuple[Any, Callable[[Iterable[Any]], Any]]] = {
    kind.__name__: (kind, kind) for kind in (list, tuple, dict, set, frozenset, bytes, bytearray)
}
KINDS["complex"] = complex, lambda parts: complex(*parts)
KINDS["iterator"] = Iterator, lambda items: iter(list(items))


class Ended(BaseException):
    """The program's process has closed its side; no test may catch this."""


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Bounds this process for good; only root's could have children in spite of that."""
    limits = {"AS": memory_bytes, "CPU": cpu_s, "NOFILE": OPEN_FILES}
    for name, value in (limits | dict.fromkeys(("FSIZE", "CORE", "NPROC"), 0)).items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            # macOS knows RLIMIT_AS but refuses to set it.
            if sys.platform != "darwin":
                raise


def plain(value: Any) -> Any:
    """`value` for JSON, as the built-in type that it is an instance of, else TypeError."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for name, (kind, _) in KINDS.items():
        if isinstance(value, kind):
            parts: Any = (value.real, value.imag) if name == "complex" else value
            return [name, [plain(p) for p in (parts.items() if name == "dict" else parts)]]
    raise TypeError(f"a {type(value).__name__} is no plain data")


def unplain(value: Any) -> Any:
    """The value that `plain` was given, of built-in types only; raises for anything else."""
    if not isinstance(value, list):
        return value
    name, items = value
    return KINDS[name][1](map(unplain, items))


def send(handle: int, value: Any) -> None:
    """Writes one line of JSON, however small a pipe is."""
    data = memoryview(json.dumps(value).encode() + b"\n")
    while data:
        data = data[os.write(handle, data) :]


def serve(asked: int, answer: int) -> None:
    """The process of the program: runs the text of the first request, then each call."""
    module = types.ModuleType("program")
    # under its own name: dataclasses look it up, and `if __name__ == "__main__"` must not run
    sys.modules["program"] = module
    with open(asked, "rb") as requests:
        for number, line in enumerate(requests):
            try:
                first, *rest = unplain(json.loads(line))
                said: list[Any] = ["value", None]
                if number == 0:
                    exec(compile(first, "program.py", "exec"), module.__dict__)
                else:
                    said = ["value", plain(module.__dict__[first](*rest[0], **rest[1]))]
            except Exception as error:  # the program's own, which its tests may expect
                kinds = [kind.__name__ for kind in type(error).__mro__]
                said = ["error", kinds, str(error)[:DETAIL_BYTES]]
            send(answer, said)


def counted(tests: str) -> tuple[types.CodeType, bool]:
    """The tests with `COUNT` around each assertion of no constant, and whether there are any."""
    import ast  # not in the process of the program

    tree = ast.parse(tests)
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    checks = [node for node in checks if not isinstance(node.test, ast.Constant)]
    for node in checks:
        node.test = ast.Call(ast.Name("COUNT", ast.Load()), [node.test], [])
    return compile(ast.fix_missing_locations(tree), "tests.py", "exec"), len(checks) > 0


def judge(ask: int, answers: int, tell: int) -> None:
    """The process of the tests: writes `ok` and how many assertions ran, `ended` if the program's
    process was gone before, else the error.
    """
    with open(0, "rb", closefd=False) as file:
        job = json.loads(file.read())
    replies = open(answers, "rb")  # noqa: SIM115  # as long as this process lives

    def request(*words: Any) -> Any:
        try:
            send(ask, plain(words))
        except BrokenPipeError:
            raise Ended from None
        line = replies.readline(MOST_BYTES)
        if not line:
            raise Ended
        kind, *said = json.loads(line)
        if kind == "value" and len(said) == 1:
            return unplain(said[0])
        names, text = said
        # The first of its classes that is a built-in error: never one that ends this process.
        for name in names:
            # StopIteration would end a map, filter or zip of the tests early: as in PEP 479
            name = "RuntimeError" if name == "StopIteration" else str(name)
            known = getattr(builtins, name, None)
            if isinstance(known, type) and issubclass(known, Exception):
                with contextlib.suppress(TypeError):  # of those that want more than a text
                    error = known(str(text))
                    break
        raise error

    def candidate(*arguments: Any, **named: Any) -> Any:
        return request(job["entry_point"], arguments, named)

    ran = itertools.count()

    def count(value: Any) -> Any:
        next(ran)
        return value

    said, names = b"ended", {"__name__": "tests", "CANDIDATE": candidate, "COUNT": count}
    try:
        request(job["code"])
        code, checked = counted(job["tests"])
        exec(code, names)
        number = next(ran)
        said = b"ok %d" % number if number or not checked else b"none of its assertions ran"
    except Ended:
        pass
    except BaseException as error:  # of the tests, or of an answer that is not as expected
        words = filter(None, (type(error).__name__, str(error)))
        said = ": ".join(words).encode(errors="replace")[:DETAIL_BYTES]
    os.write(tell, said)


def main(role: str, handles: tuple[int, ...], limits: tuple[int, int]) -> None:
    """`jail.py` starts it twice; never returns."""
    sys.set_int_max_str_digits(0)
    limit(*limits)
    if role == "tests":
        judge(*handles[1:])
    else:
        serve(*handles)
    os._exit(0)
