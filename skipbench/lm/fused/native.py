"""Our own C functions: compiled at first use, kept in the cache folder, loaded by ctypes."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from skipbench.config.paths import cache_folder
from skipbench.runs.provenance import cpu_flags

NAMES = "few_rows.c", "elementwise.c", "attention.c", "top_k.c"
SOURCES = [Path(__file__).with_name(name) for name in NAMES]
COMPILERS = ("gcc", "cc", "clang")
OPTIONS = "-O3 -shared -fPIC -fopenmp -mfma -mavx512f -mavx512bw -mavx512vl -mavx512bf16"
OPTIONS += " -mamx-tile -mamx-bf16"


class UnavailableError(Exception):
    """A part that this machine lacks, with the remedy."""


def compiled() -> Path:
    """The library, compiled in a second where the cache folder has none of this source. Processes
    that compile at the same time each put a whole file in its place, so that nothing is locked.
    Raises UnavailableError: no compiler, one that fails, or a folder that cannot be written to.
    """
    text = b"".join(path.read_bytes() for path in SOURCES) + OPTIONS.encode()
    library = cache_folder() / f"native-{hashlib.sha256(text).hexdigest()[:16]}.so"
    try:
        if not library.exists():
            compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
            if compiler is None:
                raise UnavailableError("no C compiler on the PATH; install gcc 11 or later")
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent, prefix=".native-") as folder:
                made = Path(folder, library.name)
                subprocess.run(
                    [compiler, *OPTIONS.split(), *map(str, SOURCES), "-o", str(made), "-lm"],
                    check=True,
                    capture_output=True,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    timeout=120,
                )
                made.replace(library)
        if library.stat().st_uid not in (0, os.geteuid()):
            raise UnavailableError(f"{library} belongs to another user; remove it")
    except subprocess.CalledProcessError as error:
        stderr = " ".join((error.stderr or "").split())[:120]
        raise UnavailableError(f"{compiler} failed: {stderr}; install gcc 11 or later") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{compiler} took over {error.timeout:.0f} s") from error
    except OSError as error:
        raise UnavailableError(f"{error}; make {library.parent} writable") from error
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises UnavailableError as `compiled`, or on a processor without the
    instructions.
    """
    if not {"avx512_bf16", "avx512bw", "avx512vl"} <= cpu_flags():
        raise UnavailableError("the processor has no AVX-512 bf16")
    path = compiled()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UnavailableError(f"{' '.join(str(error).split())}; remove {path}") from error
