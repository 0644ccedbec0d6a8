"""Provenance of a run: commit, machine, versions; and the hash of its settings that names it."""

import contextlib
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skipbench.config.paths import PACKAGE, cache_folder
from skipbench.errors import SkipbenchError
from skipbench.runs.gpu import Gpu, ask

COMPUTING = ["torch", "transformers", "tokenizers", "numpy", "bayesian-optimization"]
COMPUTING += ["bitsandbytes", "triton"]
CONDITIONS = ["device", "cpu", "threads", "engine", "native_kernels", "arithmetic", "python"]
CONDITIONS += COMPUTING
"""A run's times, and what rounds otherwise, depend on these, beside its settings."""
OF_PROMPTS = ("prompts", "rows_sha256", "prompts_sha256")
COMMIT = "SKIPBENCH_COMMIT"
PROTOCOLS = {
    2: "6d61af62650f4500efa1eea8fa8e7dc8a25177ec0ac15ab00967fd88063f1ec8",
    3: "6ac4524b3289d93eb3dfe069e1dba184815bb377b2a8f392521c75a265472e72",  # reads NAME.all.csv
}  # docs/protocol.md: SHA-256 of the page by its version; the last one is in force
SLURM = re.compile(r"SLURM_(ARRAY_)?(JOB|TASK|NODE)_?(ID|LIST)")
PACKAGES = ["skipbench", *COMPUTING, "safetensors", "datasets", "hydra-core", "omegaconf"]


def _git(*args: str) -> str | None:
    """The output of a git command; None without a repository, or if it fails."""
    known = (PACKAGE.parent / ".git").exists()
    answer = ask("git", "-C", str(PACKAGE.parent), *args, timeout_s=10) if known else None
    return None if answer is None else answer.strip()


def cpu_name() -> str:
    """The processor's model, or what is known of it."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """Instruction sets of the processor as Linux names them; empty on other systems."""
    return set(_cpu_info("flags").split())


def _cpu_info(name: str) -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()  # the first core's entry
        if match := re.search(rf"^{name}\s*: (.*)", text, re.MULTILINE):
            return match[1]
    return ""


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield package, metadata.version(package)


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """`provenance.json`; None: not recorded, or not to be had."""

    commit: str | None = None
    protocol: int | None = None  # of `PROTOCOLS`
    dirty: bool | None = None
    argv: list[str] = []
    started: str = ""
    host: str | None = None
    platform: str | None = None
    python: str | None = None
    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    versions: dict[str, str] = {}
    slurm: dict[str, str] = {}  # identifiers of the job; no other part of the environment is kept
    prompts: int | None = None  # of the hashes of rows and prompts
    rows_sha256: str | None = None
    prompts_sha256: str | None = None
    calibration_sha256: str | None = None
    weights_sha256: str | None = None
    method_sha256: str | None = None
    package_sha256: str | None = None
    tokenizer_sha256: str | None = None
    generation_sha256: str | None = None
    files: dict[str, str] = {}  # by setting: hash of the file or checkpoint it names
    device: str | None = None
    threads: int | None = None
    gpus: list[Gpu] = []  # of the model's devices, in their order
    cudnn: int | None = None  # version of cuDNN, as torch numbers it; None without a GPU
    cudnn_attention: bool | None = None
    layers: int | None = None
    engine: str | None = None
    kernels: list[str] = []  # what multiplies by the weights of the model
    native_kernels: str | None = None
    arithmetic: str | None = None  # instructions and precision of products; compiled C functions
    notes: list[str] = []
    label: str | None = None
    model_commit: str | None = None  # commit of a branch of the hub
    latency: str | None = None  # name of the latency file
    latency_sha256: str | None = None  # hash of the latencies that the method used
    parts: dict[str, Any] = {}  # seconds of the model's parts, a `metrics.prices.Latencies`
    resumed: list[dict[str, Any]] = []  # `after_turns` and what differs, per resuming process

    @property
    def conditions(self) -> dict[str, str]:
        """`CONDITIONS` of the run, as far as they are recorded."""
        values = msgspec.structs.asdict(self) | self.versions
        return {name: str(v) for name in CONDITIONS if (v := values.get(name)) is not None}

    def resumed_by(self, now: "Provenance", after: int, folder: Path) -> "Provenance":
        """The provenance of the run in `folder`, which has `after` turns, resumed by the process
        `now`, perhaps for more prompts. Raises SkipbenchError under other `CONDITIONS`.
        """
        if not after:
            return now
        there, here = self.conditions, now.conditions
        changed = sorted(k for k in there.keys() & here.keys() if there[k] != here[k])
        if changed:
            texts = ", ".join(f"{name} {there[name]} -> {here[name]}" for name in changed)
            raise SkipbenchError(
                f"{folder} was begun under other conditions ({texts}), on which its times depend; "
                "go on where it was begun, or start anew with fresh=true"
            )
        longer = (now.prompts or 0) > (self.prompts or 0)
        known = replace(self, **{name: getattr(now, name) for name in OF_PROMPTS if longer})
        first = msgspec.to_builtins(known)
        one = {k: v for k, v in msgspec.to_builtins(now).items() if first[k] != v}
        earlier = [process for process in self.resumed if process["after_turns"] < after]
        return replace(known, resumed=[*earlier, {"after_turns": after} | one])

    @classmethod
    def here(cls) -> "Provenance":
        """Of this process; without a repository the commit is that of SKIPBENCH_COMMIT."""
        code = (".", ":!results")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return cls(
            commit=_git("rev-parse", "HEAD") or os.environ.get(COMMIT) or None,
            protocol=max(PROTOCOLS),
            dirty=None if changed is None else bool(changed),
            argv=sys.argv,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            host=platform.node(),
            platform=platform.platform(),
            python=platform.python_version(),
            cpu=cpu_name(),
            cores=os.cpu_count(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            versions=dict(_versions()),
            slurm={k: v for k, v in os.environ.items() if SLURM.fullmatch(k)},
        )


PLACES: dict[str, Callable[[], Path]] = {"package": lambda: PACKAGE, "cache": cache_folder}
"""Folders whose place depends on the machine, by their names in a record."""


def portable(value: Any) -> Any:
    """Settings without places: `package:NAME` for what ships with the package, or `cache:NAME`."""
    match value:
        case dict():
            return {k: portable(v) for k, v in value.items()}
        case list():
            return [portable(v) for v in value]
        case str():
            for kind, folder in PLACES.items():
                if value.startswith(f"{folder()}/"):
                    return f"{kind}:{value.removeprefix(f'{folder()}/')}"
    return value


def engine_text(name: str, strict: bool) -> str:
    """Name of an engine in tables, with the setting that changes its arithmetic."""
    return f"{name}, strict" if strict else name


def hashed(value: Any, sort_keys: bool = True) -> str:
    """SHA-256 (hex) of plain data as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=sort_keys).encode()).hexdigest()


def leaves(settings: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each setting, of parts such as a stop rule too."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def config_hash(config: Mapping[str, object]) -> str:
    """Ten hexadecimal digits that depend on every setting and nothing else, on every machine."""
    return hashed(portable(config))[:10]


def check_identity(folder: Path, config: Mapping[str, object]) -> None:
    """Raises SkipbenchError where the hash in the name of a row's or an arm's folder is not that of
    its config.yaml; a name without a hash is not checked.
    """
    named = re.search(r"_([0-9a-f]{10})$", folder.name)
    if config and named and named[1] != (digest := hashed(config)[:10]):
        raise SkipbenchError(
            f"{folder} holds another run: its config.yaml has the hash {digest}; give the folder "
            "its name back, or move it away"
        )


def run_name(parts: list[str], digest: str) -> str:
    """Folder name: readable parts, then the hash that decides."""
    words = [re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.")[:40] for part in parts]
    return "_".join([*filter(None, words), digest])
