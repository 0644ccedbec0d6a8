"""Types of keys and flags that several commands have."""

from typing import Annotated, Literal

from msgspec import Meta

from skipbench.cli.parser import Names

Positive = Annotated[float, Meta(gt=0, title="a number above 0")]
Count = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(title="a number of 1 or more")]
Limit = Annotated[
    Annotated[str, Meta(pattern=r"^([1-9]\d*|null)$")] | None,
    Meta(title="1 or more, or null for all"),
]
Isolation = Annotated[
    Literal["auto", "none"], Meta(title="auto, or none to run generated code without isolation")
]
Prompts = Annotated[str | None, "a file, .jsonl or .parquet with `prompt` or `messages`, or .txt"]
Columns = Annotated[Names, "only these columns of the table, in this order, or all there are"]
Over = Annotated[str | None, "a method, such as swift: paired ratios to it, with intervals"]
Force = Annotated[bool, "writes although measured values are lost"]
Json = Annotated[bool, "results for machines"]
Plan = Annotated[bool, "prints what the rows cost, model by model, and runs nothing"]
Rows = Annotated[bool, "with --plan: a line per row, and its arms"]
Stale = Annotated[
    float | None,
    Meta(title="a number of seconds"),
    "seconds without news after which a run on another machine counts as dead",
]
RenderOnly = Annotated[bool, "runs nothing"]
