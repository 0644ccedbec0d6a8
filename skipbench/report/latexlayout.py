"""Where a LaTeX table is cut so that it fits a page: columns side by side, rows and small print
below each other.

Lengths are estimates in points for `\\scriptsize` of a 10 pt document; TeX shrinks a block that is
still too wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from skipbench.report.papergrid import Line, Text

# of the class article, whose page has 550: captions and rules take the rest
LINE_WIDTH, PAGE_HEIGHT = 345.0, 470.0
ROW_HEIGHT, ROW_GAP, RULES = 8.0, 4.0, 30.0
_CHARACTER, _MARK, _GAP = 3.9, 2.9, 6.0
# wider is cut; between the 345 of the class article and the 487 of a conference with two columns
_MOST = 430.0


@dataclass(frozen=True)
class Block:
    """Lines of a part that stand in one tabular, with the columns `first` to `last`, the last not
    included.
    """

    first: int
    last: int
    lines: tuple[Line, ...]


def blocks(
    columns: Sequence[tuple[str, str]], keys: Sequence[str], lines: Sequence[Line]
) -> list[Block]:
    """All lines with as many columns as fit, then all lines with the next ones; groups of columns
    stay together.

    Args:
        columns: (group, column) of the part; keys: the names of the labels' columns.
    """
    labels = [
        max(map(len, (key, *(line.labels[i] for line in lines)))) for i, key in enumerate(keys)
    ]
    left = sum(_CHARACTER * n + _GAP for n in labels) + max(
        (_wide(line.kind) for line in lines), default=0
    )
    widths = [
        max([_CHARACTER * len(name) + _GAP, *(_wide(line.fields[i]) for line in lines)])
        for i, (_, name) in enumerate(columns)
    ]
    rows = _rows(lines)
    return [
        Block(first, last, part) for first, last in _cuts(columns, widths, left) for part in rows
    ]


def height(block: Block) -> float:
    """Of the block with its head."""
    return RULES + sum(map(_tall, block.lines))


def text_height(text: str) -> float:
    """Of a paragraph of small print."""
    return ROW_HEIGHT * (1 + int(_CHARACTER * len(text) * 0.95 / LINE_WIDTH)) + 1


def pages(heights: Sequence[float]) -> list[list[int]]:
    """Which of the pieces stand on each page, in order."""
    found: list[list[int]] = []
    left = 0.0
    for i, tall in enumerate(heights):
        if not found or tall > left:
            found.append([])
            left = PAGE_HEIGHT
        found[-1].append(i)
        left -= tall
    return found


def _wide(text: Text) -> float:
    return (
        _CHARACTER * len(text.text) + _MARK * sum(len(str(mark)) + 1 for mark in text.marks) + _GAP
    )


def _tall(line: Line) -> float:
    raised = any(text.marks for text in (line.kind, *line.fields))
    return ROW_HEIGHT + ROW_GAP * line.first + raised


def _cuts(
    columns: Sequence[tuple[str, str]], widths: Sequence[float], left: float
) -> list[tuple[int, int]]:
    """Ranges of columns that fit beside labels of width `left`; those of one group stay
    together.
    """
    starts = [
        i
        for i, (group, _) in enumerate(columns)
        if not i or not group or group != columns[i - 1][0]
    ]
    ends = [*starts[1:], len(columns)]
    wide = [
        max(sum(widths[a:b]), _CHARACTER * len(columns[a][0]) + _GAP)
        for a, b in zip(starts, ends, strict=True)
    ]
    return [(starts[a], ends[b - 1]) for a, b in _ranges(wide, _MOST - left)]


def _rows(lines: Sequence[Line]) -> list[tuple[Line, ...]]:
    """The lines cut before a row wherever a page is full."""
    starts = [i for i, line in enumerate(lines) if line.first]
    ends = [*starts[1:], len(lines)]
    tall = [sum(map(_tall, lines[a:b])) for a, b in zip(starts, ends, strict=True)]
    return [tuple(lines[starts[a] : ends[b - 1]]) for a, b in _ranges(tall, PAGE_HEIGHT - RULES)]


def _ranges(sizes: Sequence[float], room: float) -> list[tuple[int, int]]:
    """The fewest ranges whose sizes fit into `room`, about equally full; what alone is too large
    has one of its own.
    """

    def cut(room: float) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        used = 0.0
        for i, size in enumerate(sizes):
            if not found or used + size > room:
                found.append((i, i))
                used = 0.0
            found[-1] = (found[-1][0], i + 1)
            used += size
        return found

    fewest = cut(room)
    return next(
        (made for k in range(1, 20) if len(made := cut(room * k / 20)) == len(fewest)), fewest
    )
