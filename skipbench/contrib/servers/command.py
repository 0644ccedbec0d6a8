"""`bench`: servers of any engine against each other, paired by prompt."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from skipbench.cli.command import Command, Names, Positive
from skipbench.config.compose import compose
from skipbench.console import progress, say, show, working
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.contrib.servers.load import Arm
    from skipbench.contrib.servers.records import Record

MOST_CLIENTS = 64
BOUNDS = ("ttft", "tpot", "e2el")  # as `vllm bench serve --goodput` names them
PAGES = ("/v1/models", "/version", "/props", "/get_server_info")
"""What servers say of themselves: all; vLLM, SGLang, TensorRT-LLM; llama.cpp; SGLang."""
LEFT_OUT = re.compile(
    "^(created|permission)$|(api|admin|ssl|auth).*key|secret|password|credential", re.IGNORECASE
)  # of these pages: what varies, and what nobody else may know
MOST = 64 << 10  # characters of a page that are kept


class Bench(Command):
    """servers of any engine against each other, paired by prompt:  bench http://a:8000 http://b:8000
    dataset=specbench [concurrency=1,8] [model=CHECKPOINT] | bench http://a:8000 http://a:8000
    '{"FIELD": VALUE}' dataset=tuning
    """

    GROUPS = "dataset", "decoding", "model"
    WORDS = 2, None
    NEEDS = (
        "needs two addresses or more; behind each, a JSON object has more fields of its requests"
    )
    concurrency: Annotated[Names, "requests in flight, 1 to 64, several in turn; else 1"] = ()
    timeout: Annotated[Positive, "seconds of silence after which an answer is stalled"] = 120.0
    goodput: Annotated[Names, "bounds in ms of a good request: ttft:500,tpot:50,e2el:9000"] = ()


def run_bench(asked: Bench) -> None:
    """Asks what is missing, prints the table and writes it beside the records."""
    from skipbench.contrib.servers.load import Load
    from skipbench.contrib.servers.table import bench_table
    from skipbench.report.tables.formats import for_terminal, write
    from skipbench.runs.files import write_atomic, write_json
    from skipbench.runs.lock import held, set_aside
    from skipbench.runs.provenance import config_hash, run_name

    levels, bounds = levels_of(asked.concurrency or ("1",)), bounds_of(asked.goodput)
    config, given = compose(asked.model_settings()), pairs_of(asked.words)
    dataset, how = config.dataset, config.decoding
    body: dict[str, Any] = {"max_tokens": dataset.max_new_tokens, "temperature": how.temperature}
    body |= {"top_p": how.top_p} if how.top_p < 1 else {}
    body |= {"top_k": how.top_k} if how.top_k else {}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    settings: dict[str, Any] = {
        "arms": given,
        "body": body,
        "dataset": {**dataset.node},
        "limit": config.limit,
    }
    settings |= {"seed": config.seed, "timeout": asked.timeout}
    folder = config.results / "servers" / run_name([dataset.name], config_hash(settings))
    rows, chat = dataset.rows(config.limit), str(dataset.node["chat"])
    if config.fresh:
        set_aside(folder)
    with held(folder):
        write_json(folder / "config.json", settings)
        arms, shown = introduced(folder / "servers.json", given)
        file = folder / "requests.jsonl"
        records, chat = read(file), "template" if chat == "auto" else chat
        load = Load(file, arms, rows, body, chat, config.seed, asked.timeout, records)
        for level in levels:
            done = sum(r.concurrency == level for r in records)
            with progress(f"{level} in flight", len(rows) * len(arms), done) as advance:
                load.measure(level, advance)
        chosen = [r for r in records if r.concurrency in levels]
        verdicts, notes = judged(asked, chosen)
        table = bench_table(folder.name, chosen, shown, bounds, verdicts, notes)
        for suffix, text in write(table).items():
            write_atomic(folder / f"table.{suffix}", text)
    show(for_terminal(table))
    say(f"written: {folder}")


def levels_of(words: Sequence[str]) -> list[int]:
    """Numbers of clients. Raises SkipbenchError for one that is not 1 to 64."""
    if bad := [w for w in words if not (w.isdecimal() and 1 <= int(w) <= MOST_CLIENTS)]:
        raise SkipbenchError(f"concurrency={bad[0]}; wanted numbers from 1 to {MOST_CLIENTS}")
    return [*dict.fromkeys(map(int, words))]


def bounds_of(words: Sequence[str]) -> dict[str, float]:
    """Bounds in seconds, by name. Raises SkipbenchError for another form."""
    found = [re.fullmatch(rf"({'|'.join(BOUNDS)}):(\d+(?:\.\d+)?)", word) for word in words]
    if None in found:
        bad = words[found.index(None)]
        raise SkipbenchError(f"goodput={bad}; wanted NAME:MS, of {', '.join(BOUNDS)}")
    return {one[1]: float(one[2]) / 1e3 for one in found if one}


def pairs_of(words: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each address with the fields behind it. Raises SkipbenchError for other words."""
    found = list[tuple[str, dict[str, Any]]]()
    for word in words:
        if re.match("https?://.", word):
            found.append((word.rstrip("/"), {}))
            continue
        try:
            found[-1][1].update(json.loads(word))
        except (LookupError, ValueError, TypeError) as error:
            wanted = "wanted http://HOST:PORT, or a JSON object behind one"
            raise SkipbenchError(f"bench {word}: {wanted} ({error})") from error
    if len(found) < 2:
        raise SkipbenchError(f"bench {Bench.NEEDS}")
    return found


def introduced(
    path: Path, given: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[list["Arm"], dict[str, str]]:
    """The arms, by letter, and what each is. Writes what their servers say of themselves. Raises
    SkipbenchError where one serves no model, or is not what it was.
    """
    from skipbench.contrib.oracle.parts import mapping
    from skipbench.contrib.servers.load import Arm
    from skipbench.runs.files import write_json
    from skipbench.runs.reading import read_json

    before, now = read_json(path, dict[str, Any]), dict[str, Any]()
    arms, shown = list[Arm](), dict[str, str]()
    for number, (url, extra) in enumerate(given):
        name = chr(ord("A") + number)
        said, model = says(url, extra.get("model"))
        version = said.get("/version", mapping(said.get("/props")).get("build_info"))
        fixed = {"models": [model], "version": version}
        now[name] = {"url": url, "extra": extra, "identity": fixed, "said": said}
        if before and (was := before[name]["identity"]) != fixed:
            texts = " and is ".join(map(json.dumps, (was, fixed)))
            raise SkipbenchError(f"{path}: {url} was {texts}; fresh=true sets the records aside")
        arms.append(Arm(name, url, model["id"], extra))
        parts = [url, model["id"], mapping(version).get("version", version)]
        more = {key: value for key, value in extra.items() if key != "model"}
        parts += [json.dumps(more)] if more else []
        shown[name] = ", ".join(str(part) for part in parts if part)
    if not before:
        write_json(path, now)
    return arms, shown


def says(url: str, name: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a server says of itself, by page, without keys, and of the model of the requests: the
    one of that name, else its first. Raises SkipbenchError for no server and for no model.
    """
    from skipbench.contrib.servers.client import Fault, fetch

    said, faults, known = dict[str, Any](), dict[str, str](), list[dict[str, Any]]()
    for page in PAGES:
        try:
            text = fetch(url, page)
            kept = len(text) < MOST
            said[page] = json.loads(text, object_pairs_hook=_public) if kept else len(text)
        except (Fault, ValueError, RecursionError) as error:
            faults[page] = str(error)
            if isinstance(error, Fault) and error.absent:
                raise SkipbenchError(f"{url}: {error}; is it a server?") from error
    try:
        known = [{**one, "id": one["id"] + ""} for one in said[PAGES[0]]["data"]]
    except (LookupError, TypeError):
        faults.setdefault(PAGES[0], "no list of models")
    known = [one for one in known if name in (None, one["id"])] or ([{"id": name}] if name else [])
    if not known:
        how = """'{"model": NAME}' behind the address names one"""
        why = faults.get(PAGES[0], "an empty list")
        raise SkipbenchError(f"{url} names no model at {PAGES[0]} ({why}); {how}")
    return said, known[0]


def _public(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if not LEFT_OUT.search(name)}


def read(path: Path) -> list["Record"]:
    """The records of a file; a torn last line is cut off."""
    from skipbench.contrib.servers.records import Record
    from skipbench.runs.files import read_lines
    from skipbench.runs.reading import readable

    with readable(path):
        lines = read_lines(path, repair=True, torn=True)
        return [msgspec.json.decode(line, type=Record) for _, line in lines]


def judged(
    asked: Bench, records: Sequence["Record"]
) -> tuple[Mapping[tuple[str, int, str], str], list[str]]:
    """The oracle's verdicts on the answers, and lines on each arm's, if a checkpoint was named."""
    arms = sorted({r.arm for r in records if not r.error})
    if not arms or not any(word.startswith(("model=", "model.path=")) for word in asked.settings):
        return {}, []
    from skipbench.contrib.oracle.api import verify
    from skipbench.contrib.oracle.page import report
    from skipbench.contrib.servers.table import SHOWN
    from skipbench.language_model import load_settings

    with working("loading the model"):
        model = load_settings(asked.model_settings(), "vanilla")
    verdicts, notes = dict[tuple[str, int, str], str](), list[str]()
    for arm in arms:
        own = [r for r in records if r.arm == arm and not r.error]
        lines = [{"custom_id": r.id, "request": r.request, "response": r.response} for r in own]
        result = verify(lines, model)
        for record, verdict in zip(own, result.verdicts, strict=True):
            verdicts[arm, record.concurrency, record.id] = verdict.kind
        found = "\n".join(report(result, SHOWN)).replace(f" ({result.format})", "")
        notes += [f"{arm}: {line}." for line in re.sub(r"\n +", "; ", found).splitlines()]
    return verdicts, notes
