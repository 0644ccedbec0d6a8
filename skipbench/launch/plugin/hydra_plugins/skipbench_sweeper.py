"""Hydra looks for plugins in the namespace package `hydra_plugins`; `skipbench.launch.sweeper` puts
this folder on the path.
"""

from skipbench.launch.sweeper import ExperimentSweeper, SlurmLauncher

__all__ = ["ExperimentSweeper", "SlurmLauncher"]
