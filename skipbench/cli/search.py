"""`search`: looks for a skip set offline and stores it."""

from collections.abc import Sequence

from skipbench.cli.commands import Search
from skipbench.cli.parser import parse
from skipbench.config.compose import compose
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.set_search import search_set


def run(arguments: Sequence[str]) -> None:
    """Searches on development prompts of the dataset; `method.skip=stored` then means the best set.

    Raises:
        SkipbenchError: the method takes no skip set, or a value cannot be used.
    """
    config = compose(parse(Search, arguments).settings)
    if config.method.skip is None:
        raise SkipbenchError(
            f"method={config.method.name} has no skip set to search; use method=self-sd"
        )
    if config.search.on is not None:
        raise SkipbenchError(
            f"search.on={config.search.on} is for the cells of an experiment; here use dataset="
        )
    best = search_set(config, store=True)
    detail = ", ".join(f"{k} {v:.3g}" for k, v in best.detail.items())
    show(f"best of the search: {best.skip or '(nothing skipped)'}\n{detail}")
