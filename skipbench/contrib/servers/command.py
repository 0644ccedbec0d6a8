"""`bench`: servers of any engine against each other, paired by prompt."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from skipbench.cli.command import AboveZero, Command, Names
from skipbench.config.compose import compose
from skipbench.console import progress, show, working
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.config.run_config import RunConfig
    from skipbench.contrib.servers.about import Addressed
    from skipbench.data.rows import Example
    from skipbench.runs.run import Run

MOST_CLIENTS = 64
BOUNDS = ("ttft", "tpot", "e2el")  # as `vllm bench serve --goodput` names them


class Bench(Command):
    """servers of any engine against each other, paired by prompt:  bench http://a:8000 http://b:8000
    dataset=specbench [concurrency=1,8] [model=CHECKPOINT] | bench http://a:8000 http://a:8000
    '{"FIELD": VALUE}' dataset=tuning | bench http://a:8000 https://b#key=B_KEY dataset=specbench
    """

    GROUPS = "dataset", "decoding", "model"
    WORDS = 2, None
    NEEDS = (
        "needs two addresses or more; behind each, #key=VARIABLE names the environment's variable "
        "with its key, and a JSON object has more fields of its requests"
    )
    concurrency: Annotated[Names, "requests in flight, 1 to 64, several in turn; else 1"] = ()
    timeout: Annotated[AboveZero, "seconds of silence after which an answer is stalled"] = 120.0
    goodput: Annotated[Names, "bounds in ms of a good request: ttft:500,tpot:50,e2el:9000"] = ()
    names: Annotated[Names, "what the arms are called, in their order: plain,eagle3"] = ()
    machine: Annotated[str, "what the servers run on, such as RTX-4090; both are for `bundle`"] = ""


def run_bench(asked: Bench) -> None:
    """Asks what is missing, writes a row and its table per number of clients, and prints the table
    and in a sentence how fast each server is. Exits with 1 where one has answered nothing.
    """
    from skipbench.cli.compare import write_table
    from skipbench.contrib.servers.table import bench_summary, sentence
    from skipbench.report.compared import BASELINE
    from skipbench.report.tables.formats import for_terminal
    from skipbench.report.tables.stored import stored_table

    levels, bounds = levels_of(asked.concurrency or ("1",)), bounds_of(asked.goodput)
    config, given = compose(asked.model_settings()), arms_of(asked.words)
    if asked.names and len({*asked.names}) != len(given):
        wanted = f"{len(given)} different names, one per server"
        raise SkipbenchError(f"names={','.join(asked.names)}; wanted {wanted}")
    if BASELINE in asked.names[1:]:
        raise SkipbenchError(f"names={','.join(asked.names)}; {BASELINE} is the first server alone")
    rows, runs, notes = config.dataset.rows(config.limit), list["Run"](), list[str]()
    for clients in levels:
        own, said = measured(asked, config, given, rows, clients)
        name = str(own[0].id).partition("/")[0]
        stored = bench_summary(name, own, bounds, said)
        write_table(config.results / "tables" / name, stored_table(stored), "", stored=stored)
        runs, notes = [*runs, *own], [*notes, *said]
    show(for_terminal(stored_table(bench_summary("bench", runs, bounds, notes))))
    show("\n".join(["", *(sentence(run) for run in runs if run.arm != run.base)]))
    if silent := [run.method for run in runs if not run.sound]:
        raise SkipbenchError(f"{silent[0]} has answered no request; fresh=true asks again")


def measured(
    asked: Bench,
    config: "RunConfig",
    given: "Sequence[Addressed]",
    rows: "Sequence[Example]",
    clients: int,
) -> "tuple[list[Run], list[str]]":
    """Fills the row of this number of clients; returns its arms, over the prompts asked for, and
    lines on verdicts.
    """
    from msgspec.structs import replace

    from skipbench.contrib.servers.about import FIRST, introduced
    from skipbench.contrib.servers.load import Load, ServerArm
    from skipbench.contrib.servers.records import measuring, opened
    from skipbench.contrib.servers.summary import summarised
    from skipbench.runs.run import read_run
    from skipbench.runs.store import row_turns

    body, node, seed = body_of(config), config.dataset.node, config.seed
    named = {"name": f"{node['name']}, {clients} in flight", "scorer": "none"}
    settings: dict[str, Any] = {"base": FIRST, "dataset": {**node, **named}, "decoding": body}
    settings |= {"concurrency": clients, "seed": seed, "timeout": asked.timeout}
    settings["servers"] = [[url, extra] for url, extra, _ in given]
    with opened(config.results, settings, config.fresh) as row:
        servers, keys = introduced(row, given, asked.names), (key for *_, key in given)
        arms = [ServerArm(*one, key) for one, key in zip(servers.items(), keys, strict=True)]
        chat = "template" if node["chat"] == "auto" else str(node["chat"])
        load = Load(row, arms, rows, clients, body, chat, seed, asked.timeout)
        done, all_ = len(row_turns(row)) * len(arms), len(rows) * len(arms)
        command = ["bench", *asked.words, *asked.given]
        with measuring(row, servers, rows, config.limit, asked.machine, command):
            with progress(f"{clients} in flight", all_, done) as advance:
                load.measure(advance)
            notes = judged(row, servers, asked)
        runs = list["Run"]()
        for run in (read_run(row / letter) for letter in servers):
            asked_for = replace(run, kept=[turn for turn in run.turns if turn.index < len(rows)])
            runs.append(replace(asked_for, metrics=summarised(asked_for)))
    return runs, notes


def body_of(config: "RunConfig") -> dict[str, Any]:
    """The fields that all requests have."""
    how = config.decoding
    body: dict[str, Any] = {"max_tokens": config.dataset.max_new_tokens}
    body |= {"temperature": how.temperature}
    body |= {"top_p": how.top_p} if how.top_p < 1 else {}
    body |= {"top_k": how.top_k} if how.top_k else {}
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def levels_of(words: Sequence[str]) -> list[int]:
    """Numbers of clients. Raises SkipbenchError for one that is not 1 to 64."""
    if bad := [w for w in words if not (w.isdecimal() and 1 <= int(w) <= MOST_CLIENTS)]:
        raise SkipbenchError(f"concurrency={bad[0]}; wanted numbers from 1 to {MOST_CLIENTS}")
    return [*dict.fromkeys(map(int, words))]


def bounds_of(words: Sequence[str]) -> dict[str, float]:
    """Bounds in seconds, by name. Raises SkipbenchError for another form."""
    found = dict[str, float]()
    for word in words:
        name, _, bound = word.partition(":")
        if name not in BOUNDS or not re.fullmatch(r"\d+(\.\d+)?", bound):
            raise SkipbenchError(f"goodput={word}; wanted NAME:MS, of {', '.join(BOUNDS)}")
        found[name] = float(bound) / 1e3
    return found


def arms_of(words: Sequence[str]) -> "list[Addressed]":
    """Each address with the fields behind it and its key. Raises SkipbenchError for other words."""
    found: list[Addressed] = []
    for word in words:
        if re.match("https?://.", word):
            url, sign, rest = word.partition("#")
            found.append((url.rstrip("/"), {}, key_of(url, rest) if sign else ""))
            continue
        try:
            found[-1][1].update(json.loads(word))
        except (LookupError, ValueError, TypeError) as error:
            wanted = "wanted http://HOST:PORT, or a JSON object behind one"
            raise SkipbenchError(f"bench {word}: {wanted} ({error})") from error
    if len(found) < 2:
        raise SkipbenchError(f"bench {Bench.NEEDS}")
    return found


def key_of(url: str, words: str) -> str:
    """The key in the environment's variable that `key=VARIABLE`, behind an address, names. Raises
    SkipbenchError, which quotes nothing of it: somebody may have written the key itself.
    """
    name, sign, variable = words.partition("=")
    key = os.environ.get(variable, "").strip() if name == "key" and sign else ""
    if not key:
        wanted = "wanted #key=VARIABLE, an environment variable that is set to the server's key"
        raise SkipbenchError(f"bench {url}#...: {wanted}; nothing was sent")
    if not (key.isascii() and key.isprintable()):
        raise SkipbenchError(f"bench {url}#...: the key has characters that no header takes")
    return key


def judged(row: Path, letters: Iterable[str], asked: Bench) -> list[str]:
    """Writes the oracle's verdicts on the answers, if a checkpoint was named; returns lines on each
    server's.
    """
    if not any(word.startswith(("model=", "model.path=")) for word in asked.settings):
        return []
    from skipbench.contrib.oracle.api import verify
    from skipbench.contrib.oracle.report import report
    from skipbench.contrib.servers.table import SHOWN
    from skipbench.language_model import load_settings
    from skipbench.runs.store import judge

    with working("loading the model"):
        model = load_settings(asked.model_settings(), "vanilla")
    notes = list[str]()
    for letter in letters:
        result = verify(row / letter, model)
        kinds: list[Any] = [verdict.kind for verdict in result.verdicts]
        judge(row / letter, ["diverged" if kind == "wrong" else kind for kind in kinds])
        found = "\n".join(report(result, SHOWN)).replace(f" ({result.format})", "")
        notes += [f"{letter}: {line}." for line in re.sub(r"\n +", "; ", found).splitlines()]
    return notes
