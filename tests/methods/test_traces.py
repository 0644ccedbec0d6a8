"""What every method does on the embedded model, held against traces in the repository: per prompt
the counts of each round, the last skip set and the method's own log. Drafted tokens are not among
them; the output is, and is vanilla's in every greedy case.

In float64, so that rounding of no machine decides between two tokens. The traces were made by this
project itself: they do not prove a method right, they show when it changes. After a change that is
meant: `PYTHONPATH=tests:. python tests/methods/test_traces.py`.
"""

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import here, make_method, rest_slow
from transformers import AutoModelForCausalLM, AutoTokenizer

from skipbench.config.catalog import choices
from skipbench.config.paths import PACKAGE
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.lm.model import LM

FILE = Path(__file__).parents[1] / "traces.json"
TINY = PACKAGE / "models" / "tiny"
PROMPTS = ("Once there was a dog and", "Tom has 3 apples and buys 4.", "The dog had a red ball")
TOKENS = 32
PRICES = ("method.stop.row_prices=[1,1.02,1.04,1.1,1.2,1.4]",)
SWIFT = ("method.steps=6", "method.window=8")
# The project's methods, not those of a folder outside of the tree. Self-SD_c is Self-SD with
# another set, and both are given one here; a draft model is a second checkpoint.
LEFT_OUT = {"self-sd-c", "draft-model"}
OWN = sorted({*choices("method")} - LEFT_OUT)
CASES: dict[str, tuple[str, ...]] = {
    **{name: () for name in OWN},
    "swift": SWIFT,
    **dict.fromkeys(here(["int8"]), PRICES),
    "swift tree": (*SWIFT, "method.tree=[10,5,3,1]"),
    "swift code": (*SWIFT, "method.initial=odd", "method.register=raw", "method.rescore=false"),
    "uniform tree": ("method.ratio=0.3", "method.tree=[4,3,2,1]"),
    "clasp sublayer": ("method.unit=sublayer", "method.start=full"),
    "knapspec code": ("method.start=full", "method.protect_ends=true", "method.drop_first=true"),
    "self-sd code": ("method.stop.first_beta1=code", "method.stop.full_length_guard=true"),
    "prompt-lookup code": ("method.occurrence=first", "method.continuation=full"),
    "uniform sampling": ("method.ratio=0.3", "method.stop.threshold=0.3"),
    "uniform code sampling": (
        *("method.ratio=0.3", "method.stop.threshold=0.3", "method.stop.confidence=sampled"),
    ),
}


@functools.cache
def tiny() -> tuple[LM, Any]:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float64).eval()
    lm = LM(model, "fused")
    lm.allocate(480)
    return lm, AutoTokenizer.from_pretrained(TINY)


def trace(case: str, prompts: int = len(PROMPTS)) -> list[dict[str, Any]]:
    """Per prompt: the output, the counts of each round, and the method's own quantities."""
    lm, tokenizer = tiny()
    method = make_method(case.split()[0], *CASES[case], layers=lm.layers)
    found = []
    for seed, prompt in enumerate(PROMPTS[:prompts]):
        sampler = Sampler(1.0, seed=seed) if case.endswith("sampling") else None
        out = generate(lm, method, tokenizer(prompt)["input_ids"], TOKENS, sampler=sampler)
        rounds = [[r.steps, r.nodes, r.accepted, r.chain, r.emitted] for r in out.rounds]
        own = {"rounds": rounds, "skip": str(method.skip), "log": method.trace()}
        found.append({"tokens": out.tokens, **own})
    kept: list[dict[str, Any]] = json.loads(json.dumps(found))
    return kept


def same(found: Any, wanted: Any) -> bool:
    """Equality, of numbers with a point up to rounding."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-6)
    return bool(found == wanted)


# What keeps or searches something, a tree, one that samples, and what no other case shows.
DAILY = (
    *("asd", "auto", "clasp", "del", "knapspec", "layerskip", "lookahead", "recycling", "suffix"),
    *("swift tree", "uniform", "uniform sampling"),
)

# What these carry from prompt to prompt shows in the second, or in the third.
LATER = {"auto": 2, "knapspec": 3, "swift tree": 2}


@pytest.mark.parametrize("case", rest_slow(CASES, DAILY.__contains__))
def test_a_method_proposes_what_it_proposed(case: str) -> None:
    """Every day over one prompt where that shows a method at work: what it carries to the next
    is in the contract; KnapSpec rejects nothing before the third.
    """
    prompts = LATER.get(case, 1) if case in DAILY else len(PROMPTS)
    found, wanted = trace(case, prompts), json.loads(FILE.read_text())[case][:prompts]
    for prompt, (now, before) in enumerate(zip(found, wanted, strict=True)):
        for key in before:
            assert same(now[key], before[key]), f"prompt {prompt}, {key}: {now[key]}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = (f"{json.dumps(case)}: {json.dumps(trace(case))}" for case in CASES)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
