"""Other programs' greedy outputs under the oracle: are they the model's own tokens?

    python scripts/verify_peers.py decode peers.json --gguf SmolLM2.gguf
    python scripts/verify_peers.py judge peers.json

`decode` lets each program decode the same prompts, alone and with each way of speculating that it
has, in float32, in bfloat16, and llama.cpp the quantised file as it is; it writes the tokens after
each prompt, so that it can be stopped. `judge` gives every output a verdict of `skipbench.verify`
in the precision of its arm, and writes the page beside the record, `peers.md`. `prompts` prints the
prompts for programs in an environment of their own, such as the published repositories that
`peer_repository.py` runs; what they decode is added with `--more FILE`.

Weights: the model's, as a file of Q4_1 stores them, widened to the precision of the arm. Hugging
Face decodes with `generate`; llama.cpp through llama-cpp-python, whose own prompt lookup and
interface of draft models are used (the programs of llama.cpp itself are not in its package).
"""

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoTokenizer, GenerationConfig

from scripts.compare_peers import Arm, Origin, origin, theirs
from skipbench import verify
from skipbench.bench.prompts import encode
from skipbench.config.compose import compose
from skipbench.console import progress
from skipbench.contrib.oracle.check import counts
from skipbench.contrib.oracle.report import described
from skipbench.decode.lossless import Verdict
from skipbench.language_model import load_settings
from skipbench.runs.files import write_atomic

QUANTIZED = "Q4_1"
LOOKUP, DRAFT, EXIT = 10, 4, 20
"""Tokens of a prompt lookup and of a draft model, and layers of an early exit."""
WITHOUT = (12, 15, 18, 21)
"""Layers that the assistant model of `generate` lacks."""
JUDGED_AS = {QUANTIZED: "bfloat16"}
"""Precision by which the outputs of quantised products are judged."""
NOTE = (
    "Weights: the same of all, as a file of Q4_1 stores them, widened to what is computed in; "
    "`Q4_1` is the file as it is, judged by the rounding of bfloat16. A tie is a choice between "
    "two logits that are closer than the rounding of what is computed in can decide. The last "
    "column: outputs that are those of the same program without drafts, to where one ends."
)
COLUMNS = ("program", "computes in", "outputs", "tokens", "identical", "tie", "wrong", "as plain")


class Outputs(msgspec.Struct):
    """One arm: what it computes in, and its outputs per prompt."""

    dtype: str
    outputs: list[list[int]] = []
    verdicts: list[Verdict] = []
    name: str = ""
    """Of an arm of `--more`, as are the fields below."""
    program: str = ""
    """Its commit and versions."""
    command: str = ""


class Record(Origin):
    """What is committed; the prompts are those of the settings."""

    settings: list[str]
    longest: int
    tokens: int
    prompts: list[str]
    """Ids of the prompts' rows."""
    arms: dict[str, Outputs] = msgspec.field(default_factory=dict)


def prompts_of(settings: list[str], longest: int, count: int) -> list[tuple[str, list[int]]]:
    """Ids and tokens of the dataset's first `count` first turns of `longest` tokens at most."""
    config = compose(settings)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path, revision=config.model.revision)
    limit = config.model.architecture.context if config.model.architecture else 4096
    rows = config.dataset.rows(None)
    prompts = [
        (prompt.row.id, prompt.ids)
        for prompt in encode(rows, tokenizer, limit, **config.dataset.encoding)
        if prompt.complete is None and len(prompt.ids) <= longest
    ]
    return prompts[:count]


def asked_of(record: Record) -> dict[str, object]:
    """What `peer_repository.py` reads: the folder of the model, the prompts' tokens, and limits."""
    config = compose(record.settings).model
    ends = GenerationConfig.from_pretrained(config.path).eos_token_id
    eos = ends[0] if isinstance(ends, list) else ends
    prompts = [ids for _, ids in prompts_of(record.settings, record.longest, len(record.prompts))]
    return {"model": config.path, "eos": eos, "tokens": record.tokens, "prompts": prompts}


def shallower(loaded: Any) -> Any:
    """A copy of a model `WITHOUT` some of its layers, which drafts for it."""
    made = copy.deepcopy(loaded)
    layers = [one for i, one in enumerate(made.model.layers) if i not in WITHOUT]
    for index, one in enumerate(layers):
        one.self_attn.layer_idx = index
    made.model.layers = torch.nn.ModuleList(layers)
    made.config.num_hidden_layers = len(layers)
    return made


def arms_of(record: Record, gguf: Path | None, place: Path) -> dict[str, Arm]:
    """The programs with their ways of speculating, each of a name that ends with its precision."""
    made, longest = dict[str, Arm](), record.longest + record.tokens + 64
    for dtype in ("float32", "bfloat16"):
        model = compose([*record.settings, f"model.dtype={dtype}"]).model
        ends = GenerationConfig.from_pretrained(model.path).eos_token_id
        eos = frozenset(ends if isinstance(ends, list) else [ends])
        how = record.tokens, eos, longest
        arms = theirs(model, record.tokens, EXIT, LOOKUP, shallower)
        made |= {f"{name}, {dtype}": arm for name, arm in arms.items()}
        if gguf is None:
            continue
        from scripts.peer_llama import arm, dequantized, lookup_draft, model_draft

        files = {dtype: dequantized(gguf, place / f"{dtype}.gguf", dtype)}
        for kind, file in (files if dtype == "float32" else files | {QUANTIZED: gguf}).items():
            drafts = {
                "llama.cpp": None,
                f"llama.cpp, prompt lookup of {LOOKUP}": lookup_draft(LOOKUP),
                f"llama.cpp, draft model {QUANTIZED} of {DRAFT}": model_draft(gguf, longest, DRAFT),
            }
            for name, draft in drafts.items():
                if draft is None or kind != QUANTIZED or "draft model" not in name:
                    made[f"{name}, {kind}"] = arm(file, *how, draft_model=draft)
    return made


def decode(path: Path, record: Record, arms: dict[str, Arm], prompts: list[list[int]]) -> None:
    """Decodes prompt after prompt with every arm; goes on where the same command stopped."""
    decoders = {name: make() for name, make in arms.items()}
    record.arms |= {name: Outputs(name.rpartition(", ")[2]) for name in arms}
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=Record)
        if before.command == record.command and before.versions == record.versions:
            record.arms |= before.arms
    done = min(len(record.arms[name].outputs) for name in arms)
    with progress("peers", (len(prompts) - done) * len(arms)) as advance:
        for prompt in prompts[done:]:
            made = dict[str, list[int]]()
            for name, decoder in decoders.items():
                made[name] = decoder(prompt)
                advance(name)
            for name, output in made.items():
                record.arms[name].outputs.append(output)
            write_atomic(path, msgspec.json.encode(record) + b"\n")


def judge(record: Record) -> None:
    """Verdicts on the outputs, one model after the other; the same output is judged once."""
    prompts = [ids for _, ids in prompts_of(record.settings, record.longest, len(record.prompts))]
    by_dtype = dict[str, list[str]]()
    for name, arm in record.arms.items():
        by_dtype.setdefault(JUDGED_AS.get(arm.dtype, arm.dtype), []).append(name)
    for dtype, names in by_dtype.items():
        different = {
            (i, *output): {"id": record.prompts[i], "prompt_token_ids": prompts[i]}
            | {"output_ids": output, "max_tokens": record.tokens}
            for name in names
            for i, output in enumerate(record.arms[name].outputs)
        }
        model = load_settings([*record.settings, f"model.dtype={dtype}"], "vanilla")
        judged = verify([*different.values()], model).verdicts
        verdicts = dict(zip(different, judged, strict=True))
        for name in names:
            arm = record.arms[name]
            arm.verdicts = [verdicts[i, *output] for i, output in enumerate(arm.outputs)]


def row(record: Record, full: str) -> list[str]:
    """An arm's line of the table."""
    arm = record.arms[full]
    name, verdicts = full.removesuffix(f", {arm.dtype}"), counts(arm.verdicts)
    plain = record.arms.get(f"{name.split(',')[0].split()[0]}, {arm.dtype}", arm)
    pairs = zip(arm.outputs, plain.outputs, strict=False)
    same = sum(all(a == b for a, b in zip(*pair, strict=False)) for pair in pairs)
    found = [verdicts.get(kind, 0) for kind in ("identical", "tie", "wrong")]
    numbers = map(str, (len(arm.outputs), sum(map(len, arm.outputs)), *found))
    beside = "" if plain is arm else f"{same}/{len(arm.outputs)}"
    return [f"`{name}`", arm.dtype, *numbers, beside]


def page(record: Record) -> str:
    """The table and a line per divergence, in Markdown."""
    lines = [[*COLUMNS], ["---"] * len(COLUMNS), *(row(record, full) for full in record.arms)]
    reports = dict[str, list[str]]()
    for full, arm in record.arms.items():
        for prompt, verdict in zip(record.prompts, arm.verdicts, strict=False):
            if verdict.kind != "identical":
                cause = verdict.cause
                why = f"; {cause.name} ({cause.evidence})" if cause else ""
                line = f"{prompt}, {verdict.kind}: {described(verdict)}{why}"
                reports.setdefault(line, []).append(f"`{full}`")
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    rest = "".join(f"- {line}: {', '.join(names)}\n" for line, names in sorted(reports.items()))
    more = {arm.command: arm.program for arm in record.arms.values() if arm.command}
    commands = "".join(f"\n{of}:\n\n```\n{command}\n```\n" for command, of in more.items())
    return (
        f"# Other programs under the oracle\n\n{table}\n"
        f"{NOTE}\n\n## Where they part from the model\n\n{rest}\n"
        f"Prompts: the dataset's first turns of at most {record.longest} tokens, in order; outputs "
        f"of at most {record.tokens} tokens. One thread, {record.told}{commands}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("step", choices=["decode", "prompts", "judge", "render"])
    add("record", type=Path)
    add("--model", default="smollm2-135m")
    add("--dataset", nargs="+", default=["specbench", "dataset.chat=auto"])
    add("--prompts", type=int, default=20)
    add("--tokens", type=int, default=64)
    add("--longest", type=int, default=160, help="tokens of a prompt at most")
    add("--gguf", type=Path, help="the model's GGUF file: llama.cpp, too")
    add("--more", nargs="+", type=Path, default=[], metavar="FILE")
    args = parser.parse_args()
    if args.step == "decode":
        name, *more = args.dataset
        settings = [f"model={args.model}", f"dataset={name}", *more]
        chosen = prompts_of(settings, args.longest, args.prompts)
        record = Record(
            **origin("verify_peers.py", bool(args.gguf)),
            settings=settings,
            longest=args.longest,
            tokens=args.tokens,
            prompts=[row for row, _ in chosen],
        )
        with tempfile.TemporaryDirectory() as place:
            arms = arms_of(record, args.gguf, Path(place))
            return decode(args.record, record, arms, [ids for _, ids in chosen])
    record = msgspec.json.decode(args.record.read_bytes(), type=Record)
    if args.step == "prompts":
        return print(msgspec.json.encode(asked_of(record)).decode())
    for file in args.more:
        for arm in msgspec.json.decode(file.read_bytes(), type=list[Outputs]):
            record.arms[f"{arm.name}, {arm.dtype}"] = arm
    if args.step == "judge":
        judge(record)
        write_atomic(args.record, msgspec.json.encode(record) + b"\n")
    write_atomic(args.record.with_suffix(".md"), page(record))


if __name__ == "__main__":
    main()
