"""The terminal that commands write to: no text of a record, a setting or an error steers it."""

from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from skipbench.runs.reading import printable


class Console(rich.console.Console):
    """Rich's console, which writes control characters of a text as escapes, such as `\\x1b`, and
    keeps its lines.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of a renderable; its colours are not text, and stay."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), segment.style)
