"""`export`: a method and its skip set for other programs: a `custom_generate` folder for the hub,
`skipset.json`, and the line that prunes whole layers in llama.cpp.
"""

import json
from pathlib import Path

from skipbench.cli.command import Command
from skipbench.config.compose import compose
from skipbench.config.run_config import RunConfig
from skipbench.console import say, show
from skipbench.draft_plan import DraftPlan
from skipbench.runs.files import write_atomic
from skipbench.runs.fingerprint import weights_sha256
from skipbench.runs.provenance import portable

FORMAT = 1  # version of `skipset.json`; docs/use.md describes it
DRAFT_LINE = (
    "As a draft model of its own for llama.cpp: `{}`, then `llama-cli -m model.gguf "
    "-md draft.gguf`."
)
NO_LINE = (
    "llama.cpp prunes whole layers only, and this set is not one of whole layers: there is no such "
    "command for it."
)


class Export(Command):
    """a method for other programs: a custom_generate folder, skipset.json, llama.cpp's prune
    line:  export OUT model=tiny method=self-sd
    """

    WORDS = 1, 1
    NEEDS = "needs one folder to write, as in export OUT model.path=/models/my-llama method=self-sd"


def run_export(asked: Export) -> None:
    """Writes the folder; no weights are loaded."""
    from skipbench.bench.load import depth
    from skipbench.bench.stored_sets import with_stored_set

    config = with_stored_set(compose(asked.settings))
    layers = depth(config.model)
    skip = str(config.method.factory()(layers=layers).skip)
    skip_set = DraftPlan.parse(skip, layers)
    folder, method = Path(asked.words[0]), config.method.name
    overrides = [] if config.method.skip is None else [f"method.skip='{skip}'"]
    line = prune_line(skip_set)
    advice = NO_LINE if line is None else DRAFT_LINE.format(line)
    code = _text("generate.py.txt", method=method, overrides=overrides)
    readme = _text("export.md", model=config.model.name, method=method, llama_cpp=advice)
    files = {
        "custom_generate/generate.py": code,
        "custom_generate/requirements.txt": "skipbench\n",
        "skipset.json": json.dumps(describe(config, skip_set), indent=2) + "\n",
        "README.md": readme,
    }
    for name, text in files.items():
        write_atomic(folder / name, text)
    show(f"skip set: {skip or '(none: the method chooses while it decodes)'}")
    show(advice)
    say(f"written: {', '.join(str(folder / name) for name in files)}")


def _text(name: str, **parts: object) -> str:
    """A file of `texts` with its `{parts}` filled in."""
    return (Path(__file__).parent / "texts" / name).read_text(encoding="utf-8").format(**parts)


def describe(config: RunConfig, skip: DraftPlan) -> dict[str, object]:
    """The contents of `skipset.json`, with the results of the finished run of these settings."""
    from skipbench.experiments.resolve import checked_run, resolve_cell

    model, method, run = config.model, config.method, checked_run(resolve_cell(config))
    measured: dict[str, object] | None = None
    if metrics := run.metrics:
        names = ("samples", "alpha", "M", "accepted_by_position", "rounds")
        measured = {"dataset": config.dataset.name, "device": run.origin.device}
        measured |= {"engine": run.origin.engine, "seconds": metrics.seconds.by_phase}
        measured |= {name: getattr(metrics, name) for name in names}
        measured |= zip(("speedup", "speedup_ci95"), metrics.speedup.headline, strict=True)
    return {
        "format": FORMAT,
        "model": {
            "name": model.name,
            "path": portable(model.path),
            "revision": model.revision,
            "layers": skip.layers,
            "weights_sha256": weights_sha256(model),
        },
        "method": method.name,
        "skip": str(skip),
        "attention": sorted(skip.attention),
        "mlp": sorted(skip.mlp),
        "ratio": skip.ratio,
        "stop": method.node.get("stop"),
        "tree": method.node.get("tree"),
        "llama_cpp": prune_line(skip),
        "measured": measured,
    }


def prune_line(skip: DraftPlan) -> str | None:
    """llama.cpp's command that prunes the layers; `None` where not just whole ones are left out."""
    only_skips = skip == DraftPlan.of(skip.layers, skip.skipped)
    if not only_skips or not skip.attention or skip.attention != skip.mlp:
        return None
    layers = ",".join(map(str, sorted(skip.attention)))
    return f"llama-quantize --prune-layers {layers} model.gguf draft.gguf COPY"
