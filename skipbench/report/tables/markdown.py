"""Writes a table as Markdown that is readable as text."""

from dataclasses import replace

from skipbench.report.columns import inert_markdown, markdown_grid, one_line
from skipbench.report.definitions import LEGEND
from skipbench.report.tables.model import Cell, Grid, Table


def markdown(table: Table) -> str:
    """The table as Markdown, with cautions and footnotes."""
    blocks = [
        f"## {table.title}",
        table.source,
        *(block for grid in table.grids for block in (grid.settings, _grid(grid))),
        "\n".join(f"**{one_line(text)}**  " for text in table.cautions),
        "\n".join(f"[{n}] {one_line(text)}  " for n, text in enumerate(table.footnotes, 1)),
        "\n".join(f"- {one_line(text)}" for text in table.remarks),
        "\n".join(f"- *{name}*: {one_line(text)}" for name, text in table.definitions),
        *table.provenance,
    ]
    return inert_markdown("\n\n".join(block for block in blocks if block)) + "\n"


def for_terminal(table: Table) -> str:
    """The table as Markdown, with one line in place of the definitions of its columns."""
    line = f"\n\n{LEGEND}" if table.definitions else ""
    return markdown(replace(table, definitions=())).rstrip() + line


def _grid(grid: Grid) -> str:
    def text(cell: Cell) -> str:
        words = f"**{cell.text}**" if cell.bold else cell.text
        return f"{words} [{cell.mark}]" if cell.mark else words

    head = [f"{c.group}: {c.name}" if c.group else c.name for c in grid.columns]
    return markdown_grid([head, *([*map(text, row.cells)] for row in grid.rows)])
