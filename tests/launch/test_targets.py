"""What a configuration may call: nothing that only a file of a results folder names."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from skipbench.config.compose import compose
from skipbench.config.dataset import DatasetConfig
from skipbench.errors import SkipbenchError
from skipbench.launch.manifest import read_row, write_rows


class Mark:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("way", ["target", "below", "listed", "interpolated", "own", "attribute"])
def test_a_manifest_calls_nothing_that_no_file_of_conf_names(way: str, tmp_path: Path) -> None:
    called, pickled = tmp_path / "called", tmp_path / "set.pkl"
    pickled.write_bytes(pickle.dumps(Mark(called)))
    reads: dict[str, Any] = {"_target_": "pandas.read_pickle", "filepath_or_buffer": str(pickled)}
    rule: dict[str, Any] = {"_target_": "skipbench.decode.stopping.Fixed", "max_steps": 4}
    stop: Any = {
        "target": reads,
        "below": {**rule, "max_steps": reads},
        "listed": {**rule, "max_steps": [reads]},
        "interpolated": f"${{oc.create:{{_target_: pandas.read_pickle, filepath_or_buffer: "
        f"'{pickled}'}}}}",
        "own": {
            "_target_": "skipbench.runs.files.write_atomic",
            "path": {"_target_": "skipbench.config.paths.Path", "_args_": [str(called)]},
            "content": "",
        },
        "attribute": {**reads, "_target_": "skipbench.runs.reading.yaml.unsafe_load"},
    }[way]
    config = compose(["method=uniform", f"results={tmp_path}"]).to_dict()
    config["method"]["stop"] = stop
    rows = write_rows(tmp_path, [{"configs": [json.loads(json.dumps(config))]}])
    (cell,) = read_row(rows, 0)
    with pytest.raises(SkipbenchError, match=r"--config-dir|interpolation") as refused:
        cell.config.method.factory()
    assert not called.exists() and "\n" not in str(refused.value)
    with pytest.raises(SkipbenchError, match="--config-dir"):
        DatasetConfig.of({**reads, "seed": 0, "parts": {"one": {**reads, "seed": 0}}}).rows(1)
    assert not called.exists()
