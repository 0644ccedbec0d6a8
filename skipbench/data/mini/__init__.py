"""The mini datasets: four families of generated text, and the corpus that trains the embedded
model.

Every example is a pure function of (family, seed, index). Two folds of a hash separate training
from evaluation: a prompt in fold 0 is never trained on, and neither is an answer body in fold 0.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from skipbench.data.mini import problems, texts

FAMILIES: dict[str, Callable[[random.Random], tuple[str, str, dict[str, object]]]] = {
    "mini-stories": texts.story,
    "mini-math": problems.word_problem,
    "mini-code": problems.function,
    "mini-summary": texts.news,
}
FOLDS = 16  # one fold in 16 of the prompts, and of the bodies, is kept out of training
_TRAINING_SEED = 20261


class Generated(NamedTuple):
    """A prompt, the body that answers it, and the entries of its scorer."""

    family: str
    prompt: str
    body: str
    reference: dict[str, object]


def _fold(text: str) -> int:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % FOLDS


def is_held_out(prompt: str) -> bool:
    """True if a prompt may only be used for evaluation."""
    return _fold(prompt) == 0


def held_out(family: str, seed: int) -> Iterator[Generated]:
    """Endless evaluation examples: distinct prompts, none of which can occur in training; neither
    can every second body.
    """
    rng, used = random.Random(f"held-out/{family}/{seed}"), set[str]()
    while True:
        example = Generated(family, *FAMILIES[family](rng))
        new = is_held_out(example.prompt) and example.prompt not in used
        if new and (_fold(example.body) == 0) is (len(used) % 2 == 1):
            used.add(example.prompt)
            yield example


def training_document(index: int, weights: dict[str, float]) -> Generated:
    """The `index`-th document of the training stream, its family drawn by `weights`."""
    rng = random.Random(f"train/{_TRAINING_SEED}/{index}")
    family = rng.choices(list(weights), list(weights.values()))[0]
    if family == "drill":
        return Generated("drill", "", problems.drill(rng), {})
    while True:
        example = Generated(family, *FAMILIES[family](rng))
        if not is_held_out(example.prompt) and _fold(example.body) != 0:
            return example
