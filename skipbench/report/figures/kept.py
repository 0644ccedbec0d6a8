"""The records behind a figure as one file, kept beside it: from that file alone the figure is drawn
again.
"""

import json
from pathlib import Path

from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import Run
from skipbench.runs.reading import MOST_SAMPLES, read_bytes
from skipbench.runs.record import Sample, dump, parse


def dump_runs(name: str, runs: list[Run]) -> str:
    """JSON, a run per line: its settings, metrics and samples, and what the experiment `name` knows
    of it; no folder's path.
    """
    lines = []
    for run in runs:
        samples = [json.loads(dump(sample)) for sample in run["samples"]]
        lines.append(
            json.dumps(
                dict(run) | {"folder": Path(run["folder"]).name, "samples": samples},
                allow_nan=False,
            )
        )
    told = ",\n".join(lines)
    return f'{{"figure": {json.dumps(name)}, "runs": [\n{told}\n]}}\n'


def read_runs(path: Path) -> tuple[str, list[Run]]:
    """Name and runs of a file that `dump_runs` made.

    Raises:
        SkipbenchError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(read_bytes(path, MOST_SAMPLES) or b"")
        runs = [
            Run(**(run | {"samples": [parse(json.dumps(s), Sample) for s in run["samples"]]}))  # type: ignore[typeddict-item]  # of a file
            for run in found["runs"]
        ]
        missing = {key for run in runs for key in Run.__required_keys__ - run.keys()}
        if missing:
            raise KeyError(*sorted(missing))
        return str(found["figure"]), runs
    except (OSError, ValueError, KeyError, TypeError, SkipbenchError) as error:
        raise SkipbenchError(
            f"{path} holds no records of a figure ({error!r}); write it with python -m "
            "skipbench figure NAME"
        ) from error
