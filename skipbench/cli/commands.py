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
Columns = Annotated[Names, "more columns of the table"]
Force = Annotated[bool, "writes although measured values are lost"]
Json = Annotated[bool, "results for machines"]
Plan = Annotated[bool, "prints what the rows cost, and runs nothing"]
RenderOnly = Annotated[bool, "runs nothing"]


class Compare(Command):
    """which method is fastest on your model, ranked:  compare model.path=/models/my-llama
    prompts=prompts.jsonl [minutes=20] [columns=ttft,itl,joules] [--json]
    """

    prompts: Annotated[
        str | None, "a file, .jsonl or .parquet with `prompt` or `messages`, or .txt"
    ] = None
    minutes: Annotated[Positive, "time that the runs may take"] = 20.0
    methods: Annotated[Names, "only these; method= says the same"] = ()
    method: Names = ()
    limit: Annotated[Limit, "prompts per method, null for all; by default as many as fit"] = None
    columns: Columns = ()
    json: Json = False


class Prompted(Command):
    """Base of the commands that answer prompts."""

    method: Annotated[str, "the decoding method"] = DEFAULT_METHOD
    system: Annotated[str | None, "the system message"] = None
    stop: Annotated[str | None, "a text before which the answer ends"] = None
    max_new_tokens: Annotated[Count, "maximum length of an answer"] = None
    chat: Annotated[str, "auto, none for plain text, template or vicuna"] = "auto"
    compare: Annotated[bool, "decodes the same with vanilla, too"] = False


class Generate(Prompted):
    """answer a prompt, streamed:  generate model=smollm2-135m "Why is the sky blue?" [--compare]
    [--json]
    """

    WORDS = 0, None
    prompt: Annotated[str | None, "the text, in place of bare words or stdin"] = None
    json: Json = False


class Chat(Prompted):
    """a conversation in the terminal:  chat model=smollm2-135m [--compare]"""

    NEEDS = "reads its prompts from the terminal; for a single one use generate"


class Verify(Command):
    """were these the model's own tokens? outputs of any engine:  verify OUTPUTS model=M
    [--fail-on wrong] [--json F] [--page F]
    """

    WORDS = 1, 1
    NEEDS = "needs one file of outputs or a run's folder, as in verify out.jsonl model=tiny"
    fail_on: Annotated[
        Annotated[Literal["wrong", "tie"] | None, Meta(title="wrong or tie")],
        "exit status 1 where an output is wrong, or not identical",
    ] = None
    chat: Annotated[
        Annotated[Literal["none", "template"], Meta(title="none or template")],
        "prompts of text: as they are, or through the model's chat template",
    ] = "none"
    own_dtype: Annotated[bool, "computes as the model does in model.dtype instead of float32"] = (
        False
    )
    json: Annotated[Path | None, "a file for the verdicts"] = None
    page: Annotated[Path | None, "an HTML file with the texts side by side"] = None

    @property
    def outputs(self) -> Path:
        return Path(self.words[0])


class Export(Command):
    """a method for other programs: a custom_generate folder, skipset.json, llama.cpp's prune
    line:  export OUT model=tiny method=self-sd
    """

    WORDS = 1, 1
    NEEDS = "needs one folder to write, as in export OUT model.path=/models/my-llama method=self-sd"


class Experiments(Command):
    """Base of the commands on experiments."""

    WORDS = 0, None
    scale: Annotated[str | None, "paper, embedded or laptop"] = None
    models: Annotated[Names, "only these of the paper's models"] = ()
    budget: Annotated[
        str | None, "fewer prompts per row: GPU-hours, as 200h, or a half width, as 2%"
    ] = None
    columns: Columns = ()


class Table(Experiments):
    """run what is missing of experiments, then write their tables:  table swift-table2
    scale=embedded [columns=ttft,itl,joules] [--render-only] [--force] [--json]
    """

    render_only: RenderOnly = False
    force: Force = False
    plan: Plan = False
    json: Json = False


class Figure(Experiments):
    """the same for a figure; or draw one run:  figure swift-figure6 | figure results/runs/RUN"""

    render_only: RenderOnly = False
    distinct: Annotated[bool, "draws nothing if most runs have the draft of another"] = False
    force: Force = False


class Status(Experiments):
    """what of experiments is done, failed, running, missing:  status swift-table2 scale=paper"""

    stale: Annotated[
        float | None,
        Meta(title="a number of seconds"),
        "seconds without news after which a run on another machine counts as dead",
    ] = None
    plan: Plan = False


class Submit(Status):
    """run what is missing on Slurm or on this machine's GPUs:  submit swift-table2
    hardware=slurm-a100 [--print|--plan|--yes]
    """

    print: Annotated[bool, "shows the scripts or the rows, and sends nothing"] = False
    yes: Annotated[bool, "submits any number of GPU-hours"] = False


class Search(Command):
    """search a skip set offline:  search method=self-sd model=tiny"""


class Score(Command):
    """execute generated code in a sandbox and add pass@k:  score RUN | score all"""

    SETTINGS = False
    WORDS = 1, None
    NEEDS = "needs a run: its folder, or its name below results/runs; or all that wait for it: all"
    sandbox: Annotated[Isolation, "auto, or none for no isolation"] = "auto"
    timeout: Annotated[float, Meta(title="seconds"), "seconds per program"] = 5.0
    results: Annotated[Path, "the results folder"] = Path("results")


class Profile(Command):
    """sub-layer latencies by context and rows, and the roofline:  profile model=tiny
    profile.contexts=[64,1024]
    """

    json: Json = False


class Data(Command):
    """fetch datasets and models for machines without a network:  data cnndm llama3-8b"""

    WORDS = 0, None


class Report(Command):
    """one HTML page of all runs, tables and figures:  report results=FOLDER"""


class Merge(Command):
    """bring the results of several machines together:  merge A B results=C"""

    SETTINGS = False
    WORDS = 1, None
    NEEDS = "needs results folders and where to: python -m skipbench merge A B results=TARGET"
    results: Annotated[Path | None, "the folder to write"] = None


class Project(Command):
    """what a run would do on another machine, or with other stop rules, from its records:  project
    results/runs/RUN hardware=a100-80gb
    """

    SETTINGS = False
    WORDS = 1, 1
    NEEDS = (
        "needs one run, and for another machine hardware=DEVICE or profile=FILE, as in project "
        "results/runs/RUN hardware=a100-80gb"
    )
    hardware: Annotated[str | None, "a device of conf/hardware"] = None
    profile: Annotated[str | None, "a latency file of another machine"] = None
    here: Annotated[str | None, "a latency file of the run's own machine"] = None
    lengths: Annotated[Count, "ranks so many fixed draft lengths"] = None
    search: Annotated[Count, "shows so many stop rules and trees"] = None
    json: Annotated[bool, "the run and its projection for machines, and no more"] = False


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
    """what this machine can run, and what is missing for more:  doctor [--gpu]"""

    gpu: Annotated[bool, "checks what only a CUDA device can show"] = False
    rehearse: Annotated[bool, "with --gpu: small, on the CPU, which judges nothing"] = False
    json: Json = False


class Cell(Command):
    """run one row of a submitted manifest; jobs call it:  cell MANIFEST NUMBER"""

    SETTINGS = False
    WORDS = 2, 2
    NEEDS = "needs a manifest and a number, as submit writes them into its script"


COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind
    for kind in (
        Compare, Generate, Chat, Verify, Export, Table, Figure, Submit, Status, Search, Score,
        Profile, Data, Report, Merge, Project, Diff, List, Doctor, Cell,
    )
}  # fmt: skip
MODULES = {
    "answers": ("generate", "chat"),
    "experiments": ("submit", "status"),
    "inventory": ("list", "doctor", "data"),
    "offline": ("search", "profile", "project"),
    "results": ("score", "report", "merge", "diff"),
    "table": ("table", "compare"),
}
"""Modules of `skipbench.cli` that hold several commands; others are called as their command."""
