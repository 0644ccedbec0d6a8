"""The words of commands on a results folder."""

from collections.abc import Sequence
from pathlib import Path

from skipbench.errors import SkipbenchError


def parse(
    arguments: Sequence[str], command: str, flags: Sequence[str] = ()
) -> tuple[Path, list[str]]:
    """Returns the folder of `results=`, and the words that are neither a key nor a flag.

    Raises:
        SkipbenchError: another key or flag.
    """
    for word in arguments:
        key = word.partition("=")[0]
        if ("=" in word and key != "results") or (word.startswith("-") and word not in flags):
            raise SkipbenchError(
                f"{command} does not take {word}; it takes {', '.join(('results=FOLDER', *flags))}"
            )
    given = [a.partition("=")[2] for a in arguments if a.startswith("results=")]
    return Path(given[-1] if given else "results"), [
        a for a in arguments if "=" not in a and not a.startswith("-")
    ]
