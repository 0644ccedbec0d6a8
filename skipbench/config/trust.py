"""What may become code in this process: called by name, imported, loaded as a library, unpickled.

All else that is read is data: results folders, checkpoints, caches, answers of the network.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError

OWN = "a name in the package's own source"
NO_CODE = "trust_remote_code=False: classes of the installed transformers alone"
SAFE_YAML = "a safe loader: plain values"
CODE = {
    "__init__.py import_module": OWN,
    "config/extensions.py import_module": OWN,
    "cli/main.py import_module": OWN,
    "config/build.py instantiate": "after `check_targets`",
    "config/run_config.py instantiate": "that of config/build.py",
    "scoring/jail.py CDLL": "the C library and libseccomp, as the system's loader finds them",
    "scoring/runner.py compile": "inside of the sandbox: a program that a model wrote",
    "scoring/runner.py exec": "inside of the sandbox: a program that a model wrote",
    "models/tokenizer.py from_pretrained": NO_CODE,
    "models/outline.py from_pretrained": NO_CODE,
    "models/load.py from_pretrained": NO_CODE
    + ", safetensors; with model.allow_pickle=true torch's weights_only",
    "data/source.py load_dataset": "datasets 5 runs no script of a dataset",
    "data/datasets.py np.load": "allow_pickle=False",
    "report/published.py yaml.load": SAFE_YAML,
    "runs/reading.py yaml.load": SAFE_YAML,
}
"""Every place where a value could become code, with what it is trusted for; a test finds them.
Those of `skipbench.contrib` stand in its `TABLE`."""


def check_targets(node: Any, known: Collection[object]) -> None:
    """Raises SkipbenchError for a `_target_` that is not among `known`, and for an interpolation,
    which could become one: nodes come out of results folders, too.
    """
    match node:
        case {"_target_": target} if target is not None and str(target) not in known:
            raise SkipbenchError(
                f"_target_={target} is named by no file of conf; where it is your own, give the "
                "folder whose file names it, --config-dir FOLDER"
            )
        case Mapping() | list() | tuple():
            for part in node.values() if isinstance(node, Mapping) else node:
                check_targets(part, known)
        case str() if "${" in node:
            raise SkipbenchError(f"{node!r} is an interpolation; wanted a value")


def private_folder(path: Path) -> Path:
    """A folder that this user alone may read and write, made where there is none.

    Raises OSError where it cannot be made, is no folder, or belongs to another user.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise PermissionError(f"{path} is no folder of this user's own; remove it")
    if stat.S_IMODE(info.st_mode) != 0o700:  # of an earlier umask
        path.chmod(0o700)
    return path


def is_sealed(path: Path) -> bool:
    """True for a regular file of this user that nobody else may write, whose name ends in the
    `digest` of its contents.
    """
    with contextlib.suppress(FileNotFoundError):  # another process has removed it
        info = path.lstat()
        own = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
        return own and not info.st_mode & 0o022 and path.stem.endswith(f"-{digest(path)}")
    return False


def digest(path: Path) -> str:
    """32 hexadecimal digits of the SHA-256 of a file's contents."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
