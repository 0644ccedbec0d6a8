"""Our C kernels, compiled as the package does and with sanitizers, under odd shapes and values."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skipbench.config.paths import PACKAGE
from skipbench.contrib.cpu import native
from skipbench.contrib.cpu.native import AVX2, BFLOAT16, Source
from skipbench.runs.provenance import cpu_flags

SECONDS = 30  # of CPU time
SANITIZERS = "-O1 -g -shared -fPIC -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=all"
TYPED = ["rms_norm", "silu_times", "rotate", "attend", "multiply", "top_k", "two_best"]
FLOAT32, HALF = ([f"{name}_{kind}" for name in TYPED] for kind in ("float32", "bfloat16"))
KERNELS = {
    "AVX2": (AVX2, ["run_sublayers", *FLOAT32, *HALF], AVX2.flags),
    "int8": (AVX2, ["int8_avx2", "quantize_weight"], {"avx2"}),
    "int8, AMX": (AVX2, ["int8_amx"], {"amx_tile", "amx_int8", "avx512_vnni"}),
    "int8, AVX-512": (AVX2, ["int8_avx512"], {"avx512f", "avx512_vnni"}),
    "bfloat16": (BFLOAT16, HALF, BFLOAT16.flags),
    "bfloat16, AMX": (
        BFLOAT16,
        ["multiply_tiles", "mlp_tiles", "attend_tiles"],
        {"amx_tile", "amx_bf16"},
    ),
}


def build(source: Source, options: str, folder: Path) -> Path:
    files = [str(Path(native.__file__).with_name(name)) for name in source.names]
    words = [*options.split(), *source.options.split(), *files, "-o", str(folder / "k.so"), "-lm"]
    subprocess.run(["gcc", *words], check=True, capture_output=True)
    return folder / "k.so"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("options", [native.OPTIONS, SANITIZERS], ids=["usual", "sanitizers"])
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_leaves_its_buffers_or_its_values(
    name: str, options: str, tmp_path: Path
) -> None:
    source, kernels, flags = KERNELS[name]
    if not flags <= cpu_flags():
        pytest.skip(f"the processor has no {', '.join(sorted(flags - cpu_flags()))}")
    library, environment = build(source, options, tmp_path), {**os.environ, "OMP_NUM_THREADS": "1"}
    if options == SANITIZERS:
        asked = ["gcc", "-print-file-name=libasan.so"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        environment |= {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0"}
    words = [library, ",".join(kernels), SECONDS, 0, tmp_path / "last"]
    command, root = [sys.executable, "-m", "scripts.kernel_fuzz"], PACKAGE.parent
    done = subprocess.run(
        [*command, *map(str, words)], env=environment, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, f"case {(tmp_path / 'last').read_text()}: {done.stderr[-3000:]}"
    assert int(done.stdout) > SECONDS / 10
