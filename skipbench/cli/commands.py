"""The commands: what each does, its keys, its flags, and how many bare words it takes."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from skipbench.cli.parser import Command, Names
from skipbench.config.catalog import DEFAULT_METHOD

Positive = Annotated[float, Meta(gt=0, title="a number above 0")]
Count = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(title="a number of 1 or more")]
Limit = Annotated[
    Annotated[str, Meta(pattern=r"^([1-9]\d*|null)$")] | None,
    Meta(title="1 or more, or null for all"),
]
Isolation = Annotated[
    Literal["auto", "none"], Meta(title="auto, or none to run generated code without isolation")
]


class Compare(Command):
    """which method is fastest on your model, ranked:  compare model.path=/models/my-llama
    prompts=prompts.jsonl [minutes=20] [columns=ttft,tpot,joules] [--json]

    prompts: a file, .jsonl or .parquet with `prompt` or `messages`, or .txt
    minutes: time that the runs may take
    methods: only these; method= says the same
    limit: prompts per method, null for all; by default as many as fit
    columns: more columns of the table
    json: results for machines
    """

    prompts: str | None = None
    minutes: Positive = 20.0
    methods: Names = ()
    method: Names = ()
    limit: Limit = None
    columns: Names = ()
    json: bool = False


class Prompted(Command):
    """Base of the commands that answer prompts.

    method: the decoding method
    system: the system message
    stop: a text before which the answer ends
    max_new_tokens: maximum length of an answer
    chat: auto, none for plain text, template or vicuna
    compare: decodes the same with vanilla, too
    """

    method: str = DEFAULT_METHOD
    system: str | None = None
    stop: str | None = None
    max_new_tokens: Count = None
    chat: str = "auto"
    compare: bool = False


class Generate(Prompted):
    """answer a prompt, streamed:  generate model=smollm2-135m "Why is the sky blue?" [--compare]
    [--json]

    prompt: the text, in place of bare words or stdin
    json: results for machines
    """

    WORDS = 0, None
    prompt: str | None = None
    json: bool = False


class Chat(Prompted):
    """a conversation in the terminal:  chat model=smollm2-135m [--compare]"""

    NEEDS = "reads its prompts from the terminal; for a single one use generate"


class Export(Command):
    """a method for other programs: a custom_generate folder, skipset.json, llama.cpp's prune
    line:  export OUT model=tiny method=self-sd
    """

    WORDS = 1, 1
    NEEDS = "needs one folder to write, as in export OUT model.path=/models/my-llama method=self-sd"


class Experiments(Command):
    """Base of the commands on experiments.

    scale: paper, embedded or laptop
    models: only these of the paper's models
    budget: GPU-hours of all cells of an experiment together, as --budget 200h
    columns: more columns of the table
    """

    WORDS = 0, None
    scale: str | None = None
    models: Names = ()
    budget: str | None = None
    columns: Names = ()


class Table(Experiments):
    """run what is missing of experiments, then write their tables:  table swift-table2
    scale=embedded [columns=ttft,tpot,joules] [--render-only] [--force] [--json]

    render_only: runs nothing
    force: writes although measured values are lost
    plan: prints what the cells cost, and runs nothing
    json: results for machines
    """

    render_only: bool = False
    force: bool = False
    plan: bool = False
    json: bool = False


class Figure(Experiments):
    """the same for a figure; or draw one run:  figure swift-figure6 | figure results/runs/RUN

    render_only: runs nothing
    distinct: draws nothing if most runs have the draft of another
    force: writes although measured values are lost
    """

    render_only: bool = False
    distinct: bool = False
    force: bool = False


class Status(Experiments):
    """what of experiments is done, failed, running, missing:  status swift-table2 scale=paper

    stale: seconds without news after which a run on another machine counts as dead
    plan: prints what the cells cost, and runs nothing
    """

    stale: Annotated[float | None, Meta(title="a number of seconds")] = None
    plan: bool = False


class Submit(Status):
    """run what is missing on Slurm or on this machine's GPUs:  submit swift-table2
    hardware=slurm-a100 [--print|--plan|--yes]

    print: shows the scripts or the cells, and sends nothing
    yes: submits any number of GPU-hours
    """

    print: bool = False
    yes: bool = False


class Search(Command):
    """search a skip set offline:  search method=self-sd model=tiny"""


class Score(Command):
    """execute generated code in a sandbox and add pass@k:  score RUN | score all

    sandbox: auto, or none for no isolation
    timeout: seconds per program
    results: the results folder
    """

    SETTINGS = False
    WORDS = 1, None
    NEEDS = "needs a run: its folder, or its name below results/runs; or all that wait for it: all"
    sandbox: Isolation = "auto"
    timeout: Annotated[float, Meta(title="seconds")] = 5.0
    results: Path = Path("results")


class Profile(Command):
    """sub-layer latencies by context and rows, and the roofline:  profile model=tiny
    profile.contexts=[64,1024]
    """


class Data(Command):
    """fetch datasets and models for machines without a network:  data cnndm llama3-8b"""

    WORDS = 0, None


class Report(Command):
    """one HTML page of all runs, tables and figures:  report results=FOLDER"""


class Merge(Command):
    """bring the results of several machines together:  merge A B results=C

    results: the folder to write
    """

    SETTINGS = False
    WORDS = 1, None
    NEEDS = "needs results folders and where to: python -m skipbench merge A B results=TARGET"
    results: Path | None = None


class Project(Command):
    """what a run would do on another machine, or with other stop rules, from its records:  project
    results/runs/RUN hardware=a100-80gb

    hardware: a device of conf/hardware
    profile: a latency file of another machine
    here: a latency file of the run's own machine
    lengths: ranks so many fixed draft lengths
    search: shows so many stop rules and trees
    """

    SETTINGS = False
    WORDS = 1, 1
    NEEDS = (
        "needs one run, and for another machine hardware=DEVICE or profile=FILE, as in project "
        "results/runs/RUN hardware=a100-80gb"
    )
    hardware: str | None = None
    profile: str | None = None
    here: str | None = None
    lengths: Count = None
    search: Count = None


class Diff(Command):
    """two folders of results, cell by cell, with intervals:  diff A B"""

    SETTINGS = False
    WORDS = 2, 2
    NEEDS = "needs two folders of results, as in: diff results/a results/b"


class List(Command):
    """models, methods, datasets, experiments:  list models"""

    SETTINGS = False
    WORDS = 0, None


class Doctor(Command):
    """what this machine can run, and what is missing for more:  doctor [--gpu]

    gpu: checks what only a CUDA device can show
    """

    gpu: bool = False


class Cell(Command):
    """run one cell of a submitted manifest; jobs call it:  cell MANIFEST NUMBER"""

    SETTINGS = False
    WORDS = 2, 2
    NEEDS = "needs a manifest and a number, as submit writes them into its script"


COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind
    for kind in (
        Compare, Generate, Chat, Export, Table, Figure, Submit, Status, Search, Score, Profile,
        Data, Report, Merge, Project, Diff, List, Doctor, Cell,
    )
}  # fmt: skip
MODULES = {
    "answers": ("generate", "chat"),
    "experiments": ("submit", "status"),
    "inventory": ("list", "doctor", "data"),
    "offline": ("search", "profile"),
    "results": ("score", "report", "merge", "diff"),
    "table": ("table", "compare"),
}
"""Modules of `skipbench.cli` that hold several commands; others are called as their command."""
