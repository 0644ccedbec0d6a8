"""Servers against each other: who is slower, what went wrong, and nothing lost or counted twice."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import pytest
from fake import FAULTS, SILENCE_S, fakes

from skipbench.cli.main import main
from skipbench.contrib.servers import load
from skipbench.contrib.servers.levels import Level
from skipbench.contrib.servers.records import Record, read_records
from skipbench.contrib.servers.table import bench_table, remarks_on
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.report.tables.formats import markdown
from skipbench.runs.files import append_line
from skipbench.runs.measures import Lossless

ODD = {"one more": "one server's usage is wrong", "no usage": "counted by events"}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PAUSE_S", 0.01)


def prompts(folder: Path, texts: Sequence[str]) -> list[str]:
    """The words that choose these prompts."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ["dataset=prompts", f"dataset.path={path}", "dataset.max_new_tokens=16", "limit=null"]


def bench(folder: Path, *words: str) -> tuple[list[Record], str]:
    """The records and the table of a bench."""
    main(["bench", *words, f"results={folder}"])
    (made,) = (folder / "servers").iterdir()
    return read_records(made), (made / "table.md").read_text()


def lines_of(table: str) -> list[dict[str, str]]:
    """The cells of a table's lines, by column."""
    head, _, *rows = (line for line in table.splitlines() if line.startswith("|"))
    names = [name.strip() for name in head.split("|")]
    cells = ([cell.strip(" *") for cell in row.split("|")] for row in rows)
    return [dict(zip(names, row, strict=True)) for row in cells]


def test_every_fault_is_named_nothing_is_lost_and_nothing_counted_twice(tmp_path: Path) -> None:
    names = [*FAULTS, *ODD, "usage twice", "no end", "other", "good"]
    plan = {f"<{name}>": [name] * load.TRIES for name in names}
    with fakes({}, {"plan": plan, "other": ["<other>"]}) as (a, b):
        words = prompts(tmp_path, [f"<{name}>" for name in names])
        records, table = bench(
            tmp_path, a.url, b.url, *words, f"timeout={SILENCE_S}", "concurrency=8"
        )
    assert Counter((r.arm, r.id) for r in records) == Counter(
        {(arm, r.id): 1 for arm in "AB" for r in records}
    )
    found = {r.request["messages"][0]["content"][1:-1]: r for r in records if r.arm == "B"}
    assert len(found) == len(names) >= 20
    for name, said in FAULTS.items():
        assert found[name].error.startswith(said) and found[name].error in table, name
        assert found[name].faults == [found[name].error] and found[name].response is None
    for name, said in ODD.items():
        assert not found[name].error and said in table
    for name in ("no usage", "usage twice", "no end", "good"):
        assert found[name].tokens == 12 and not found[name].error, name
    n = len(names) - len(FAULTS)
    assert lines_of(table)[1]["lossless"] == f"{n - 1}/{n}" and f"{len(FAULTS)} failed" in table


def test_what_passes_is_asked_again_and_said(tmp_path: Path) -> None:
    """B is gone after its first answer, and begins again."""
    passing = ["429", "503", "error", "hangs up", "cuts"]
    words = prompts(tmp_path, passing)
    with ExitStack() as stack:
        (a,) = stack.enter_context(fakes({"plan": {name: [name, name] for name in passing}}))
        gone = stack.enter_context(ExitStack())
        (b,) = gone.enter_context(fakes({}))
        port, answered = b.server_address[1], b.do

        def leave(handler: Any) -> None:
            if len(b.asked) == 3:  # two to warm up
                gone.close()
                Timer(SILENCE_S, lambda: stack.enter_context(fakes({"port": port}))).start()
            answered(handler)

        b.do = leave
        records, table = bench(tmp_path, a.url, b.url, *words, "timeout=9")
    assert not any(r.error for r in records) and len(records) == 2 * len(passing)
    assert all(r.faults for r in records if r.arm == "A")
    assert any("no connection" in text for r in records for text in r.faults)
    assert "timed at a later try" in table and "no connection" in table


def killed_after(lines: int) -> Callable[[Path, str], None]:
    """Writes so many lines, and is interrupted at the next."""
    left = iter(range(lines))

    def append(path: Path, line: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        append_line(path, line)

    return append


def test_a_bench_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any line: what is there is not asked again, and a torn line is."""
    told = {"metrics": {"speculative_decoding": {
        "num_spec_steps": 6, "num_draft_tokens": 18, "num_accepted_draft_tokens": 9,
    }}}  # fmt: skip
    words = prompts(tmp_path, [f"<{n}>" for n in range(6)])
    with fakes({}, {"other": ["<3>"], "told": told}) as (a, b):
        _, whole = bench(tmp_path / "whole", a.url, b.url, *words)
        for kill in (1, 2, 3, 1, 2):
            with monkeypatch.context() as patch, pytest.raises(SystemExit):
                patch.setattr(load, "append_line", killed_after(kill))
                bench(tmp_path / "killed", a.url, b.url, *words)
            (file,) = (tmp_path / "killed").rglob("requests.jsonl")
            file.write_bytes(file.read_bytes() + b'{"arm": "A", "concu')
        records, table = bench(tmp_path / "killed", a.url, b.url, *words)
    assert Counter((r.arm, r.id) for r in records).total() == len({(r.arm, r.id) for r in records})

    def cells(text: str) -> list[list[str]]:
        kept = ("n", "accepted share", "M", "lossless")
        return [[line[name] for name in kept] for line in lines_of(text)]

    assert cells(table) == cells(whole) == [["6", "—", "—", "—"], ["6", "0.500", "2.50", "5/6"]]
    assert "failed" not in table


def test_an_arm_has_fields_of_its_own_and_a_server_that_changed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = prompts(tmp_path, ["one", "two"])
    with fakes({}) as (a,):
        both = [a.url, a.url, '{"min_p": 0.1}']
        _, table = bench(tmp_path, *both, *words, "decoding.temperature=0.7")
        assert "lossless: not told, answers are sampled" in table
        sent = Counter("min_p" in body for body in a.asked)
        assert sent == {False: 4, True: 4}  # two prompts, two to warm up
        assert {body["seed"] for body in a.asked} == {0, 1}
        said = (next(tmp_path.rglob("servers.json"))).read_text()
        assert '"drafts": 3' in said and "secret" not in said
        for name, value in (("version", "2"), ("longest", 4096), ("drafts", 5)):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
                patch.setattr(a, name, value)
                bench(tmp_path, *both, *words, "decoding.temperature=0.7")
            assert f"and is {value}; fresh=true sets the records aside" in capsys.readouterr().err
        bench(tmp_path, *both, *words, "decoding.temperature=0.7")
    for wrong in (["x"], ["{}"], [a.url, "[1]"], [a.url], [a.url, a.url, "names=x,vanilla"]):
        with pytest.raises(SystemExit):
            main(["bench", *wrong, *words])
    assert "vanilla is the first server alone" in capsys.readouterr().err


def test_a_model_can_be_named_where_the_server_names_none_or_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fakes({"models": []}, {"models": ["one", "other"]}) as (a, b):
        with pytest.raises(SystemExit):
            bench(tmp_path / "none", a.url, b.url, *prompts(tmp_path, ["?"]))
        assert (
            """names no model at /v1/models (an empty list); '{"model": NAME}'"""
            in capsys.readouterr().err
        )
        words = [a.url, '{"model": "own"}', b.url, '{"model": "other"}']
        bench(tmp_path, *words, *prompts(tmp_path, ["?"]))
        assert [{body["model"] for body in one.asked} for one in (a, b)] == [{"own"}, {"other"}]
        b.models.insert(0, "new")  # another than the one that is asked
        bench(tmp_path, *words, *prompts(tmp_path, ["?"]))


def test_conversations_go_on_after_the_first_arm(tmp_path: Path) -> None:
    """For all arms; where there is no answer, no later turn is asked, and this is said."""
    path = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": n, "category": "writing", "turns": [f"first {n}", f"second {n}"]}
        for n in (1, 2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["dataset=specbench", f"dataset.path={path}", "dataset.prompt=chat"]
    with fakes({"plan": {"first 2": ["400"]}}, {"other": ["first"]}) as (a, b):
        records, table = bench(tmp_path, a.url, b.url, *words)
    by = {(r.arm, r.id): r for r in records}
    name = next(r.id for r in records if r.request["messages"][-1]["content"] == "second 1")
    assert len(records) == 8
    assert by["A", name].request["messages"] == by["B", name].request["messages"]
    assert (
        by["B", name].request["messages"][1]["content"]
        == by["A", name.removesuffix("/2")].texts[0].strip()
    )
    assert sum(r.error.startswith("no answer of A to") for r in records) == 2
    assert lines_of(table)[1]["lossless"] == "1/2" and "A: 2 failed: 1 status 400" in table


def written(folder: Path, records: Sequence[Record]) -> None:
    """A bench of servers with these records."""
    names = dict.fromkeys(r.arm for r in records)
    one = {"url": "http://a", "model": "m", "engine": "fake", "extra": {}}
    (folder / "servers.json").write_text(json.dumps({"arms": dict.fromkeys(names, one)}))
    settings = {"dataset": {"name": "prompts"}, "body": {"max_tokens": 16}}
    (folder / "config.json").write_text(json.dumps(settings))
    lines = (msgspec.json.encode(r).decode() for r in records)
    (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))


def drawn(arm: str, n: int, seconds: float, **more: Any) -> Record:
    request = {"temperature": 0.0}
    response = {"choices": [{"text": f"{n}"}], "usage": {}}
    fields = {"id": str(n), "question": str(n), "groups": {}, "turn": f"{n}", "tokens": 10}
    fields["concurrency"] = 1
    return Record(
        arm=arm, request=request, response=response, seconds=seconds,
        ttft_s=seconds / 2, at=float(n), **{**fields, **more},
    )  # fmt: skip


def test_the_table_says_what_the_records_give(tmp_path: Path) -> None:
    a = [drawn("A", n, 2.0) for n in range(8)]
    b = [drawn("B", n, 1.0 + 0.01 * (n % 2)) for n in range(8)]
    arms = [drawn(arm, n, s) for arm, s in (("C", 1.5), ("D", 1.0)) for n in range(8)]
    written(tmp_path, [*a, *b, *arms])
    table = markdown(bench_table(tmp_path, [1], {"ttft": 0.502}, []))
    first, line, third, _ = lines_of(table)
    assert line["speedup"] == "1.99x [1.98, 2.00]" and line["lossless"] == "8/8"
    assert first["speedup"] == "1.00x [1.00, 1.00]" and line["tok/s"] == "9.00 -> 17.9"
    assert [first["over best"], third["over best"]] == ["0.50x [0.50, 0.50]", "0.67x [0.67, 0.67]"]
    assert line["TTFT"] == "1000 / 1000 / 1000 -> 500 / 505 / 505" and third["n"] == "8"
    assert "output tok/s: A 5.00, B 9.95, C 6.67" in table
    assert "goodput, requests/s: A 0.00 (0 of 8), B 0.50 (4 of 8)" in table
    wrong = Level([*a, *b[1:], drawn("B", 0, 1.0, tokens=20)], ["A", "B"], {})
    assert wrong.ratios("B") == Level([*a, *b], ["A", "B"], {}).ratios("B")  # a usage is wrong
    assert "usage is wrong" in "".join(remarks_on(wrong))
    more = msgspec.structs.replace(drawn("B", 0, 1.0, tokens=20), response=a[1].response)
    longer = Level([*a, *b[1:], more], ["A", "B"], {})
    assert longer.ratios("B")["0"] == pytest.approx(4.0)
    verdicts = {(arm, 1, str(n)): "wrong" if n == 3 else "tie" for arm in "AB" for n in range(8)}
    level = Level([*a, *b], ["A", "B"], verdicts | {("B", 1, "0"): "identical"})
    assert level.lossless("A") == Lossless(ties=7, diverged=1)
    assert level.lossless("B") == Lossless(identical=1, ties=6, diverged=1)
    failed = Level([*a, *b, msgspec.structs.replace(a[0], arm="E", error="no")], [*"ABE"], {})
    assert not failed.ratios("E") and failed.lossless("E") == Lossless(failed=1)
    more_clients = [drawn(arm, n, 1.0, concurrency=2) for arm in "AB" for n in range(8)]
    other = Level(more_clients, ["A", "B"], verdicts)  # judged were those of one client alone
    assert other.lossless("A") == Lossless() and other.lossless("B") == Lossless(identical=8)
    assert msgspec.json.decode(msgspec.json.encode(a[0]), type=Record) == a[0]


def test_with_several_clients_the_interval_is_over_turns() -> None:
    """A turn that was slow as a whole is one case, and not as many as it has requests."""
    slow = (1.10, 1.00, 1.08, 0.97, 1.05, 0.99)  # B's turns of one and the same server
    for clients, cases in ((1, 96), (8, 6)):
        more: dict[str, Any] = {"concurrency": clients}
        a = [drawn("A", n, 1 + n % 3 / 100, turn=f"0/{n // 16}", **more) for n in range(96)]
        b = [drawn("B", n, slow[n // 16], turn=f"0/{n // 16}", **more) for n in range(96)]
        ratios = [*Level([*a, *b], ["A", "B"], {}).ratios("B").values()]
        _, ends = paired_ratio_interval(ratios)
        assert len(ratios) == cases and ends is not None
        assert (ends[0] < 1 < ends[1]) == (clients > 1)


@pytest.mark.slow
@pytest.mark.parametrize("slower", [1.0, 1.1])
def test_one_server_is_as_fast_as_itself_and_a_tenth_is_found(
    tmp_path: Path, slower: float
) -> None:
    given: list[dict[str, Any]] = [{"token_s": s, "tokens": 32} for s in (0.004, 0.004 * slower)]
    words = prompts(tmp_path, [f"prompt {n}" for n in range(24)])
    with fakes(*given) as (a, b):
        records, _ = bench(tmp_path, a.url, b.url, *words, "dataset.max_new_tokens=32")
    _, ends = paired_ratio_interval([*Level(records, ["A", "B"], {}).ratios("B").values()])
    assert ends is not None
    # 1 in 20 intervals may miss 1, but none by much
    assert (ends[0] < 1.02 and ends[1] > 0.98) if slower == 1 else 0.85 < ends[0] < ends[1] < 1


def test_a_server_that_stays_away_ends_the_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*prompts(tmp_path, ["one", "two"]), f"timeout={SILENCE_S}"]
    with ExitStack() as stack:
        (a,) = stack.enter_context(fakes({}))
        gone = stack.enter_context(ExitStack())
        (b,) = gone.enter_context(fakes({}))
        port, b.do = b.server_address[1], lambda handler: gone.close()
        with pytest.raises(SystemExit):
            bench(tmp_path, a.url, b.url, *words)
        assert "no connection" in capsys.readouterr().err
        stack.enter_context(fakes({"port": port}))
        records, _ = bench(tmp_path, a.url, b.url, *words)
    assert len(records) == 4 and not any(r.error for r in records)


def test_each_server_sees_its_own_key_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In every request: for its models, version and counters, to warm up, and those that count."""
    monkeypatch.setenv("SKIPBENCH_API_KEY", "that-of-serve")
    monkeypatch.setenv("KEY_OF_A", "open-sesame")
    monkeypatch.setenv("KEY_OF_B", "rosebud")
    words = prompts(tmp_path, ["one", "two"])
    with fakes({"key": "open-sesame"}, {"key": "rosebud"}, {}) as (a, b, c):
        keyed = f"{a.url}#key=KEY_OF_A", f"{b.url}/#key=KEY_OF_B", c.url
        records, _ = bench(tmp_path, *keyed, *words)
        asked = [[*one.keys] for one in (a, b, c)]
        wrong = [f"{a.url}#key=KEY_OF_B", c.url, *words, f"results={tmp_path / 'wrong'}"]
        with pytest.raises(SystemExit):
            main(["bench", *wrong])
    assert len(records) == 6 and not any(r.error for r in records)
    pages = {
        "/v1/models",
        "/version",
        "/props",
        "/get_server_info",
        "/metrics",
        "/v1/chat/completions",
    }
    for seen, key in zip(asked, ("Bearer open-sesame", "Bearer rosebud", None), strict=True):
        assert {path for path, _ in seen} == pages and {own for _, own in seen} == {key}
        assert sum("completions" in path for path, _ in seen) == 4  # two to warm up
    out, err = capfd.readouterr()
    assert "no such key: Bearer KEY" in err and f"{a.url}#key=VARIABLE" in err
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(key in out + err + written for key in ("open-sesame", "rosebud", "that-of"))


@pytest.mark.parametrize(
    "given", ["key=NOT_SET", "key=EMPTY", "keys=KEY_OF_A", "KEY_OF_A", "key=BROKEN"]
)
def test_a_key_that_is_not_there_is_said_before_anything_is_sent(
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"KEY_OF_A": "sesame", "EMPTY": "", "BROKEN": "ses\name"}.items():
        monkeypatch.setenv(name, value)
    with fakes({}, {}) as (a, b):
        with pytest.raises(SystemExit):
            bench(tmp_path, a.url, f"{b.url}#{given}", *prompts(tmp_path, ["?"]))
        assert not a.keys and not b.keys
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{b.url}#..." in said and f"#{given}" not in said
