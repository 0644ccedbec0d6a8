"""What the provenance says of GPUs, by an `nvidia-smi` of this test."""

from pathlib import Path

import msgspec
import pytest
from builders import fake_tool

from skipbench.runs import provenance
from skipbench.runs.gpu import Gpu, gpu
from skipbench.runs.provenance import Provenance

SMI = """case "$*" in
*--id=GPU-1*clocks.max.sm*nounits*) echo "580.65.06, 1980, 1980, 3201, 700.00" ;;
*--id=GPU-2*) echo "580.65.06, 210, [N/A], 3201, [Not Supported]" ;;
*) echo "No devices were found"; exit 6 ;;
esac"""


def test_driver_clocks_and_power_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, "nvidia-smi", SMI, monkeypatch)
    first, second = Gpu("580.65.06", 1980, 1980, 3201, 700), Gpu("580.65.06", 210, None, 3201, None)
    assert [gpu(f"GPU-{n}") for n in (1, 2, 3)] == [first, second, Gpu()]
    one = Provenance(gpus=[first], cudnn=91900)
    assert msgspec.convert(msgspec.to_builtins(one), Provenance) == one
    other = Provenance(gpus=[second], cudnn=91900)
    resumed = one.resumed_by(other, 3, tmp_path).resumed
    assert resumed == [{"after_turns": 3, "gpus": msgspec.to_builtins([second])}]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert gpu("GPU-1") == Gpu() and Provenance.here().gpus == []


def test_a_copy_without_a_repository_says_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "skipbench")
    monkeypatch.delenv("SKIPBENCH_COMMIT", raising=False)
    assert Provenance.here().commit is None
    monkeypatch.setenv("SKIPBENCH_COMMIT", "158f0bf")
    assert (Provenance.here().commit, Provenance.here().dirty) == ("158f0bf", None)
