"""Resolvers of `conf/hydra/launcher/slurm.yaml`: the settings of `hardware=` as submitit has
them.
"""

import msgspec
from omegaconf import DictConfig, OmegaConf

from skipbench.config.hardware import Slurm
from skipbench.launch.script import gres, minutes, more, setup


def register() -> None:
    """Makes the resolvers known to OmegaConf; each takes a null `hardware`, too."""
    known = {
        "sbatch_gres": lambda node: gres(_slurm(node)) if node else None,
        "sbatch_minutes": lambda time: minutes(str(time)) if time else 60,
        "sbatch_parallel": lambda count: count or 256,
        "sbatch_more": lambda node: more(_slurm(node)) if node else {},
        "sbatch_setup": lambda node: setup(_slurm(node)) if node else None,
    }
    for name, resolver in known.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _slurm(node: DictConfig) -> Slurm:
    return msgspec.convert(OmegaConf.to_container(node), Slurm)
