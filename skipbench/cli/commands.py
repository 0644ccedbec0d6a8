"""The commands: what each does, its keys, its flags, and how many bare words it takes."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from skipbench.cli.command import (
    Columns,
    Command,
    Compared,
    Json,
    Minutes,
    Names,
    Over,
    Prompted,
    Prompts,
    RenderOnly,
)
from skipbench.config.extensions import load, registered


class Compare(Compared):
    """which method is fastest on your model, ranked:  compare model.path=/models/my-llama
    prompts=prompts.jsonl [minutes=20] [columns=M,speedup] [over=swift] [--json]
    """

    prompts: Prompts = None
    minutes: Minutes = 20.0
    method: Annotated[Names, "only these"] = ()
    limit: Annotated[
        Annotated[str, Meta(pattern=r"^([1-9]\d*|null)$")] | None,
        Meta(title="1 or more, or null for all"),
        "prompts per method, 20 by default; null for all",
    ] = None


class Generate(Prompted):
    """answer a prompt, streamed, or a file of prompts:  generate model=smollm2-135m "Why is the sky
    blue?" [--compare] [--json] | generate model=smollm2-135m prompts=FILE out=answers.jsonl
    """

    WORDS = 0, None
    prompt: Annotated[str | None, "the text, in place of bare words or stdin"] = None
    prompts: Prompts = None
    out: Annotated[str | None, "the file of the answers; what is in it is not decoded again"] = None
    json: Json = False


class Experiments(Command):
    """Base of the commands on experiments."""

    WORDS = 0, None
    scale: Annotated[str | None, "paper, embedded or laptop"] = None
    models: Annotated[Names, "only these of the paper's models"] = ()
    methods: Annotated[Names, "only these of its methods"] = ()


class Planned(Experiments):
    """Base of those with a plan."""

    plan: Annotated[bool, "prints what the rows cost (--json: row by row), runs nothing"] = False
    json: Json = False


class Table(Planned):
    """run what is missing of experiments, then write their tables:  table swift-table2
    scale=embedded [columns=M,speedup] [over=swift] [formats=tabular.tex,html] [--render-only]
    [--json]
    """

    columns: Columns = ()
    over: Over = ""
    minutes: Minutes = None
    formats: Annotated[Names, "of md, csv, html, tabular.tex; md and csv without it"] = ()
    render_only: RenderOnly = False


class Figure(Experiments):
    """the same for a figure; or draw a table's speedups and intervals, or one run:  figure
    swift-figure6 | figure compare-my-llama | figure results/runs/RUN
    """

    render_only: RenderOnly = False


class Status(Experiments):
    """how far the cells of experiments are, and what failed; of what was submitted:  status
    swift-table2 scale=paper [--watch] [--json] | status
    """

    json: Json = False
    watch: Annotated[bool, "shows what runs, every 10 s, until nothing does"] = False


class Submit(Planned):
    """run what is missing on Slurm or on this machine's GPUs:  submit swift-table2
    hardware=slurm-a100 [--plan|--print|--yes|--anyway]
    """

    print: Annotated[bool, "shows the scripts or the rows, and sends nothing"] = False
    yes: Annotated[bool, "submits any number of GPU-hours"] = False
    anyway: Annotated[bool, "submits although models or datasets are not here"] = False


class Search(Command):
    """search a skip set offline:  search method=self-sd model=tiny"""


class Score(Command):
    """execute generated code in a sandbox and add pass@k:  score RUN | score all"""

    SETTINGS = False
    WORDS = 1, None
    NEEDS = "needs a run: its folder, or its name below results/runs; or all that wait for it: all"
    sandbox: Annotated[
        Literal["auto", "none"],
        Meta(title="auto, or none to run generated code without isolation"),
        "auto, or none for no isolation",
    ] = "auto"
    timeout: Annotated[float, Meta(title="seconds"), "seconds per program"] = 5.0
    results: Annotated[Path, "the results folder"] = Path("results")


class Profile(Command):
    """sub-layer latencies by context and rows, and the roofline:  profile model=tiny
    profile.contexts=[64,1024]
    """

    json: Json = False


class Data(Experiments):
    """what experiments read, and whether it is here; fetch it, or what is named:  data swift-table2
    scale=paper [--fetch] | data cnndm llama3-8b
    """

    WORDS = 1, None
    NEEDS = "needs experiments, datasets or models, as list prints them: data swift-table2"
    fetch: Annotated[bool, "fetches what experiments lack"] = False


class Report(Command):
    """one HTML page of all runs, tables and figures:  report results=FOLDER"""

    SETTINGS = False
    results: Annotated[Path, "the results folder"] = Path("results")


class Diff(Command):
    """compares two folders of results, prompt by prompt:  diff A B"""

    SETTINGS = False
    WORDS = 2, 2
    NEEDS = "needs two folders of results, as in: diff results/a results/b"


class Check(Command):
    """does a method keep its contract, on small random models? one line per property:  check
    method=mine --config-dir myconf
    """

    NEEDS = "needs a method, as in check method=swift"


class List(Command):
    """models, methods, stop rules, datasets, experiments:  list | list models | list stop"""

    SETTINGS = False
    WORDS = 0, None


class Doctor(Command):
    """what this machine can run, and what is missing for more:  doctor"""

    json: Json = False


class RunRow(Command):
    """run one row of a submitted manifest; jobs call it:  runrow MANIFEST NUMBER"""

    SETTINGS = False
    WORDS = 2, 2
    NEEDS = "needs a manifest and a number, as submit writes them into its script"


COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind
    for kind in (
        Compare, Generate, Table, Figure, Submit, Status, Search,
        Score, Profile, Data, Report, Diff, Check, List, Doctor, RunRow,
    )
}  # fmt: skip
COMMANDS |= {name: load("command", name) for name in registered("command")}
MODULES = {
    "experiments": ("submit",),
    "inventory": ("list", "doctor", "check"),
    "offline": ("search", "profile"),
    "results": ("score", "report", "diff"),
}  # modules with several commands; others are called as their command


def module_of(name: str) -> str:
    """The module whose `run_NAME` executes a command."""
    if name in registered("command"):
        return COMMANDS[name].__module__
    module = next((module for module, names in MODULES.items() if name in names), name)
    return f"skipbench.cli.{module}"
