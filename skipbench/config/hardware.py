"""Schemas of `conf/hardware`: a device, for rooflines; a cluster, or this machine, for `submit`."""

import re

from skipbench.config.configurable import Natural, Positive, Settings


class Hardware(Settings, frozen=True):
    """A device: rates from the maker's datasheet, where those that are missing are measured; or
    passes that were timed on it, for `predict`.
    """

    devices: list[str]
    """Its full names by the driver: a part of a GPU (MIG) has another name, and other rates."""
    memory_bytes: float | None = None
    bandwidth: float | None = None
    """Bytes/s of its memory."""
    flops: dict[str, float] = {}
    """Floating-point operations/s of dense matrix products, by dtype."""
    prices: str | None = None
    """A latency file of `profile`, beside the file of the device; `model` was timed."""
    model: str | None = None
    """A choice of conf/model: the sizes that were timed."""


class Slurm(Settings, frozen=True):
    """A cluster, on which no run's hash depends; a key that is null takes the cluster's default."""

    partition: str | None = None
    """sbatch --partition."""
    account: str | None = None
    """sbatch --account."""
    constraint: str | None = None
    """sbatch --constraint."""
    gpu: str | None = None
    """Slurm's name of a GPU type; null takes any."""
    gpus: Natural | None = 0
    """GPUs per job; null: as many as its model needs, by `gpu_memory_gib`."""
    gpu_memory_gib: float | None = None
    """What a process can use of the memory of one GPU."""
    device: str | None = None
    """Its GPU among the devices of conf/hardware, by whose rates `--plan` estimates hours."""
    cpus: Positive = 1
    """CPUs per job."""
    memory: str | None = None
    """sbatch --mem, such as 120G; a job whose weights need more asks for more."""
    time: str | None = None
    """Time limit per job, as sbatch --time: `90` (minutes), `12:00:00` or `2-00`; a row that takes
    longer goes on in a requeue.
    """
    node_gpus: Positive = 8
    """GPUs per node, by which wall-clock and charged hours are planned."""
    exclusive: bool = False
    """Takes whole nodes, which the cluster charges in full, so that nothing disturbs timings."""
    parallel: Positive | None = None
    """How many jobs of an array run at once."""
    requeues: Natural = 3
    """How often a job starts again after its time limit or a preemption, besides the time limits
    that its planned hours hold; 0 for never."""
    signal_s: Positive = 300
    """Seconds before the limit at which a job is told to end; one sample must fit."""
    offline: bool = True
    """Only what the hub's cache holds; `data` fills it."""
    setup: list[str] = []
    """Lines of shell before the command."""
    options: list[str] = []
    """Further words for sbatch, such as `--qos=high`."""
    python: str | None = None
    """The interpreter on the nodes; null takes the one that submits."""

    @property
    def limit_h(self) -> float | None:
        """Hours of `time`; None without a limit, or in another form, which is the cluster's."""
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", self.time or "")
        if match is None:
            return None
        days, *given = (int(part or 0) for part in match.groups())
        # without days, one number is minutes, two are minutes and seconds
        if match[1] is None and match[4] is None:
            given = [0, *given[:2]]
        hours, minutes, seconds = given
        return 24 * days + hours + minutes / 60 + seconds / 3600


class Local(Settings, frozen=True):
    """This machine, as a queue of rows."""

    workers: Positive | None = None
    """Rows at once; null: as many as the GPUs allow, or one, for its timings, without GPUs."""
    gpus: Natural | None = None
    """GPUs per row; null: as many as its model needs."""
