"""Recorded values of the papers' published code, and the checkpoints they were computed on, where
that folder is at hand.
"""

import functools
import json
from typing import Any

import pytest
from conftest import SHARED

from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.models.load import load

NEEDS_RECORDS = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder of recorded values is not beside this checkout"
)
MODELS = (
    "stories260K",
    "babyllama-361",
    "babyllama-361-deep12-noop",
    "babyllama-361-deep12-jitter",
)


@functools.cache
def golden(name: str) -> Any:
    return json.loads((SHARED / "golden" / f"{name}.json").read_text())


@functools.cache
def checkpoint(name: str, engine: str = "fused") -> LM:
    lm, _ = load(str(SHARED / "models" / name), engine=engine)
    lm.allocate(512)
    return lm


def ties(name: str) -> bool:
    """Whether the checkpoint's identity layers tie exactly, so that rounding decides between
    sets.
    """
    return name.endswith("noop")


def skip_of(lm: LM, attention: list[int], mlp: list[int]) -> DraftPlan:
    return DraftPlan.of(lm.layers, [2 * i for i in attention] + [2 * i + 1 for i in mlp])
