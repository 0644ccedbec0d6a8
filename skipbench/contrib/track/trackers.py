"""Trackers that `track=` names: each opens a run, and gives what logs numbers and what ends it."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from skipbench.bench.track import Log
from skipbench.config.run_config import RunConfig

PROJECT = "skipbench"


def tensorboard(config: RunConfig, name: str) -> tuple[Log, Callable[[], None]]:
    tensorboard: Any = importlib.import_module("torch.utils.tensorboard")  # has no types
    writer = tensorboard.SummaryWriter(config.results / "tensorboard" / name)

    def log(numbers: Mapping[str, float], step: int) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return log, writer.close


def mlflow(config: RunConfig, name: str) -> tuple[Log, Callable[[], None]]:
    from mlflow import MlflowClient

    client = MlflowClient()  # of MLFLOW_TRACKING_URI
    known = client.get_experiment_by_name(PROJECT)
    experiment = known.experiment_id if known else client.create_experiment(PROJECT)
    run = client.create_run(experiment, run_name=name, tags=config.names).info.run_id

    def log(numbers: Mapping[str, float], step: int) -> None:
        for key, value in numbers.items():
            client.log_metric(run, key, value, step=step)

    return log, lambda: client.set_terminated(run)


def wandb(config: RunConfig, name: str) -> tuple[Log, Callable[[], None]]:
    import wandb

    # several arms of a row are open at a time
    run = wandb.init(
        project=PROJECT, name=name, config=config.record(), dir=config.results, reinit="create_new"
    )
    return lambda numbers, step: run.log(dict(numbers), step=step), run.finish
