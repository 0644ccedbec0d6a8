"""The name by which Hydra finds its plugins; `skipbench.launch.sweeper` adds it to the path."""

from skipbench.launch.sweeper import ExperimentSweeper, SlurmLauncher

__all__ = ["ExperimentSweeper", "SlurmLauncher"]
