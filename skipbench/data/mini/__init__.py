"""The mini datasets: four families of generated text, and the corpus that trains the embedded
model.

Every example is a pure function of (family, seed, index). Two folds of a hash keep training and
evaluation apart: a prompt in fold 0 is never trained on, and neither is an answer body in fold 0.
What else a model has seen is known from `train_bodies.npy` beside its checkpoint.
"""

from skipbench.data.mini.generator import (
    FAMILIES,
    Example,
    body_hash,
    drill,
    held_out,
    is_held_out,
    training_document,
)

__all__ = [
    "FAMILIES",
    "Example",
    "body_hash",
    "drill",
    "held_out",
    "is_held_out",
    "training_document",
]
