"""`bench`: servers of any engine against each other, paired by prompt."""

import json
import os
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from skipbench.cli.command import Command, Names
from skipbench.config.compose import compose
from skipbench.config.configurable import PositiveFloat
from skipbench.console import progress, show, working
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.config.run_config import RunConfig
    from skipbench.contrib.servers.about import Addressed
    from skipbench.data.rows import Example
    from skipbench.language_model import LanguageModel

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
    timeout: Annotated[PositiveFloat, "seconds of silence after which an answer is stalled"] = 120.0
    goodput: Annotated[Names, "bounds in ms of a good request: ttft:500,tpot:50,e2el:9000"] = ()
    names: Annotated[Names, "what the arms are called, in their order: plain,eagle3"] = ()
    machine: Annotated[str, "what the servers run on, such as RTX-4090; both are for `bundle`"] = ""


def run_bench(asked: Bench) -> None:
    """Asks what is missing, writes a row and its table per number of clients, and prints the table
    and in a sentence how fast each server is. Exits with 1 where one has answered nothing.
    """
    from skipbench.cli.compare import write_table
    from skipbench.contrib.servers.summary import first_of
    from skipbench.contrib.servers.table import bench_summary, sentence
    from skipbench.report.compared import BASELINE
    from skipbench.report.tables.formats import for_terminal
    from skipbench.report.tables.stored import table_of
    from skipbench.runs.run import read_run

    levels, bounds = levels_of(asked.concurrency or ("1",)), bounds_of(asked.goodput)
    config, given = compose(asked.model_settings()), arms_of(asked.words)
    if asked.names and len({*asked.names}) != len(given):
        wanted = f"{len(given)} different names, one per server"
        raise SkipbenchError(f"names={','.join(asked.names)}; wanted {wanted}")
    if BASELINE in asked.names[1:]:
        raise SkipbenchError(f"names={','.join(asked.names)}; {BASELINE} is the first server alone")
    rows = config.dataset.rows(config.limit)
    folders = [measured(asked, config, given, rows, clients) for clients in levels]
    notes = judged(folders, asked)
    runs = [[first_of(read_run(folder), len(rows)) for folder in row] for row in folders]
    for row, said in zip(runs, notes, strict=True):
        name = str(row[0].id).partition("/")[0]
        stored = bench_summary(name, row, bounds, said)
        write_table(config.results / "tables" / name, table_of(stored), "", stored=stored.text)
    every, lines = [*chain(*runs)], [*chain(*notes)]
    show(for_terminal(table_of(bench_summary("bench", every, bounds, lines))))
    show("\n".join(["", *(sentence(run) for run in every if run.arm != run.base)]))
    if silent := [run.method for run in every if not run.sound]:
        raise SkipbenchError(f"{silent[0]} has answered no request; fresh=true asks again")


def measured(
    asked: Bench,
    config: "RunConfig",
    given: "Sequence[Addressed]",
    rows: "Sequence[Example]",
    clients: int,
) -> list[Path]:
    """Fills the row of this number of clients; returns the folders of its arms."""
    from skipbench.contrib.servers.about import FIRST, introduced
    from skipbench.contrib.servers.load import Load
    from skipbench.contrib.servers.records import measuring, opened
    from skipbench.runs.store import row_turns

    body, node, seed = body_of(config), config.dataset.node, config.seed
    named = {"name": f"{node['name']}, {clients} in flight", "scorer": "none"}
    settings: dict[str, Any] = {"base": FIRST, "dataset": {**node, **named}, "decoding": body}
    settings |= {"concurrency": clients, "seed": seed, "timeout": asked.timeout}
    settings["servers"] = [[url, extra] for url, extra, _ in given]
    with opened(config.results, settings, config.fresh) as row:
        servers = introduced(row, given, asked.names, asked.timeout)
        keys = {name: key for name, (*_, key) in zip(servers, given, strict=True)}
        chat = "template" if node["chat"] == "auto" else str(node["chat"])
        load = Load(row, servers, keys, rows, clients, body, chat, seed, asked.timeout)
        done = (len(row_turns(row)) - len(load.again)) * len(servers)
        command = ["bench", *asked.words, *asked.given]
        with (
            measuring(row, servers, rows, config.limit, asked.machine, command),
            progress(f"{clients} in flight", len(rows) * len(servers), done) as advance,
        ):
            load.measure(advance)
    return [row / name for name in servers]


def body_of(config: "RunConfig") -> dict[str, Any]:
    """The fields that all requests have."""
    how, longest = config.decoding, config.dataset.max_new_tokens
    body: dict[str, Any] = {"max_tokens": longest, "temperature": how.temperature}
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


def judged(rows: Sequence[Sequence[Path]], asked: Bench) -> list[list[str]]:
    """Judges the answers in these rows of folders, if a checkpoint was named; lines on each row."""
    if not any(word.startswith(("model=", "model.path=")) for word in asked.settings):
        return [[] for _ in rows]
    from skipbench.contrib.servers.records import write_metrics
    from skipbench.language_model import load_settings
    from skipbench.runs.lock import held

    with working("loading the model"):
        model = load_settings(asked.model_settings(), "vanilla")
    notes = [list[str]() for _ in rows]
    with progress("judging the answers of servers", sum(map(len, rows))) as advance:
        for said, row in zip(notes, rows, strict=True):
            with held(row[0]):
                for folder in row:
                    said += verdicts(folder, model)
                    advance(folder.name)
                write_metrics(row)
    return notes


def verdicts(folder: Path, model: "LanguageModel") -> list[str]:
    """Writes the oracle's verdicts on the answers of one server; returns lines on them."""
    from skipbench.contrib.oracle.api import verify
    from skipbench.contrib.oracle.report import report
    from skipbench.contrib.servers.table import SHOWN
    from skipbench.runs.store import judge

    result = verify(folder, model)
    kinds: list[Any] = ["diverged" if v.kind == "wrong" else v.kind for v in result.verdicts]
    judge(folder, kinds)
    text = "\n".join(report(result, SHOWN)).replace(f" ({result.format})", "")
    return [f"{folder.name}: {line}." for line in re.sub(r"\n +", "; ", text).splitlines()]
