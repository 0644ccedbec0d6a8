"""Servers against each other: who is slower, what went wrong, and nothing lost or counted twice."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

import pytest
import yaml
from fake import FAULTS, SILENCE_S, fakes
from msgspec.structs import replace

from skipbench.cli.main import main
from skipbench.contrib.servers import about, client, load
from skipbench.contrib.servers.summary import summarised
from skipbench.contrib.servers.table import bench_summary, remarks_on, sentence
from skipbench.contrib.servers.told import acceptance, counters, predicted, since
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.stored import table_of
from skipbench.runs.measures import Lossless
from skipbench.runs.record import Arm, Seconds, Turn
from skipbench.runs.run import Run
from skipbench.runs.served import DraftCounts, Served
from skipbench.runs.store import append_turn, read_texts, row_turns

ODD = {"one more": "one server's usage is wrong", "no usage": "counted by events"}
ODD |= {"reasons": "1 answers are reasoning alone"}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (about, load):
        monkeypatch.setattr(module, "PAUSE_S", 0.01)


def prompts(folder: Path, texts: Sequence[str]) -> list[str]:
    """The words that choose these prompts."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ["dataset=prompts", f"dataset.path={path}", "dataset.max_new_tokens=16", "limit=null"]


class Answer(NamedTuple):
    """To a prompt, the last of its messages."""

    arm: str
    id: str
    prompt: str
    of: Arm
    served: Served


def bench(folder: Path, *words: str) -> tuple[list[Answer], str]:
    """The answers and the table of a bench."""
    main(["bench", *words, f"results={folder}"])
    (row,) = (folder / "runs").iterdir()
    texts = read_texts(row / "A").items()
    said = {n: one.messages[-1]["content"] if one.messages else one.prompt for n, one in texts}
    answers = [
        Answer(name, turn.id, said[turn.index], arm, arm.served)
        for turn in row_turns(row)
        for name, arm in turn.arms.items()
        if arm.served
    ]
    return answers, (folder / "tables" / f"{row.name}.md").read_text()


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
    found = {r.prompt[1:-1]: r for r in records if r.arm == "B"}
    assert len(found) == len(names) >= 20  # more than a block
    (row,) = tmp_path.glob("runs/*")  # whose requests waited for each other, a block is a question
    assert len({turn.unit for turn in row_turns(row)}) == -(-len(names) // (8 * load.BLOCK))
    for name, said in FAULTS.items():
        error = found[name].of.error or ""
        assert error.startswith(said) and error in table, name
        assert found[name].served == Served(faults=[error]) and found[name].of.finish == "failed"
    for name, said in ODD.items():
        assert not found[name].of.error and said in table
    for name in ("no usage", "usage twice", "no end", "good"):
        assert found[name].of.count == 12 and not found[name].of.error, name
    n = len(names) - len(FAULTS)
    assert lines_of(table)[1]["lossless"] == f"{n - 2}/{n}" and f"{len(FAULTS)} failed" in table


def test_seconds_are_those_to_the_first_text_and_from_there_to_the_last() -> None:
    times, last = (1.0, 3.0, 6.0), {"choices": [{"text": "", "finish_reason": "length"}]}
    events = [*((now, {"choices": [{"text": "x"}]}) for now in times), (9.0, last)]
    arm, _ = client.read(iter(events), {"max_tokens": 4}, begun=0.5, at=0.0)
    assert arm.seconds == Seconds(0.5, 0.0, 0.0, 0.0, 5.0)


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
    assert not any(r.of.error for r in records) and len(records) == 2 * len(passing)
    assert all(r.served.faults for r in records if r.arm == "A")
    assert any("no connection" in text for r in records for text in r.served.faults)
    assert "timed at a later try" in table and "no connection" in table


def test_what_failed_is_asked_again_by_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it may pass, as of a server that was overloaded. One that loads is waited for, one that
    is another meanwhile is refused, and one that answers nothing is no success.
    """
    words = prompts(tmp_path, ["busy", "refused", "good"])
    plan = {"busy": ["429"] * load.TRIES, "refused": ["400"]}
    with fakes({}, {"plan": plan, "loads": 5}) as (a, b):
        left = list[list[str]]()
        for loads in (5, 9, 0):
            b.loads = loads
            records, table = bench(tmp_path, a.url, b.url, *words, "timeout=9")
            left.append([r.prompt for r in records if r.of.error])
        assert left == [["busy", "refused"], ["refused"], ["refused"]]
        assert len(b.asked) == 2 + load.TRIES + 2 * load.WARM + 1 and "1 failed" in table
        answered = b.do

        def other(handler: Any) -> None:
            b.drafts = 5
            answered(handler)

        b.do = other
        with pytest.raises(SystemExit):
            bench(tmp_path, a.url, b.url, *prompts(tmp_path, ["one"]), "fresh=true")
        assert "drafts was 3 and is 5; fresh=true" in capsys.readouterr().err
        b.plan = {"one": ["400"]}
        with pytest.raises(SystemExit):
            bench(tmp_path, a.url, b.url, *prompts(tmp_path, ["one"]), "fresh=true")
        assert "B has answered no request" in capsys.readouterr().err


def killed_after(turns: int) -> Callable[..., None]:
    """Stores so many turns, and is interrupted at the next."""
    left = iter(range(turns))

    def append(*turn: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        append_turn(*turn)

    return append


def test_a_bench_that_is_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed at any turn, or left by its servers: what is there is not asked again, and a torn line
    is.
    """
    told = {"metrics": {"speculative_decoding": {
        "num_spec_steps": 6, "num_draft_tokens": 18, "num_accepted_draft_tokens": 9,
    }}}  # fmt: skip
    words = [*prompts(tmp_path, [f"<{n}>" for n in range(6)]), "timeout=1"]
    given = {"other": ["<3>"], "told": told}
    with ExitStack() as stack:
        gone = stack.enter_context(ExitStack())
        a, b = gone.enter_context(fakes({}, given))
        _, whole = bench(tmp_path / "whole", a.url, b.url, *words)
        asked = len(b.asked)
        for kill in (1, 2, 0, 1):
            with monkeypatch.context() as patch, pytest.raises(SystemExit):
                patch.setattr(load, "append_turn", killed_after(kill))
                bench(tmp_path / "killed", a.url, b.url, *words)
            for name in ("turns", "texts"):
                (file,) = (tmp_path / "killed").rglob(f"{name}.jsonl")
                file.write_bytes(file.read_bytes() + b'{"index": 7, "i')
        ports = [one.server_address[1] for one in (a, b)]

        def leave(handler: Any) -> None:
            gone.close()
            handler.close_connection = True

        b.do = leave
        with pytest.raises(SystemExit):
            bench(tmp_path / "killed", a.url, b.url, *words)
        assert "no connection" in capsys.readouterr().err
        again = stack.enter_context(fakes({"port": ports[0]}, given | {"port": ports[1]}))
        records, table = bench(tmp_path / "killed", a.url, b.url, *words)
    # twice the six, four that were not stored, and those to warm up; two are left at the end
    assert len(b.asked) == asked + 4 + 4 + 4 * load.WARM
    assert len(again[1].asked) == 2 + load.WARM
    assert Counter((r.arm, r.id) for r in records).total() == 12

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
        said = next(tmp_path.rglob("B/config.yaml")).read_text()
        assert "drafts: 3" in said and "secret" not in said
        for name, value in (("version", "2"), ("longest", 4096), ("drafts", 5)):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
                patch.setattr(a, name, value)
                bench(tmp_path, *both, *words, "decoding.temperature=0.7")
            assert f"and is {value}; fresh=true sets the records aside" in capsys.readouterr().err
        bench(tmp_path, *both, *words, "decoding.temperature=0.7")


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
    (first,), (seen,) = (
        [body["messages"] for body in one.asked if "second 1" in str(body)] for one in (a, b)
    )
    assert len(records) == 8 and first == seen and len(first) == 3
    said = next(read_texts(row / "A") for row in (tmp_path / "runs").iterdir())
    assert first[1]["content"] == said[0].arms["A"].strip()
    errors = [str(r.of.error) for r in records]
    assert sum(error.startswith("no answer of A to") for error in errors) == 2
    assert lines_of(table)[1]["lossless"] == "1/2" and "A: 2 failed: 1 status 400" in table


def drawn(n: int, seconds: float, count: int = 10, text: str = "", **more: Any) -> Arm:
    """An answer to prompt n, half of whose seconds are those to its first token."""
    half = Seconds(seconds / 2, 0.0, 0.0, 0.0, seconds / 2)
    served = Served(at=float(n), count=count, text_sha256=text or f"{n}", usage={"any": 1})
    return Arm([], [], half, "length", served=served, **more)


def row_of(clients: int = 1, questions: Sequence[str] = (), **arms: Sequence[Arm]) -> list[Run]:
    """The runs of servers with these answers."""
    turns = [
        Turn(n, f"{n}", "", 0, [*arms], dict(zip(arms, each, strict=True)), question=question)
        for n, each in enumerate(zip(*arms.values(), strict=True))
        for question in questions[n : n + 1] or [""]
    ]
    runs = list[Run]()
    for name in arms:
        server = {"name": name, "url": "http://a", "model": "m", "engine": "fake"}
        settings = {"base": "A", "concurrency": clients, "method": server, "decoding": {}}
        run = Run(id=f"row/{name}", method=name, over="A", settings=settings, kept=turns)
        runs.append(replace(run, metrics=summarised(run)))
    return runs


def test_the_table_says_what_the_turns_give() -> None:
    a = [drawn(n, 2.0) for n in range(8)]
    b = [drawn(n, 1.0 + 0.01 * (n % 2)) for n in range(8)]
    c, d = ([drawn(n, s) for n in range(8)] for s in (1.5, 1.0))
    runs = row_of(A=a, B=b, C=c, D=d)
    table = markdown(table_of(bench_summary("row", runs, {"ttft": 0.502})))
    first, line, third, _ = lines_of(table)
    assert line["speedup"] == "1.99x [1.98, 2.00]" and line["lossless"] == "8/8"
    assert line["tok/s"] == "9.00 -> 17.9"
    assert [first["over best"], third["over best"]] == ["0.50x [0.50, 0.50]", "0.67x [0.67, 0.67]"]
    assert line["TTFT"] == "1000 / 1000 / 1000 -> 500 / 505 / 505" and third["n"] == "8"
    assert "output tok/s: A 5.00, B 9.95, C 6.67" in table
    assert "goodput, requests/s: A 0.00 (0 of 8), B 0.50 (4 of 8)" in table
    assert sentence(runs[1]) == "B is 1.99 times as fast as A [1.98, 2.00]; the same answers"
    wrong = row_of(A=a, B=[drawn(0, 1.0, count=20), *b[1:]])
    assert wrong[1].paired() == row_of(A=a, B=b)[1].paired()  # a usage is wrong
    assert "B: 1 answers have" in "".join(remarks_on(wrong))
    longer = row_of(A=a, B=[drawn(0, 1.0, count=20, text="other"), *b[1:]])[1]
    assert longer.paired()["0"] == pytest.approx(4.0)
    assert sentence(longer).endswith("; 1 of 8 answers differ")


def test_verdicts_and_failures_are_told_apart() -> None:
    a = [drawn(n, 2.0, lossless="diverged" if n == 3 else "tie") for n in range(8)]
    runs = row_of(A=a, B=[replace(a[0], lossless="identical"), *a[1:]])
    own = [run.measured.lossless for run in runs]
    assert own == [Lossless(ties=7, diverged=1), Lossless(identical=1, ties=6, diverged=1)]
    said = "1 of 8 answers are the model's own, 6 by a tie, 1 wrong"
    assert sentence(runs[1]) == f"B is 1.00 times as fast as A [1.00, 1.00]; {said}"
    lost = replace(load.FAILED, error="no")
    failed = row_of(A=a[:1], B=[lost])[1]
    assert not failed.paired() and failed.measured.lossless == Lossless(failed=1)
    assert sentence(failed) == "B has no prompt that both it and A have answered; failed: 1"


def test_with_several_clients_the_interval_is_over_turns() -> None:
    """A turn that was slow as a whole is one case, and not as many as it has requests."""
    slow = (1.10, 1.00, 1.08, 0.97, 1.05, 0.99)  # B's turns of one and the same server
    a = [drawn(n, 1 + n % 3 / 100) for n in range(96)]
    b = [drawn(n, slow[n // 16]) for n in range(96)]
    for clients, cases in ((1, 96), (8, 6)):
        blocks = [f"0/{n // 16}" for n in range(96)] if clients > 1 else []
        found = row_of(clients, blocks, A=a, B=b)[1].measured.speedup
        assert found.e2e_ci95 is not None and len(found.by_question or ()) == cases
        assert (found.e2e_ci95[0] < 1 < found.e2e_ci95[1]) == (clients > 1)


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
    assert len(records) == 6 and not any(r.of.error for r in records)
    pages = {"/version", "/props", "/get_server_info", "/metrics"}
    pages |= {"/v1/models", "/v1/chat/completions"}
    for seen, key in zip(asked, ("Bearer open-sesame", "Bearer rosebud", None), strict=True):
        assert {path for path, _ in seen} == pages and {own for _, own in seen} == {key}
        assert sum("completions" in path for path, _ in seen) == 4  # two to warm up
    out, err = capfd.readouterr()
    assert "no such key: Bearer KEY" in err and f"{a.url}#key=VARIABLE" in err
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(key in out + err + written for key in ("open-sesame", "rosebud", "that-of"))


def test_a_key_that_is_not_there_is_said_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"KEY_OF_A": "sesame", "EMPTY": "", "BROKEN": "ses\name"}.items():
        monkeypatch.setenv(name, value)
    with fakes({}, {}) as (a, b):
        for given in ("key=NOT_SET", "key=EMPTY", "keys=KEY_OF_A", "KEY_OF_A", "key=BROKEN"):
            with pytest.raises(SystemExit):
                bench(tmp_path, a.url, f"{b.url}#{given}", *prompts(tmp_path, ["?"]))
            said = capsys.readouterr().err
            assert said.count("\n") == 1 and f"{b.url}#..." in said and f"#{given}" not in said
        assert not a.keys and not b.keys


# What servers tell of their drafts, in answers and by their counters


TOLD = yaml.safe_load(Path(__file__).with_name("told.yaml").read_text())
VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {n}0.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {n}00.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {n}5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} 7.0
"""
SGLANG = """sglang:spec_verify_calls_total{engine_type="unified"} 40
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 30
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 75.0
sglang:num_requests_total{model_name="m"} 5.0
"""


def test_acceptance_is_read_as_each_engine_tells_it() -> None:
    for case in TOLD:
        found = acceptance(case["event"])
        assert found == (DraftCounts(*case["told"]) if "told" in case else None), case
    usage = {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 3}
    assert predicted({"completion_tokens_details": usage}) == DraftCounts(None, 8, 5)
    assert predicted({"completion_tokens_details": dict.fromkeys(usage, 0)}) is None
    assert counters(SGLANG) == DraftCounts(40, None, 60)
    assert counters("sglang:num_requests_total 3\n") is None
    assert since(DraftCounts(4, 8, 2), DraftCounts(9, 18, 5)) == DraftCounts(5, 10, 3)
    assert since(DraftCounts(4, 8, 2), DraftCounts(1, 2, 1)) is None  # it began anew


def test_counters_are_read_where_answers_do_not_tell_or_no_verifications(tmp_path: Path) -> None:
    told = {"timings": {"draft_n": 8, "draft_n_accepted": 4}}
    given = {"counters": VLLM}, {"counters": VLLM.replace("vllm", "llamacpp"), "told": told}
    with fakes(*given, {"told": told, "drafts": 5}) as servers:
        urls = [one.url for one in servers]
        records, table = bench(tmp_path, *urls, *prompts(tmp_path, ["one", "two"]))
    assert [r.served.counted for r in records if r.arm in "AB"] == [DraftCounts(10, 100, 10)] * 4
    assert [r.served.told for r in records if r.arm in "BC"] == [DraftCounts(None, 8, 4)] * 4
    shares = [[cells[name] for name in ("accepted share", "M")] for cells in lines_of(table)]
    assert "server 1; drafts=5." in table
    assert shares == [["0.100", "2.00"], ["0.100", "2.00"], ["0.500", "\u2014"]]
