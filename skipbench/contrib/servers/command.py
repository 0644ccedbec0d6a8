"""`bench`: servers of any engine against each other, paired by prompt."""

import json
import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from skipbench.cli.command import AboveZero, Command, Names
from skipbench.config.compose import compose
from skipbench.console import progress, say, show, working
from skipbench.contrib.servers.records import (
    CONFIG,
    REQUESTS,
    read_records,
    read_verdicts,
    write_verdicts,
)
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.config.run_config import RunConfig
    from skipbench.contrib.servers.about import Addressed
    from skipbench.contrib.servers.records import Record

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
    """Asks what is missing, prints the table and writes it beside the records."""
    from skipbench.contrib.servers.table import bench_table
    from skipbench.report.compared import BASELINE
    from skipbench.report.tables.formats import for_terminal, write
    from skipbench.runs.files import write_atomic, write_json
    from skipbench.runs.lock import held, move_aside
    from skipbench.runs.provenance import config_hash, run_name

    levels, bounds = levels_of(asked.concurrency or ("1",)), bounds_of(asked.goodput)
    config, given = compose(asked.model_settings()), arms_of(asked.words)
    if asked.names and len({*asked.names}) != len(given):
        wanted = f"{len(given)} different names, one per server"
        raise SkipbenchError(f"names={','.join(asked.names)}; wanted {wanted}")
    if BASELINE in asked.names[1:]:
        raise SkipbenchError(f"names={','.join(asked.names)}; {BASELINE} is the first server alone")
    settings: dict[str, Any] = {
        "arms": [(url, extra) for url, extra, _ in given],
        "body": body_of(config),
        "dataset": {**config.dataset.node},
        "limit": config.limit,
        "seed": config.seed,
        "timeout": asked.timeout,
    }
    name = run_name([config.dataset.name], config_hash(settings))
    folder = config.results / "servers" / name
    if config.fresh:
        move_aside(folder)
    with held(folder):
        write_json(folder / CONFIG, settings)
        measure(folder, asked, config, given, levels)
        records = [r for r in read_records(folder) if r.concurrency in levels]
        table = bench_table(folder, levels, bounds, judged(folder, asked, records))
        for suffix, text in write(table).items():
            write_atomic(folder / f"table.{suffix}", text)
    show(for_terminal(table))
    say(f"written: {folder}")


def body_of(config: "RunConfig") -> dict[str, Any]:
    """The fields that all requests have."""
    how = config.decoding
    body: dict[str, Any] = {"max_tokens": config.dataset.max_new_tokens}
    body |= {"temperature": how.temperature}
    body |= {"top_p": how.top_p} if how.top_p < 1 else {}
    body |= {"top_k": how.top_k} if how.top_k else {}
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def measure(
    folder: Path,
    asked: Bench,
    config: "RunConfig",
    given: "Sequence[Addressed]",
    levels: Sequence[int],
) -> None:
    """Asks the servers what has no record yet."""
    from skipbench.contrib.servers.about import About, introduced
    from skipbench.contrib.servers.load import Load, ServerArm

    rows, chat = config.dataset.rows(config.limit), str(config.dataset.node["chat"])
    about = About(
        names=[*asked.names],
        machine=asked.machine,
        prompts=len(rows),
        command=["bench", *asked.words, *asked.given],
        skipbench=version("skipbench"),
    )
    introduced(folder, given, about)
    arms = [
        ServerArm(name, one.url, one.model, one.extra, key)
        for (name, one), (*_, key) in zip(about.arms.items(), given, strict=True)
    ]
    records, chat = read_records(folder, repair=True), "template" if chat == "auto" else chat
    body, file = body_of(config), folder / REQUESTS
    load = Load(file, arms, rows, body, chat, config.seed, asked.timeout, records)
    for level in levels:
        done = sum(r.concurrency == level for r in records)
        with progress(f"{level} in flight", len(rows) * len(arms), done) as advance:
            load.measure(level, advance)


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


def judged(folder: Path, asked: Bench, records: Sequence["Record"]) -> list[str]:
    """Writes the oracle's verdicts on the answers, if a checkpoint was named; returns lines on each
    arm's.
    """
    arms = sorted({r.arm for r in records if not r.error})
    if not arms or not any(word.startswith(("model=", "model.path=")) for word in asked.settings):
        return []
    from skipbench.contrib.oracle.api import verify
    from skipbench.contrib.oracle.report import report
    from skipbench.contrib.servers.table import SHOWN
    from skipbench.language_model import load_settings

    with working("loading the model"):
        model = load_settings(asked.model_settings(), "vanilla")
    verdicts, notes = dict(read_verdicts(folder)), list[str]()
    for arm in arms:
        own = [r for r in records if r.arm == arm and not r.error]
        lines = [{"custom_id": r.id, "request": r.request, "response": r.response} for r in own]
        result = verify(lines, model)
        for record, verdict in zip(own, result.verdicts, strict=True):
            verdicts[arm, record.concurrency, record.id] = verdict.kind
        found = "\n".join(report(result, SHOWN)).replace(f" ({result.format})", "")
        notes += [f"{arm}: {line}." for line in re.sub(r"\n +", "; ", found).splitlines()]
    write_verdicts(folder, verdicts)
    return notes
