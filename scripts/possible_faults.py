"""The faults that a file of the package could have, each a text in a function and its replacement.

Kinds: comparison, arithmetic, branch (negated, or `and` for `or`), constant, off by one, argument
(left out, or two swapped), return, order (of two statements). None in docstrings, annotations,
errors and messages: tests should not repeat their words.
"""

import ast
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

PAIRS: list[tuple[Any, Any]] = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)]
PAIRS += [(ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr)]
PAIRS += [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.LShift, ast.RShift)]
OTHER = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
OTHER |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
MESSAGES = {"cast", "complain", "note", "print", "progress", "say", "warn", "working"}
ANY_ORDER = {"max", "min", "gcd", "lcm", "isclose", "allclose", "equal", "isinstance", "getattr"}
Fault = dict[str, Any]
Edit = tuple[str, Any, Any, str]  # kind, the first and the last node replaced, the new text


def named(fault: Fault) -> tuple[Any, ...]:
    """What a fault is found by in another commit: all but its place in the file."""
    names = ("file", "function", "kind", "line", "old", "new", "which")
    return tuple(fault[name] for name in names)


def planted(text: str, fault: Fault) -> str:
    """The text of the file with the fault in it."""
    whole, begin = text.encode(), fault["at"]
    end = begin + len(fault["old"].encode())
    return (whole[:begin] + fault["new"].encode() + whole[end:]).decode()


def faults_of(file: str, text: str) -> list[Fault]:
    """Every fault of a file. `which` counts those that are the same in all else; `number` and `at`
    are the line and the byte.
    """
    lines = text.encode().splitlines(keepends=True)
    same: Counter[tuple[str, ...]] = Counter()
    found: list[Fault] = []

    def span(first: Any, last: Any) -> slice:
        begin = sum(map(len, lines[: first.lineno - 1])) + first.col_offset
        return slice(begin, sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset)

    def source(first: Any, last: Any = None) -> str:
        return text.encode()[span(first, last or first)].decode()

    def walk(node: Any, where: str, function: Any) -> None:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        left_out = isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.pattern)
        if docstring or left_out or called(node) in MESSAGES:
            return
        for kind, first, last, new in edits(node, function, source) if function else ():
            line = lines[first.lineno - 1].decode().strip()
            fault = {"file": file, "function": where, "kind": kind, "line": line}
            fault |= {"old": source(first, last), "new": new}
            same[key := tuple(fault.values())] += 1
            place = {"number": first.lineno, "at": span(first, last).start}
            found.append(fault | {"which": same[key]} | place)
        inside: list[Any] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            where, inside = f"{where}.{node.name}".lstrip("."), node.body
            function = function if isinstance(node, ast.ClassDef) else node
        elif isinstance(node, ast.Lambda | ast.AnnAssign):
            inside = [getattr(node, "body", None) or getattr(node, "value", None) or ast.Pass()]
        for child in inside:
            walk(child, where, function)

    walk(ast.parse(text), "", None)
    return found


def called(node: Any) -> str:
    """The last name of what is called, without a star among the arguments; else empty."""
    plain = isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args)
    return ast.unparse(node.func).rpartition(".")[2] if plain else ""


def changed(node: Any, **fields: Any) -> str:
    return ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **fields}))


def edits(node: Any, function: Any, source: Callable[[Any], str]) -> Iterator[Edit]:
    """The faults of one node, without those of nodes within."""
    for kind, new in replacements(node):
        yield kind, node, node, new
    for test in getattr(node, "ifs", None) or [getattr(node, "test", None)]:
        if test is not None:
            yield "branch", test, test, f"(not ({source(test)}))"
    if isinstance(node, ast.Return) and node.value is not None:
        returns = ast.unparse(function.returns or ast.Name("")).replace("float", "int")
        known = {"bool": f"not ({source(node.value)})", "int": f"({source(node.value)}) + 1"}
        yield "return", node.value, node.value, known.get(returns, "None")
    for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
        for a, b in itertools.pairwise(block) if isinstance(block, list) else ():
            plain = all(isinstance(one, ast.Assign | ast.AugAssign | ast.Expr) for one in (a, b))
            if plain and (written(a) & (read(b) | written(b)) or read(a) & written(b)):
                yield "order", a, b, f"{source(b)}\n{' ' * a.col_offset}{source(a)}"


def written(node: ast.AST, context: Any = ast.Store) -> set[str]:
    """Variables and attributes that a statement assigns to."""
    found = (n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute))
    return {ast.unparse(n) for n in found if isinstance(n.ctx, context)}


def read(node: ast.AST) -> set[str]:
    return written(node, ast.Load)


def replacements(node: Any) -> Iterator[tuple[str, str]]:
    """Kinds of faults that replace a whole expression, and what takes its place."""
    match node:
        case ast.Compare(ops=[op]):
            yield "comparison", f"({changed(node, ops=[OTHER[type(op)]()])})"
        case ast.BoolOp(op=op):
            yield "branch", f"({changed(node, op=OTHER[type(op)]())})"
        case ast.BinOp(op=op, left=left, right=right) if type(op) in OTHER:
            sides = (getattr(side, "value", side) for side in (left, right))
            if not any(isinstance(side, str | ast.JoinedStr | ast.List) for side in sides):
                yield "arithmetic", f"({changed(node, op=OTHER[type(op)]())})"
        case ast.AugAssign(op=op) if type(op) in OTHER:
            yield "arithmetic", changed(node, op=OTHER[type(op)]())
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield "off by one", f"({value + 1})"
            yield "off by one", f"({value - 1})"
        case ast.Constant(value=float(value)):
            yield "constant", f"({2 * value or 1.0})"
        case ast.Constant(value=str(value)) if value and not set(value) & set(" \n"):
            yield "constant", f"({value + '_'!r})"
        case ast.Call(args=args, keywords=words):
            for word in (word for word in words if word.arg):
                yield "argument", changed(node, keywords=[w for w in words if w is not word])
            if len(args) > 1 and called(node) not in ANY_ORDER | {""}:
                yield "argument", changed(node, args=args[:-1])
                yield "argument", changed(node, args=[args[1], args[0], *args[2:]])
