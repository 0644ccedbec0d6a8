"""Numbers and grids as texts."""

import math
from collections.abc import Sequence
from typing import TypeGuard

MISSING = "\u2014"


def known(value: object) -> TypeGuard[float]:
    """True for a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: object, digits: int = 2, unit: str = "", factor: float = 1) -> str:
    """`value` times `factor` with `digits` decimals; a dash for anything but finite numbers."""
    return f"{value * factor:.{digits}f}{unit}" if known(value) else MISSING


def figures(value: object) -> str:
    """About three figures of a positive number, so that columns stay narrow."""
    digits = sum(value < end for end in (10, 100)) if known(value) else 0
    return number(value, digits)


def markdown_grid(rows: Sequence[Sequence[str]]) -> str:
    """A grid of texts; columns are padded, the first row is the head."""
    safe = [[one_line(text.replace("|", "\\|")) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    padded = [[text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in safe]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return "\n".join([lines[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *lines[1:]])


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())
