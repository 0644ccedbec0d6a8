"""Writes a table as a piece of HTML for any page: no scripts, nothing that is loaded, wide grids
scroll in their own box.
"""

from collections.abc import Sequence
from html import escape

from skipbench.report.tables.model import Cell, Column, Grid, Row, Table

STYLE = """
.result-table { max-width: 100%; color: #1b1b1b; background: #fff; }
.result-table { font: 14px/1.45 system-ui, sans-serif; }
.result-table h2 { font-size: 1.25em; margin: 0 0 .2em; }
.result-table :is(p, ol, dl, ul) { margin: .5em 0; font-size: .93em; overflow-wrap: anywhere; }
.result-table .scroll { overflow-x: auto; margin: .8em 0; }
.result-table table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.result-table table { border-block: 2px solid #1b1b1b; }
.result-table th, .result-table td { padding: .2em .6em; text-align: right; white-space: nowrap; }
.result-table th { font-weight: normal; }
.result-table thead tr:last-child > * { border-bottom: 1px solid #1b1b1b; }
.result-table thead th[colspan] { text-align: center; }
.result-table :is(.label, .text) { text-align: left; }
.result-table tr.first > * { border-top: 1px solid #ddd; }
.result-table tr.measured td { background: #eef5fb; }
.result-table tr.difference > * { color: #555; }
.result-table .caution { border-left: 4px solid #b45309; padding-left: .7em; font-weight: bold; }
.result-table dt { font-style: italic; }
.result-table dd { margin: 0 0 .3em 1em; }
""".strip()


def html(table: Table, style: str = STYLE) -> str:
    """A `<section>` with the grids and everything that stands below them.

    Args:
        table: what to write.
        style: CSS to put into the section; empty for a page with a style of its own.
    """
    terms = [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in table.definitions]
    blocks = [
        f'<section class="result-table" id="{escape(table.name)}">',
        f"<style>{style}</style>" if style else "",
        f"<h2>{escape(table.title)}</h2>",
        f"<p>{escape(table.source)}</p>" if table.source else "",
        *(f'<p class="caution">{escape(text)}</p>' for text in table.cautions),
        *map(_grid, table.grids),
        _list("ol", [f"<li>{escape(text)}</li>" for text in table.footnotes]),
        _list("ul", [f"<li>{escape(text)}</li>" for text in table.remarks]),
        _list("dl", terms),
        *(f"<p>{escape(text)}</p>" for text in table.provenance),
        "</section>",
    ]
    return "\n".join(block for block in blocks if block) + "\n"


def _list(tag: str, items: Sequence[str]) -> str:
    return "\n".join([f"<{tag}>", *items, f"</{tag}>"]) if items else ""


def _grid(grid: Grid) -> str:
    settings = [f"<p>{escape(grid.settings)}</p>"] if grid.settings else []
    body = [_row(row, grid.columns) for row in grid.rows]
    opening = ['<div class="scroll" tabindex="0"><table>', "<thead>", *_head(grid), "</thead>"]
    return "\n".join([*settings, *opening, "<tbody>", *body, "</tbody>", "</table></div>"])


def _head(grid: Grid) -> list[str]:
    groups = "".join(
        f'<th scope="colgroup" colspan="{size}">{escape(name)}</th>' if name else "<td></td>" * size
        for name, size in grid.groups()
    )
    names = "".join(
        f'<th{_class(column)} scope="col">{escape(column.name)}</th>'
        if column.name
        else "<td></td>"
        for column in grid.columns
    )
    return [*([f"<tr>{groups}</tr>"] if "colgroup" in groups else []), f"<tr>{names}</tr>"]


def _row(row: Row, columns: Sequence[Column]) -> str:
    classes = " ".join(filter(None, ("first" if row.first else "", row.kind)))
    cells = "".join(map(_cell, row.cells, columns))
    return f'<tr class="{classes}">{cells}</tr>'


def _cell(cell: Cell, column: Column) -> str:
    names_row = column.kind == "label" and cell.text
    tag, scope = ("th", ' scope="row"') if names_row else ("td", "")
    run = f' data-run="{escape(cell.run)}"' if cell.run else ""
    text = f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)
    mark = f"<sup>{cell.mark}</sup>" if cell.mark else ""
    return f"<{tag}{_class(column)}{scope}{run}>{text}{mark}</{tag}>"


def _class(column: Column) -> str:
    return "" if column.kind == "number" else f' class="{column.kind}"'
