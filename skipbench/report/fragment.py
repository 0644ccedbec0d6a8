"""A `PaperTable` as a piece of HTML for any page: no scripts, nothing that is loaded, wide grids
scroll in their own box.
"""

from html import escape
from itertools import groupby

from skipbench.report.papercells import PaperTable, Part
from skipbench.report.papergrid import DIFFERENCE, OURS, Line, Marks, Text, lines

STYLE = """
.paper-table { max-width: 100%; color: #1b1b1b; background: #fff; }
.paper-table { font: 14px/1.45 system-ui, sans-serif; }
.paper-table h2 { font-size: 1.25em; margin: 0 0 .2em; }
.paper-table :is(p, ol, dl, ul) { margin: .5em 0; font-size: .93em; overflow-wrap: anywhere; }
.paper-table .scroll { overflow-x: auto; margin: .8em 0; }
.paper-table table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.paper-table table { border-block: 2px solid #1b1b1b; }
.paper-table th, .paper-table td { padding: .2em .6em; text-align: right; white-space: nowrap; }
.paper-table th { font-weight: normal; }
.paper-table thead tr:last-child > * { border-bottom: 1px solid #1b1b1b; }
.paper-table thead th[colspan] { text-align: center; }
.paper-table th.label { text-align: left; }
.paper-table tr.first > * { border-top: 1px solid #ddd; }
.paper-table tr.measured td { background: #eef5fb; }
.paper-table tr.difference td, .paper-table tr.difference th { color: #555; }
.paper-table .caution { border-left: 4px solid #b45309; padding-left: .7em; font-weight: bold; }
.paper-table dt { font-style: italic; }
.paper-table dd { margin: 0 0 .3em 1em; }
""".strip()


def html(t: PaperTable, style: str = STYLE) -> str:
    """A `<section>` with the grid of every part and all that stands under it; `style` is empty for
    a page with its own.
    """
    marks = Marks()
    grids = [_grid(part, marks) for part in t.parts]
    reasons = "\n".join(f"<li>{escape(text)}</li>" for text in marks.texts)
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in t.notes)
    terms = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in t.definitions
    )
    origin = "; ".join(f"{name}: {text}" for name, text in t.provenance)
    parts = [
        f'<section class="paper-table" id="{escape(f"{t.paper}-{t.table}-{t.scale}")}">',
        f"<style>{style}</style>" if style else "",
        f"<h2>{escape(t.heading)}</h2>",
        f"<p>{escape(t.source)}. scale={escape(t.scale)}.</p>",
        *(f'<p class="caution">{escape(line)}</p>' for line in t.cautions),
        *grids,
        f"<ol>\n{reasons}\n</ol>" if reasons else "",
        f"<ul>\n{notes}\n</ul>" if notes else "",
        f"<dl>\n{terms}\n</dl>" if terms else "",
        f"<p>lossless: {escape(t.lossless)}</p>",
        f"<p>{escape(origin)}</p>" if origin else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _grid(part: Part, marks: Marks) -> str:
    body = "\n".join(_line(line) for line in lines(part, marks))
    settings = f"<p>{escape(part.settings)}</p>\n" if part.settings else ""
    return (
        f'{settings}<div class="scroll" tabindex="0"><table>\n<thead>\n{_head(part)}\n</thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _head(part: Part) -> str:
    rows = []
    sizes = [(name, len(list(of))) for name, of in groupby(group for group, _ in part.columns)]
    if any(name for name, _ in sizes):
        named = "".join(
            f'<th scope="colgroup" colspan="{size}">{escape(name)}</th>' for name, size in sizes
        )
        rows.append(f"<tr>{'<td></td>' * (len(part.keys) + 1)}{named}</tr>")
    keys = "".join(f'<th class="label" scope="col">{escape(key)}</th>' for key in part.keys)
    columns = "".join(f'<th scope="col">{escape(column)}</th>' for _, column in part.columns)
    return "\n".join([*rows, f"<tr>{keys}<td></td>{columns}</tr>"])


def _line(line: Line) -> str:
    kinds = {OURS: "measured", DIFFERENCE: "difference"}
    classes = " ".join(
        filter(None, ("first" if line.first else "", kinds.get(line.kind.text, "paper")))
    )
    labels = "".join(
        f'<th class="label">{escape(label) if line.first else ""}</th>' for label in line.labels
    )
    fields = "".join(f"<td{_run(text)}>{_text(text)}</td>" for text in line.fields)
    return (
        f'<tr class="{classes}">{labels}<th class="label" '
        f'scope="row">{_text(line.kind)}</th>{fields}</tr>'
    )


def _run(text: Text) -> str:
    """Names the run for a page that also holds the pages of runs: it makes links of these."""
    return f' data-run="{escape(text.run)}"' if text.run else ""


def _text(text: Text) -> str:
    shown = f"<b>{escape(text.text)}</b>" if text.bold else escape(text.text)
    return shown + (f"<sup>{','.join(map(str, text.marks))}</sup>" if text.marks else "")
