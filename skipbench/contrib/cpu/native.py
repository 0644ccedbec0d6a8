"""Our own C functions: compiled at first use, kept in the cache folder, loaded by ctypes."""

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from skipbench.config.paths import cache_folder, private_folder
from skipbench.runs.provenance import cpu_flags

COMPILERS = ("gcc", "cc", "clang")
OPTIONS = "-O3 -shared -fPIC -fopenmp -ffp-contract=off"
POINTER, FLOAT, LONG = ctypes.c_void_p, ctypes.c_float, ctypes.c_long


class Source(NamedTuple):
    """Files of one library, and the instructions that it needs."""

    names: tuple[str, ...]
    options: str
    flags: frozenset[str]  # of the processor
    lacking: str  # the same in words
    headers: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Of its files and options."""
        files = (Path(__file__).with_name(name) for name in (*self.names, *self.headers))
        text = b"".join(path.read_bytes() for path in files) + f"{OPTIONS} {self.options}".encode()
        return hashlib.sha256(text).hexdigest()[:16]


VECTORS = ("few_rows.c", "elementwise.c", "attention.c", "top_k.c")  # for AVX2 and AVX-512
BFLOAT16 = Source(
    (*VECTORS, "few_rows_amx.c", "attention_amx.c"),
    "-mfma -mavx512f -mavx512bw -mavx512vl -mavx512bf16 -mamx-tile -mamx-bf16",
    frozenset({"avx512_bf16", "avx512bw", "avx512vl"}),
    "AVX-512 bf16",
    ("vec.h", "amx.h", "attention.h"),
)
AVX2 = Source(
    (*VECTORS, "int8.c", "int8_avx512.c", "pass.c"),
    "-mavx2 -mfma",
    frozenset({"avx2", "fma"}),
    "AVX2",
    ("vec.h", "amx.h", "attention.h", "int8.h"),
)
ARGUMENTS: dict[str, list[Any]] = {
    "multiply": [*[POINTER] * 4, LONG],
    "mlp": [*[POINTER] * 5, LONG],
    "rms_norm": [*[POINTER] * 3, FLOAT, LONG, LONG],
    "silu_times": [POINTER, POINTER, LONG, LONG],
    "rotate": [*[POINTER] * 5, *[LONG] * 4],
    "attend": [*[POINTER] * 4, FLOAT, *[LONG] * 6],
    "top_k": [POINTER, POINTER, LONG, LONG, LONG],
    "two_best": [POINTER, POINTER, LONG, LONG],
}
"""The types of a C function's arguments. Its whole name ends with the dtype, or with `tiles`."""
TILED = ("multiply", "mlp", "attend")  # those that AMX has of its own
ASK_FOR_TILES = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA


class UnavailableError(Exception):
    """A part that this machine lacks, with the remedy."""


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


def compiled(source: Source = BFLOAT16) -> Path:
    """The library, compiled in a second where this user's private folder has none of this source
    with the contents that its name says. Processes that compile at the same time each put a whole
    file in its place, so that nothing is locked. Raises UnavailableError: no compiler, one that
    fails, or a folder that cannot be written to or is another user's.
    """
    files = [Path(__file__).with_name(name) for name in source.names]
    options, name = f"{OPTIONS} {source.options}", source.digest
    place = cache_folder() / "native"
    try:
        for library in sorted(private_folder(place).glob(f"{name}-*.so")):
            if is_sealed(library):
                return library
            library.unlink(missing_ok=True)
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            raise UnavailableError("no C compiler on the PATH; install gcc 11 or later")
        with tempfile.TemporaryDirectory(dir=place, prefix=".native-") as folder:
            made = Path(folder, "made.so")
            subprocess.run(
                [compiler, *options.split(), *map(str, files), "-o", str(made), "-lm"],
                check=True,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=120,
            )
            made.chmod(0o700)
            return made.replace(place / f"{name}-{digest(made)}.so")
    except subprocess.CalledProcessError as error:
        stderr = " ".join((error.stderr or "").split())[:120]
        raise UnavailableError(f"{compiler} failed: {stderr}; install gcc 11 or later") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{compiler} took over {error.timeout:.0f} s") from error
    except OSError as error:
        raise UnavailableError(f"{error}; make {place} writable") from error


@functools.cache
def library(source: Source = BFLOAT16) -> ctypes.CDLL:
    """The loaded library. Raises UnavailableError as `compiled`, or on a processor without the
    instructions.
    """
    if not source.flags <= cpu_flags():
        raise UnavailableError(f"the processor has no {source.lacking}")
    path = compiled(source)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UnavailableError(f"{' '.join(str(error).split())}; remove {path}") from error


@functools.cache
def tiles_allowed() -> bool:
    """Asks the kernel for AMX's registers, which a process may use only then."""
    return "amx_tile" in cpu_flags() and ctypes.CDLL(None).syscall(*ASK_FOR_TILES) == 0


def source_of(kernel: str | None) -> Source:
    """That of a kernel: `amx`, `avx512`, `avx2`."""
    return AVX2 if kernel == "avx2" else BFLOAT16


def function(name: str, dtype: torch.dtype, kernel: str) -> Any:
    """One of `ARGUMENTS` as a kernel has it on numbers of a dtype, `None` where it has none. Raises
    UnavailableError as `library`.
    """
    kind = "tiles" if kernel == "amx" and name in TILED else str(dtype).removeprefix("torch.")
    found: Any = getattr(library(source_of(kernel)), f"{name}_{kind}", None)
    if found is not None:
        found.argtypes, found.restype = ARGUMENTS[name], None
    return found


def address(found: Any) -> int | None:
    """Of a C function, for calls from C."""
    return ctypes.cast(found, POINTER).value
