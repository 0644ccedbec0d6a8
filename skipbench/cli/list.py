"""`list`: the choices of one kind, with the first comment of each file."""

from collections.abc import Sequence

from skipbench.cli.commands import List
from skipbench.cli.help import first_comment
from skipbench.cli.parser import parse
from skipbench.config.catalog import choices, file_of, known_models
from skipbench.config.explain import did_you_mean
from skipbench.config.model import Model
from skipbench.console import show
from skipbench.errors import SkipbenchError

KINDS = {"models": "model", "methods": "method", "datasets": "dataset", "experiments": "experiment"}


def run(arguments: Sequence[str]) -> None:
    """Prints the choices.

    Raises:
        SkipbenchError: not exactly one kind.
    """
    words = parse(List, arguments).words
    if len(words) != 1 or words[0] not in KINDS:
        hint = did_you_mean(words[0], list(KINDS)) if words else ""
        raise SkipbenchError(f"list needs one of: {', '.join(KINDS)}.{hint}")
    group = KINDS[words[0]]
    names = choices(group)
    models = known_models() if group == "model" else {}
    width = max(16, *map(len, names))
    for name in names:
        size = _size(models[name]) if name in models else ""
        show(f"{name:{width}} {first_comment(file_of(group, name))} {size}".rstrip())


def _size(model: Model) -> str:
    """Size of a model, and marks of one that is gated or not pinned."""
    from skipbench.bench.memory import size_text

    marks = {"gated": model.gated, "revision not pinned": model.revision == "main"}
    return "; ".join([size_text(model), *(mark for mark, holds in marks.items() if holds)])
