"""What a command on experiments is about: their cells, each with its state, and the machines that are to run them."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skipbench.catalogue import choices, places
from skipbench.cells import NOT_HASHED, finish, search_trace
from skipbench.compose import compose
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.runs.fingerprint import refuse_other
from skipbench.runs.life import STALE_S, STATES, Life, life_of
from skipbench.runs.provenance import config_hash
from skipbench.sweep import manifest, slurm
from skipbench.tables import grid

TO_RUN = ("missing", "failed", "interrupted", "stale")


@dataclass(frozen=True)
class Found:
    """A cell of an experiment and its state; `folder` is `None` while its search is not done.

    `runnable` is False where the cell waits for something that the user has to do; `gpus` is what a job asks for.
    """

    name: str
    plain: dict[str, Any]
    folder: Path | None
    life: Life
    runnable: bool = True
    gpus: int = 1


def survey(experiment: str, words: Sequence[str], hardware: Mapping[str, Any] | None = None) -> list[Found]:
    """Every cell of an experiment that can be run, those that become one run once, with its state.

    Args:
        words: overrides, and perhaps `scale=`, `models=`, `stale=SECONDS`.
        hardware: what `hardware_of` makes of the words.
    """
    own = [w for w in _scaled(words, hardware) if not w.startswith(("hardware", "stale="))]
    stale_s = next((_seconds(w) for w in words if w.startswith("stale=")), STALE_S)
    live = slurm.jobs()
    sent: dict[str, list[manifest.Task]] | None = None
    cells: dict[str, Found] = {}
    for _, plain in grid(experiment, own):
        name = "/".join(str(plain[k]["name"]) for k in ("model", "method", "dataset"))
        try:
            settings, path = finish(plain)
            folder: Path | None = path
            life, runnable = life_of(path, live, stale_s), True
            if life.state == "done":
                life, runnable = _unchanged(life, settings, path)
        except NotHereError as error:
            folder, runnable = None, bool(plain.get("own_search"))
            life = Life("missing", str(error))
        except SkipbenchError as error:
            if not plain.get("own_search"):
                raise
            folder, life, runnable = None, Life("failed", str(error)), False  # its search cannot be read
        found = Found(name, plain, folder, life, runnable)
        if sent is None:
            sent = manifest.tasks(Path(plain["results"]))
        key = key_of(found)
        cells.setdefault(key, replace(found, life=_with_jobs(found, sent.get(key, []), live)))
    return list(cells.values())


def _unchanged(life: Life, settings: dict[str, Any], folder: Path) -> tuple[Life, bool]:
    """State of a done run and whether to submit it; with other weights or code it would fail again."""
    try:
        refuse_other(folder, settings["model"], settings["method"])
    except SkipbenchError as error:
        return Life("failed", str(error)), False
    return life, True


def _with_jobs(found: Found, tasks: Sequence[manifest.Task], live: Mapping[str, str] | None) -> Life:
    """What a cell's record says, and where it says nothing, what became of its jobs; `live` as of `slurm.jobs`."""
    if found.life.state not in TO_RUN or live is None:
        return found.life
    if states := [live[task.job] for task in tasks if task.job in live]:
        return Life("queued", f"its job is {states[-1]}")
    begun = [task for task in tasks if task.log.exists()]
    if begun and found.life.state == "missing" and found.folder is not None:
        return Life("failed", f"job {begun[-1].job} is over and left no record; see {begun[-1].log}")
    return found.life


def key_of(found: Found) -> str:
    """Identifies a cell: its run's folder, or while its skip set is missing, where that comes from and the settings."""
    if found.folder is not None:
        return found.folder.name
    if not found.plain.get("own_search"):  # the set is searched by hand
        return f"{found.name}, {config_hash({k: v for k, v in found.plain.items() if k not in NOT_HASHED})}"
    settings = {k: v for k, v in found.plain.items() if k in ("search", "own_search") or k not in NOT_HASHED}
    return f"search of {search_trace(found.plain).parent.name}, {config_hash(settings)}"


def waves(cells: Sequence[Found]) -> list[list[Found]]:
    """The cells in an order in which no two of a wave share a search that is still to be done; one wave, or two.

    Of those that share one, the cell that wants most of it comes first; the others then find it done.
    """
    first: dict[str, Found] = {}
    for found in cells:
        key = key_of(found) if found.folder is not None else search_trace(found.plain).parent.name
        if key not in first or _iterations(found) > _iterations(first[key]):
            first[key] = found
    early = {id(found) for found in first.values()}
    split = [f for f in cells if id(f) in early], [f for f in cells if id(f) not in early]
    return [wave for wave in split if wave]


def _iterations(found: Found) -> int:
    return int(found.plain["search"]["iterations"])


def read_words(arguments: Sequence[str], command: str, flag: str = "") -> tuple[list[str], list[str], bool]:
    """Experiments, the other words, and whether the flag is given."""
    names = [a for a in arguments if "=" not in a and not a.startswith("-")]
    known = choices("experiment")
    if not names or (unknown := set(names) - set(known)):
        told = f", not {sorted(unknown)[0]!r}" if names else ""
        raise SkipbenchError(f"{command} needs an experiment{told}; known: {', '.join(known)}")
    if flags := [a for a in arguments if a.startswith("-") and a != flag]:
        raise SkipbenchError(f"{command} has no flag {flags[0]}" + (f"; there is {flag}" if flag else ""))
    return names, [a for a in arguments if "=" in a], bool(flag) and flag in arguments


def hardware_of(words: Sequence[str]) -> dict[str, Any] | None:
    """The settings of `hardware=`, `None` where it is not among the words.

    Raises:
        SkipbenchError: no such choice or key, or a device.
    """
    own = [w for w in words if w.partition("=")[0].partition(".")[0] == "hardware"]
    chosen = [w.partition("=")[2] for w in own if w.startswith("hardware=")]
    if not chosen:
        return None
    found: dict[str, Any] = compose(own)["hardware"]
    if chosen[-1] not in places():
        raise SkipbenchError(
            f"hardware={chosen[-1]} is no place where cells run; wanted one of: {', '.join(places())}, or a file of your own "
            f"in conf/hardware with _slurm among its defaults, as in slurm-a100.yaml"
        )
    return found


def _scaled(words: Sequence[str], hardware: Mapping[str, Any] | None) -> list[str]:
    """With the scale of the nodes, unless one is given: that this machine has no GPU says nothing of theirs."""
    if any(w.startswith("scale=") for w in words) or hardware is None or "workers" in hardware:
        return list(words)
    return [*words, "scale=embedded" if hardware["gpus"] == 0 else "scale=paper"]


def counts(cells: Sequence[Found]) -> str:
    """How many cells are in which state, in a line."""
    count = Counter(f.life.state for f in cells)
    return f"{len(cells)} cells: " + ", ".join(f"{count[state]} {state}" for state in STATES)


def command_line(command: str, name: str, words: Sequence[str]) -> str:
    """What to type for a command on an experiment with the same words."""
    kept = [w for w in words if command != "table" or not w.startswith(("hardware", "stale="))]
    return shlex.join(["python", "-m", "skipbench", command, name, *kept])


def _seconds(word: str) -> float:
    try:
        return float(word.partition("=")[2])
    except ValueError:
        raise SkipbenchError(f"{word}; wanted a number of seconds") from None
