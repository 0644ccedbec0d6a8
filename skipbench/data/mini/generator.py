"""Examples and training documents of the mini datasets, each a pure function of its seed and
index.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from skipbench.data.mini import code, maths, stories, summary

_Make = Callable[[random.Random], tuple[str, str, dict[str, object]]]
FAMILIES: dict[str, _Make] = {
    "mini-stories": stories.make,
    "mini-math": maths.make,
    "mini-code": code.make,
    "mini-summary": summary.make,
}
FOLDS = 16  # one fold in 16 of the prompts, and of the bodies, is kept out of training
DRILL_SHARE = 0.12
_TRAINING_SEED = 20261


@dataclass(frozen=True)
class Example:
    """A prompt, the body that answers it, and what a scorer needs (`answer`, `tests`, `facts`,
    `names`).
    """

    family: str
    prompt: str
    body: str
    reference: dict[str, object]


def _fold(text: str) -> int:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % FOLDS


def body_hash(family: str, body: str) -> int:
    """32-bit fingerprint of an answer body, as stored in `train_bodies.npy`."""
    return int.from_bytes(
        hashlib.blake2b(f"{family}\n{body}".encode(), digest_size=4).digest(), "big"
    )


def is_held_out(prompt: str) -> bool:
    """Whether a prompt may only be used for evaluation."""
    return _fold(prompt) == 0


def _draw(family: str, rng: random.Random) -> Example:
    return Example(family, *FAMILIES[family](rng))


def held_out(family: str, seed: int) -> Iterator[Example]:
    """Evaluation examples without end: distinct prompts, none of which can occur in training.

    Every second one has a body that cannot occur in training either.
    """
    rng, used = random.Random(f"held-out/{family}/{seed}"), set[str]()
    while True:
        unseen_body = len(used) % 2 == 1
        example = _draw(family, rng)
        while (
            not is_held_out(example.prompt)
            or example.prompt in used
            or (_fold(example.body) == 0) is not unseen_body
        ):
            example = _draw(family, rng)
        used.add(example.prompt)
        yield example


def training_document(index: int, weights: dict[str, float]) -> Example:
    """The `index`-th document of the training stream, its family drawn by `weights`."""
    rng = random.Random(f"train/{_TRAINING_SEED}/{index}")
    family = rng.choices(list(weights), list(weights.values()))[0]
    if family == "drill":
        return Example("drill", "", maths.drill(rng), {})
    while True:
        example = _draw(family, rng)
        if not is_held_out(example.prompt) and _fold(example.body) != 0:
            return example


def drill(rng: random.Random) -> str:
    """A line of bare arithmetic (training only)."""
    return maths.drill(rng)
