"""Rows: methods that take turns on every prompt."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import LOAD, interrupt
from conftest import rest_slow

from skipbench.bench.arm import ArmRunner
from skipbench.bench.turns import arm_order
from skipbench.config.compose import compose
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.row import run_rows
from skipbench.runs.cell import Cell, rows_of
from skipbench.runs.record import MEASURED, VANILLA, Turn
from skipbench.runs.state import read_status
from skipbench.runs.store import read_turns, row_turns

METHODS = ("uniform", "swift", "prompt-lookup")
SMALL = ["dataset.max_new_tokens=12", "dataset.scorer=none", "engine.warmup=0"]


def cells(folder: Path, methods: Sequence[str] = METHODS, limit: int = 2) -> list[Cell]:
    words = [*SMALL, f"limit={limit}", f"results={folder}"]
    return [Cell(compose([*words, f"method={name}"])) for name in methods]


def turns_of(cell: Cell) -> list[Turn]:
    """The turns of its row, in the order written."""
    return row_turns(cell.row)


def decided(cell: Cell) -> list[dict[str, Any]]:
    """What, of vanilla and the cell's arm, depends neither on the clock nor on other arms."""
    found = []
    for turn in read_turns(cell.folder):
        plain: dict[str, Any] = msgspec.to_builtins(turn)
        plain["arms"] = [plain["arms"][name] for name in (VANILLA, cell.folder.name)]
        for arm in plain["arms"]:
            for name in MEASURED:
                del arm[name]
            for name in ("logit_gap", "error"):
                (arm.get("divergence") or {}).pop(name, None)
            arm.get("trace", {}).pop("setup_s", None)  # of each process
        del plain["order"]
        found.append(plain)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """The cells of a row that nothing disturbed."""
    made = cells(tmp_path_factory.mktemp("row"))
    assert rows_of(made) == [made]
    run_rows(made, LOAD)
    assert all(cell.run and cell.run.done and cell.error is None for cell in made)
    return made


@pytest.mark.parametrize("count", range(1, 8))
def test_every_arm_is_at_every_place_and_behind_every_other_equally_often(count: int) -> None:
    names = [f"arm{n}" for n in range(count)]
    block = (count + 1) * (1 + (count + 1) % 2)
    orders = [arm_order(3, names, index) for index in range(2 * block)]
    for some in (orders[:block], orders[block:]):
        places = Counter((place, arm) for order in some for place, arm in enumerate(order))
        behind = Counter(pair for order in some for pair in pairwise(order))
        assert len(places) == (count + 1) ** 2 and len(set(places.values())) == 1
        assert len(behind) == count * (count + 1) and len(set(behind.values())) == 1
    assert arm_order(3, names[::-1], 1) == orders[1]
    if count > 2:
        assert orders[:block] != orders[block:]


def test_a_turn_holds_each_arm_once_with_the_tokens_that_it_has_alone(
    tmp_path: Path, whole: list[Cell]
) -> None:
    arms = {VANILLA, *(cell.folder.name for cell in whole)}
    assert all(turn.arms.keys() == {*turn.order} == arms for turn in turns_of(whole[0]))
    load = LastLoaded()  # another model
    for alone, together in zip(cells(tmp_path / "alone"), whole, strict=True):
        run_rows([alone], load)
        assert decided(alone) == decided(together)


def test_a_method_added_later_brings_its_own_vanilla_and_changes_no_record(tmp_path: Path) -> None:
    run_rows(first := cells(tmp_path, METHODS[:1]), LOAD)
    before = (first[0].row / "turns.jsonl").read_bytes()
    run_rows(every := cells(tmp_path), LOAD)
    assert (first[0].row / "turns.jsonl").read_bytes().startswith(before)
    early, late = turns_of(every[0])[:2], turns_of(every[0])[2:]
    added = {VANILLA, *(cell.folder.name for cell in every[1:])}
    assert [turn.arms.keys() for turn in late] == [added] * 2
    for both in zip(early, late, strict=True):
        a, b = (turn.arms[VANILLA] for turn in both)
        assert a.tokens == b.tokens and a.seconds != b.seconds


def test_more_prompts_are_decoded_after_those_that_are_there_and_fewer_are_their_first(
    tmp_path: Path,
) -> None:
    (noise,), (swift,) = cells(tmp_path, ["vanilla"]), cells(tmp_path, ["swift"], 4)
    run_rows([noise, swift], LOAD)
    assert [len(turn.arms) for turn in turns_of(swift)] == [3, 3, 2, 2]
    assert noise.run and noise.run.measured.samples == 2
    before = (swift.row / "turns.jsonl").read_bytes()
    run_rows([few := cells(tmp_path, ["swift"], 3)[0]], LOAD)
    assert few.run and few.run.measured.samples == 3  # of the four
    assert (swift.row / "turns.jsonl").read_bytes() == before
    run_rows([more := cells(tmp_path, ["swift"], 5)[0]], LOAD)
    assert more.folder == few.folder and more.run and more.run.measured.samples == 5
    assert len(turns_of(swift)) == 5
    run_rows([at_once := cells(tmp_path / "whole", ["swift"], 5)[0]], LOAD)
    assert decided(more) == decided(at_once)  # it learns on where it ended


def test_a_method_that_fails_ends_only_its_own_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = ArmRunner.decode

    def failing(self: ArmRunner, method: Any, prompt: Any, index: int, *more: Any) -> Any:
        if self.config.method.name == "swift" and method is self.method and index == 1:
            raise ZeroDivisionError("of this arm")
        return decode(self, method, prompt, index, *more)

    monkeypatch.setattr(ArmRunner, "decode", failing)
    run_rows(made := cells(tmp_path), LOAD)
    assert [type(cell.error) for cell in made] == [type(None), ZeroDivisionError, type(None)]
    assert [cell.run is None for cell in made] == [False, True, False]
    assert [read_status(c.folder).state for c in made] == ["done", "failed", "done"]
    monkeypatch.undo()
    run_rows(again := cells(tmp_path), LOAD)
    assert [cell.run and len(cell.run.turns) for cell in again] == [2] * 3


def test_what_a_method_carries_on_is_there_again_behind_an_interruption(tmp_path: Path) -> None:
    words = [*SMALL[1:], "dataset.max_new_tokens=24", "dataset=mini-math", "limit=4"]
    words += ["method=self-sd", 'method.skip="attn:2,3,6,7;mlp:3,6,8"', "stop@method.stop=adaptive"]
    run_rows([cell := Cell(compose([*words, f"results={tmp_path}"]))], LOAD)
    before = decided(cell)
    assert len({arms[1]["carry"]["stop"]["threshold"] for arms in (t["arms"] for t in before)}) == 4
    interrupt(cell.folder, 2)
    run_rows([cell], LOAD)
    assert decided(cell) == before


@pytest.mark.parametrize("writes", rest_slow((1, 3, 5), lambda writes: writes == 3))
def test_a_row_that_is_killed_between_two_writes_goes_on_as_if_it_had_not_been(
    tmp_path: Path, whole: list[Cell], monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    made, left = cells(tmp_path), [writes]
    add = ArmRunner.add

    def killed(self: ArmRunner, *both: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        add(self, *both)

    monkeypatch.setattr(ArmRunner, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        run_rows(made, LOAD)
    monkeypatch.undo()
    run_rows(made, LOAD)
    assert len(turns_of(made[0])) == 2
    for resumed, undisturbed in zip(made, whole, strict=True):
        assert decided(resumed) == decided(undisturbed)
