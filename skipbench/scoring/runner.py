"""Runs one program under limits and says with a token that its end was reached.

A fresh interpreter is handed the source of this file: it may import only the standard library, and
as little of that as it can, for the program finds those modules loaded.
"""

import os
import resource
import sys
import types

TOKEN_BYTES = 32
OPEN_FILES = 64


def limit(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Bounds this process for good; the number of processes is bounded to the one that runs, for
    all users but root.
    """
    limits = [
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ]
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            # macOS knows RLIMIT_AS but refuses to set it.
            if sys.platform != "darwin":
                raise


def main(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Reads a token and a program from stdin, leaves `program.py` in the working folder, runs it,
    and prints the token.
    """
    told = b"".join(iter(lambda: os.read(0, 1 << 16), b""))
    token, source = told[:TOKEN_BYTES], told[TOKEN_BYTES:]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open("program.py", "wb") as file:  # tracebacks and `inspect` look it up
        file.write(source)
    limit(memory_bytes, cpu_s, file_bytes)
    # A module under its own name: dataclasses look it up, and `if __name__ == "__main__"` must not
    # run.
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    os.write(1, token)
    # the verdict is out: threads and exit handlers of the program may no longer change it
    os._exit(0)
