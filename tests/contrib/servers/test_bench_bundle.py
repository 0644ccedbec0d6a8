"""A bench in a bundle: its claims follow from its records, and no text and no address is in it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from fake import fakes
from test_bundle import failures, redigested
from test_servers import bench, killed_after, prompts

from skipbench.cli.main import main
from skipbench.contrib.artifact.claims import CLAIMS
from skipbench.contrib.artifact.registry import bundles_of, registry_page
from skipbench.contrib.artifact.write import write_bundle
from skipbench.contrib.servers import load
from skipbench.errors import SkipbenchError
from skipbench.report.frame import frame
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run

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
            patch.setattr(load, "append_turn", killed_after(4))
            bench(folder, *asked, *named)
        with pytest.raises(SkipbenchError, match="no run that is done"):
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
    assert "hardware: a laptop" in registry_page(bundles_of(bundle.parent))


def test_an_edited_time_and_an_edited_answer_are_found(bundle: Path, tmp_path: Path) -> None:
    for old, new, why in (
        (r'"prefill":[\d.e-]+', '"prefill":9.5', "number is "),
        (r'"prefill":[\d.e-]+', '"prefill":-1', "not a record"),
        (r'"text_sha256":"\w{9}', '"text_sha256":"000000000', "lossless.identical|first server"),
    ):
        edited = shutil.copytree(bundle, tmp_path / "edited", dirs_exist_ok=True)
        (path,) = edited.rglob("turns.jsonl")
        path.write_text(re.sub(old, new, path.read_text(), count=1))
        redigested(edited)
        assert re.search(why, failures(edited))


def test_every_reader_takes_it(
    results: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page, a figure of the table, a data frame, and the difference of two folders."""
    main(["report", f"results={results}"])
    page = (results / "report.html").read_text()
    assert ">lookup</th>" in page and ">5/6</td>" in page
    (table,) = (path for path in (results / "tables").glob("*.json"))
    main(["figure", str(table)])
    assert (results / "figures" / f"{table.stem}.svg").exists()
    run = read_run(run_folders(results)[1])
    rows = frame(results, turns=True).query("method == 'lookup'")
    known = {name: ratio for name, ratio in zip(rows.id, rows.speedup, strict=True) if ratio > 0}
    assert pytest.approx(run.paired()) == known
    shutil.copytree(results, tmp_path / "again")
    capsys.readouterr()
    main(["diff", str(results), str(tmp_path / "again")])
    assert "2 cells in both; 0 whose interval leaves out 1" in capsys.readouterr().out
    assert not [*bundle.glob("tables/*")]
