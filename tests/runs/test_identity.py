"""A record belongs to what made it: its settings, whatever its folder is called, the checkpoint's
files, the code, and the prompts.
"""

import json
from pathlib import Path

import pytest
import yaml
from builders import SMALL, edit, interrupt, make_run
from conftest import rest_slow
from test_bad_records import FILES, readers, refused_by

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run


def test_a_run_under_another_runs_name_is_refused_by_all_that_read_it(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / "results", seed) for seed in (0, 1))
    row = first.parent
    row.rename(tmp_path / "aside")
    second.parent.rename(row)  # `readers` are of a results folder with one run
    told = refused_by(first)
    own = f"{row} holds another run: its config.yaml has the hash {second.parent.name[-10:]}"
    assert {name for name, text in told.items() if own in text} == told.keys()
    assert told.keys() == readers(first).keys() - {"turns", "texts"}
    row.rename(mine := row.with_name("best-of-mine"))  # a name that promises nothing
    assert read_run(mine / first.name).metrics
    arm = mine / first.name
    arm.rename(other := arm.with_name(f"fixed_{'0' * 10}"))
    with pytest.raises(
        SkipbenchError, match=f"{other.name} holds another run: .* {arm.name[-10:]}"
    ):
        read_run(other)


def test_a_kept_turn_of_another_prompt_is_refused(tmp_path: Path) -> None:
    config = compose([*SMALL, "limit=2", f"results={tmp_path}", "method=uniform"])
    run_cell(config)
    (folder,) = run_folders(tmp_path)
    interrupt(folder, 1)
    turns = folder.parent / "turns.jsonl"
    edit(turns, prompt_hash="0" * 16)
    turns.write_text(turns.read_text() + "\n")
    with pytest.raises(SkipbenchError, match=r"turn 0 .* is of another prompt"):
        run_cell(config)


@pytest.mark.parametrize(
    "name", rest_slow(FILES[2:], lambda name: name not in ("provenance.json", "metrics.json"))
)
def test_a_file_with_other_fields_is_read_or_refused_by_the_name_of_the_field(
    name: str, tmp_path: Path
) -> None:
    """One field more than this version knows, and each field of its own less."""
    folder = make_run(tmp_path / "results")
    path = folder / name
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    values = [dict[str, object](yaml.safe_load(line)) for line in lines]
    for field in [*values[0], "of_a_later_version"]:
        others = [{**value, field: 1} for value in values]
        if field in values[0]:
            others = [{k: v for k, v in value.items() if k != field} for value in values]
        path.write_text("".join(json.dumps(other) + "\n" for other in others))
        for told in refused_by(folder).values():
            assert str(folder.parent) in told and "\n" not in told
            assert field in told or "metrics.json is of 0 turns" in told
