"""Where a result comes from: commit, machine, versions; and the hash that names a run."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.paths import PACKAGE, cache_folder
from skipbench.errors import SkipbenchError
from skipbench.runs.reading import Text

CONDITIONS = ("device", "cpu", "torch", "native_kernels", "threads")
"""A run that goes on under others of these gives times that are not comparable with its first."""
PACKAGES = ["skipbench", "torch", "transformers", "tokenizers", "safetensors", "datasets"]
PACKAGES += ["hydra-core", "omegaconf", "bayesian-optimization", "numpy"]


def _git(*args: str) -> str | None:
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def cpu_name() -> str:
    """The processor's model, or what is known of it."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """Instruction sets of the processor as Linux names them; empty where it does not say."""
    return set(_cpu_info("flags").split())


def _cpu_info(name: str) -> str:
    """What Linux says of the first core; nothing where it does not."""
    try:
        match = re.search(rf"^{name}\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return match[1] if match else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """`provenance.json`; None: not recorded, or not to be had."""

    commit: Text | None = None
    dirty: bool | None = None
    argv: list[str] = []
    started: Text = ""
    host: Text | None = None
    platform: Text | None = None
    python: Text | None = None
    cpu: Text | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    versions: dict[Text, Text] = {}
    slurm: dict[str, str] = {}
    """Identifiers of the job; no other part of the environment is kept."""
    rows_sha256: Text | None = None
    prompts_sha256: Text | None = None
    calibration_sha256: Text | None = None
    weights_sha256: Text | None = None
    method_sha256: Text | None = None
    package_sha256: Text | None = None
    tokenizer_sha256: Text | None = None
    generation_sha256: Text | None = None
    draft_sha256: Text | None = None
    imports_sha256: Text | None = None
    device: Text | None = None
    threads: int | None = None
    cudnn_attention: bool | None = None
    layers: int | None = None
    engine: Text | None = None
    kernels: dict[str, str] = {}
    native_kernels: Text | None = None
    strict_cost: float | None = None
    notes: list[str] = []
    label: Text | None = None
    model_commit: Text | None = None
    """What a branch of the hub was when it was fetched."""
    latency: Text | None = None
    """Name of the latency file."""
    latency_sha256: Text | None = None
    """Of the latencies by which the method decided."""
    energy: Text | None = None
    """Counter of energy."""
    resumed: list[dict[str, Any]] = []
    """Of each process that went on with the run, what is not as in the first one, and its
    `after_samples`.
    """

    def __post_init__(self) -> None:
        _ = self.mixed  # the types of the processes that went on

    @property
    def conditions(self) -> dict[str, str]:
        """What a run's times depend on beside its settings, as far as it is recorded."""
        values = {name: getattr(self, name, None) for name in CONDITIONS}
        values["torch"] = self.versions.get("torch")
        return {name: str(value) for name, value in values.items() if value is not None}

    @property
    def mixed(self) -> str:
        """From which samples on the run was made under other conditions; empty where these are
        one.
        """
        stretches = [(0, self.conditions)]
        for one in self.resumed:
            now = msgspec.to_builtins(self) | {"resumed": []} | one
            process = msgspec.convert(now, _Resumed)
            stretches.append((process.after_samples, process.conditions))
        values = {name: {there.get(name) for _, there in stretches} - {None} for name in CONDITIONS}
        before, texts = "", list[str]()
        for after, there in stretches:
            text = ", ".join(f"{k} {there.get(k)}" for k in CONDITIONS if len(values[k]) > 1)
            if text != before:
                texts.append(f"from sample {after + 1} {text}")
            before = text
        return "; ".join(texts)

    @classmethod
    def here(cls) -> "Provenance":
        """Commit and dirty flag, command line, start, machine, versions and Slurm job of this
        process.
        """
        # results are no code
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        return cls(
            commit=_git("rev-parse", "HEAD"),
            dirty=None if changed is None else bool(changed),
            argv=sys.argv,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            host=platform.node(),
            platform=platform.platform(),
            python=platform.python_version(),
            cpu=cpu_name(),
            cores=os.cpu_count(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            versions={p: v for p in PACKAGES if (v := _version(p)) is not None},
            slurm={
                k: v
                for k, v in os.environ.items()
                if re.fullmatch(r"SLURM_(ARRAY_)?(JOB|TASK|NODE)_?(ID|LIST)", k)
            },
        )


class _Resumed(Provenance, frozen=True, kw_only=True):
    """A process that went on with a run."""

    after_samples: int


PLACES: dict[str, Callable[[], Path]] = {"package": lambda: PACKAGE, "cache": cache_folder}
"""Folders whose place depends on the machine, by the word that stands for them in a record."""


def portable(value: Any) -> Any:
    """Settings without the place of this installation: a file that ships with the package is
    `package:NAME`, one in the cache `cache:NAME`.
    """
    if isinstance(value, dict):
        return {k: portable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [portable(v) for v in value]
    for kind, folder in PLACES.items():
        if isinstance(value, str) and value.startswith(f"{folder()}/"):
            return f"{kind}:{value.removeprefix(f'{folder()}/')}"
    return value


def installed(path: str) -> Path:
    """Where a path of a record lies in this installation."""
    kind, _, name = path.partition(":")
    return PLACES[kind]() / name if kind in PLACES else Path(path)


def engine_text(name: str, strict: bool) -> str:
    """Name of an engine's settings in tables: what changes the arithmetic stands behind it."""
    return f"{name}, strict" if strict else name


def config_hash(config: dict[str, Any]) -> str:
    """Ten hexadecimal digits that depend on every setting and nothing else, on every machine."""
    return _digits(portable(config))


def check_identity(folder: Path, config: dict[str, Any]) -> None:
    """Raises SkipbenchError where the hash in a run folder's name is not that of `config`, which is
    its config.yaml; a folder that was given a name without a hash is not checked.
    """
    named = re.search(r"_([0-9a-f]{10})(\.[^_]*)?$", folder.name)  # merged: `NAME.<origin>`
    if config and named and named[1] != (own := _digits(config)):
        raise SkipbenchError(
            f"{folder} holds another run: its config.yaml has the hash {own}; give the folder its "
            "name back, or move it away"
        )


def _digits(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:10]


def run_name(parts: list[str], digest: str) -> str:
    """Folder name: readable parts, then the hash that decides."""
    words = [re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.")[:40] for part in parts]
    return "_".join([*filter(None, words), digest])
