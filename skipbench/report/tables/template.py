"""Renders templates of report's folders, in which every text is escaped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


def rendered(path: Path, escape: Callable[[str], str], **values: Any) -> str:
    """The template in a file.

    Args:
        escape: applied to all texts but those of markup.
        values: what the template takes.
    """
    environment = Environment(
        loader=FileSystemLoader(path.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda v: escape(v) if isinstance(v, str) and not isinstance(v, Markup) else v,
    )
    return environment.get_template(path.name).render(values)
