"""Hydra looks for plugins in the namespace package `hydra_plugins`; `skipbench.launch.sweeper` puts
this folder on the path.
"""

from skipbench.launch.launcher import SlurmLauncher
from skipbench.launch.sweeper import ExperimentSweeper

__all__ = ["ExperimentSweeper", "SlurmLauncher"]
