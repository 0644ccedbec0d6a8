"""A bench in a bundle: its claims follow from its records, and no text and no address is in it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from fake import fakes
from test_bundle import failures, redigested
from test_servers import bench, killed_after, prompts

from skipbench.contrib.artifact.claims import CLAIMS, check
from skipbench.contrib.artifact.registry import bundles_of, registry_page
from skipbench.contrib.artifact.write import write_bundle
from skipbench.contrib.servers import load
from skipbench.contrib.servers.published import runs_of
from skipbench.contrib.servers.records import REQUESTS
from skipbench.errors import SkipbenchError

TOLD = {"timings": {"draft_n": 8, "draft_n_accepted": 4}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bench of two servers: the second drafts, errs once and refuses one prompt."""
    folder = tmp_path_factory.mktemp("results")
    words = prompts(folder, [f"secret prompt {n}" for n in range(7)])
    named = ["names=plain,lookup", "machine=a laptop"]
    own = {"model": "/secret/M.gguf", "user": "secret", "nvext": [{"auth_key": "secret"}]}
    plan = {"secret prompt 6": ["400"]}
    with fakes({}, {"told": TOLD, "other": ["prompt 3"], "plan": plan}) as (a, b):
        asked = a.url, b.url, f" {json.dumps(own)}", *words
        with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
            patch.setattr(load, "append_line", killed_after(4))
            bench(folder, *asked, *named)
        with pytest.raises(SkipbenchError, match="is not done"):
            write_bundle(folder / "early", folder)
        bench(folder, *asked, "fresh=true")
        with pytest.raises(SkipbenchError, match="have no names"):
            write_bundle(folder / "early", folder)
        bench(folder, *asked, *named)
    bench(folder, *asked)  # the servers are gone; they keep their names
    return folder


@pytest.fixture(scope="module")
def bundle(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("community") / "laptop-fake-lookup"
    assert write_bundle(out, results) == (2, 5)
    return out


def test_it_holds_and_names_nobody(bundle: Path) -> None:
    assert not failures(bundle)
    for path in bundle.rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert not re.search(r"secret|not now|127\.0\.0\.1|localhost|pytest-of", text), path
    claims = json.loads((bundle / CLAIMS).read_text())["claims"]
    found = {(one["run"][-1], one["quantity"]): one for one in claims}
    assert [key for key in found if key[0] == "A"] == [("A", "tokens_per_s")]
    assert found["B", "accepted_share"]["number"] == 0.5
    assert found["B", "lossless.identical"]["number"] == 5
    low, high = found["B", "speedup.e2e"]["interval"]
    assert low < found["B", "speedup.e2e"]["number"] < high
    assert found["B", "speedup.e2e"]["hardware"] == "a laptop"
    command = found["B", "speedup.e2e"]["command"]
    assert command.startswith("python -m skipbench bench http://A http://B")
    assert "results=" not in command and "dataset.path=elsewhere:prompts.jsonl" in command


def test_an_edited_time_and_an_edited_answer_are_found(bundle: Path, tmp_path: Path) -> None:
    for old, new, why in (
        (r'"seconds":[\d.e-]+', '"seconds":9.5', "number is "),
        (r'"ttft_s":[\d.e-]+', '"ttft_s":-1', "none can have"),
        (r'"content":"\w{9}', '"content":"000000000', "lossless.identical|first server"),
    ):
        edited = shutil.copytree(bundle, tmp_path / "edited", dirs_exist_ok=True)
        (path,) = edited.rglob(REQUESTS)
        path.write_text(re.sub(old, new, path.read_text(), count=1))
        redigested(edited)
        assert re.search(why, failures(edited))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    redigested(edited)
    assert "is not done" in failures(edited)
    assert all(holds for holds, _ in check(bundle))


def test_servers_stand_in_the_registry(bundle: Path) -> None:
    (one,) = bundles_of(bundle.parent)
    assert [run.method for run in one.runs] == ["plain", "lookup"]
    text = registry_page([one])
    assert "hardware: a laptop" in text and ">5/6</td>" in text
    assert 'alt="Speedups: ' in text and "prompts, 1 in flight" in text


def test_a_command_names_the_clients_of_its_run(bundle: Path, tmp_path: Path) -> None:
    """Also where the last command, which gave the names, named others."""
    edited = shutil.copytree(bundle, tmp_path / "edited")
    (path,) = edited.rglob(REQUESTS)
    path.write_text(path.read_text().replace('"concurrency":1', '"concurrency":8'))
    (one, _), (eight, _) = (runs_of(of.parent) for of in (next(bundle.rglob(REQUESTS)), path))
    assert eight.provenance.argv == [*one.provenance.argv, "concurrency=8"]
