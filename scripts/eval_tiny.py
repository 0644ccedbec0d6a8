"""Scores of the embedded model and the spread of its skip sets, for its model card.

    python scripts/eval_tiny.py --prompts 300

Scores: greedy decoding of held-out prompts, split by whether the answer body occurs in training.
Skip sets: the share of the model's own greedy tokens that it still predicts with half of its
sub-layers left out behind the full model's prompt K/V, for random sets, the fixed strategies, and a
set found by greedy search on other prompts.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from skipbench.data.datasets import mini
from skipbench.data.mini import FAMILIES
from skipbench.decode.loop import generate
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.vanilla import Vanilla
from skipbench.models.load import load
from skipbench.scoring.programs import EXECUTED, program_of
from skipbench.scoring.sandbox import run_program
from skipbench.scoring.scorers import score
from skipbench.skipset import fixed_set

TINY = Path("skipbench/models/tiny")
MAX_NEW = {"mini-stories": 192, "mini-math": 64, "mini-code": 96, "mini-summary": 64}


def scores(lm: LM, tokenizer: Any, family: str, prompts: int) -> dict[str, dict[str, float]]:
    """Mean of every score, by whether the answer body was seen in training."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in mini(family, prompts, 1, TINY / "train_bodies.npy"):
        ids = [0, *tokenizer.encode(row.prompt, add_special_tokens=False)]
        out = generate(lm, Vanilla(), ids, MAX_NEW[family], frozenset([1])).tokens
        text = tokenizer.decode(out, skip_special_tokens=True)
        scorer = family.removeprefix("mini-")
        of = score(scorer, text, row.prompt, row.reference)
        if scorer in EXECUTED:
            of = {
                "pass@1": float(run_program(program_of(scorer, text, row.prompt, row.reference)).ok)
            }
        for name, value in of.items():
            for group in ("all", row.groups["body"]):
                found.setdefault(group, {}).setdefault(name, []).append(value)
    return {
        g: {k: round(statistics.mean(v), 3) for k, v in m.items()}
        | {"n": len(next(iter(m.values())))}
        for g, m in found.items()
    }


def greedy_outputs(
    lm: LM, tokenizer: Any, family: str, prompts: int, seed: int
) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, the model's greedy ids) of held-out prompts."""
    made = []
    for row in mini(family, prompts, seed, None):
        ids = [0, *tokenizer.encode(row.prompt, add_special_tokens=False)]
        made.append((ids, generate(lm, Vanilla(), ids, 128, frozenset([1])).tokens))
    return made


@torch.inference_mode()
def agreement(lm: LM, skip: DraftPlan, outputs: list[tuple[list[int], list[int]]]) -> float:
    """Share of greedy tokens that the model predicts again without the sub-layers in `skip`."""
    same = total = 0
    for prompt, out in outputs:
        lm.cache.length = 0
        lm.prefill(prompt)
        choice = (
            lm.logits(out[:-1], TokenRows.chain(len(prompt), len(out) - 1), skip)
            .argmax(-1)
            .tolist()
        )
        same += sum(a == b for a, b in zip(choice, out[1:], strict=True))
        total += len(out) - 1
    return same / total


def searched(lm: LM, size: int, outputs: list[tuple[list[int], list[int]]]) -> DraftPlan:
    """Greedy search: `size` times the sub-layer whose loss costs least agreement."""
    skipped: set[int] = set()
    while len(skipped) < size:
        trials = {
            s: agreement(lm, DraftPlan.of(lm.layers, skipped | {s}), outputs)
            for s in range(lm.sublayers)
            if s not in skipped
        }
        skipped.add(max(trials, key=lambda s: trials[s]))
    return DraftPlan.of(lm.layers, skipped)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--model", default=str(TINY))
    args = parser.parse_args()
    torch.set_num_threads(1)
    lm, tokenizer = load(args.model, engine="fused")
    lm.allocate(512)
    for family in FAMILIES:
        print(family, json.dumps(scores(lm, tokenizer, family, args.prompts)), flush=True)
    outputs = {f: greedy_outputs(lm, tokenizer, f, 40, 7) for f in ("mini-stories", "mini-summary")}
    dev = [x for f in outputs for x in greedy_outputs(lm, tokenizer, f, 8, 8)]
    sets = {f"random {seed}": fixed_set("random", lm.layers, 0.5, seed) for seed in range(20)}
    sets |= {
        kind: fixed_set(kind, lm.layers, 0.5) for kind in ("uniform", "first", "middle", "last")
    }
    sets["searched"] = searched(lm, lm.layers, dev)
    for family, out in outputs.items():
        values = {name: agreement(lm, skip, out) for name, skip in sets.items()}
        drawn = [v for k, v in values.items() if k.startswith("random")]
        rest = {k: round(v, 3) for k, v in values.items() if not k.startswith("random")}
        print(
            family,
            "random mean",
            round(statistics.mean(drawn), 3),
            "best",
            round(max(drawn), 3),
            rest,
            flush=True,
        )
    print("searched set:", sets["searched"])


if __name__ == "__main__":
    main()
