"""`track=`: a run's lines and metrics in a tracker's own files, read back by the tracker."""

from pathlib import Path
from typing import Any

import pytest

from skipbench.bench.track import results_of, tracked
from skipbench.config.compose import compose
from skipbench.contrib.track import trackers
from skipbench.errors import SkipbenchError
from skipbench.runs.measures import Metrics, Speedup

DONE = Metrics(M=2.5, speedup=Speedup(e2e=1.25, e2e_ci95=(1.0, 1.5)))


def write(tmp_path: Path, track: str) -> None:
    config = compose([f"results={tmp_path}", f"track={track}"])
    # the arms of a row are open at the same time
    with tracked(config, "a") as a, tracked(config, "b") as b:
        for step, speedup in enumerate((1.5, 1.0), 1):
            a({"speedup": speedup}, step)
            b({"speedup": 2 * speedup}, step)
        a(results_of(DONE), 2)


def test_tensorboard(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write(tmp_path, "tensorboard")

    def scalars(name: str, key: str) -> list[tuple[int, float]]:
        events: Any = reader.EventAccumulator(str(tmp_path / "tensorboard" / name))
        events.Reload()
        return [(e.step, e.value) for e in events.Scalars(key)]

    assert scalars("a", "speedup") == [(1, 1.5), (2, 1.0)]
    assert scalars("b", "speedup") == [(1, 3.0), (2, 2.0)]
    assert scalars("a", "run/speedup_low") == [(2, 1.0)] and scalars("a", "run/M") == [(2, 2.5)]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    write(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("skipbench").experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    history = client.get_metric_history(by_name["b"].info.run_id, "speedup")
    assert [(m.step, m.value) for m in history] == [(1, 3.0), (2, 2.0)]
    assert by_name["a"].data.metrics["run/speedup_high"] == 1.5
    assert by_name["a"].data.tags["method"] == "self-sd" and by_name["a"].info.status == "FINISHED"


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write(tmp_path, "wandb")
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2 and any(b"run/speedup_low" in file.read_bytes() for file in files)


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    got = list[int]()

    def log(numbers: object, step: int) -> None:
        got.append(step)
        raise OSError("the server is gone")

    monkeypatch.setattr(trackers, "mlflow", lambda config, name: (log, lambda: None))
    write(tmp_path, "mlflow")
    assert got == [1, 1]
    assert capsys.readouterr().err.count("track=mlflow failed") == 2


def test_what_is_not_installed_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(config: object, name: str) -> Any:
        raise ImportError

    monkeypatch.setattr(trackers, "wandb", missing)
    with pytest.raises(SkipbenchError, match="track=wandb needs its package: pip install wandb"):
        write(tmp_path, "wandb")
    with pytest.raises(SkipbenchError, match="track"):
        compose(["track=paper"])
