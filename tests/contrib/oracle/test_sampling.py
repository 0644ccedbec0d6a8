"""Tests of sampled outputs: false alarms at their nominal rate, and faulty samplers found."""

import numpy as np
import pytest
import torch

from skipbench.contrib.oracle.sampling import Draws, SamplingTest, Settings
from skipbench.decode.sampling import Sampler

VOCABULARY, TOKENS = 24, 16
SETTINGS = Settings(0.8, 0.9)
LOGITS = 2 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
"""[V, V], of a language in which each token decides the next one's distribution."""


def probs(settings: Settings) -> np.ndarray:
    return Sampler(*settings).probs(LOGITS).double().numpy()


def drawn(p: np.ndarray, random: np.random.Generator, count: int) -> np.ndarray:
    """`count` outputs by the distributions p [V, V], after token 0: ids [count, TOKENS + 1]."""
    cumulative = p.cumsum(-1)
    out = np.zeros((count, TOKENS + 1), int)
    for at in range(TOKENS):
        spread = random.random((count, 1)) * cumulative[out[:, at], -1:]
        out[:, at + 1] = (cumulative[out[:, at]] <= spread).sum(-1)
    return out


def result_of(out: np.ndarray, settings: Settings = SETTINGS, seed: int = 0) -> SamplingTest:
    draws = Draws(settings, seed)
    for row in out:
        draws.add(row[1:].tolist(), LOGITS[torch.tensor(row[:-1])], torch.float32)
    return draws.result()


def test_correct_engines_pass() -> None:
    p, random = probs(SETTINGS), np.random.default_rng(5)
    results = [result_of(drawn(p, random, 24), seed=seed) for seed in range(12)]
    assert not any(result.outside for result in results)
    assert sum(result.p_value < 0.05 for result in results if result.p_value is not None) < 4


def rejected_kept(random: np.random.Generator, count: int) -> np.ndarray:
    """A draft's token, drawn from another distribution, is kept where it should be drawn again."""
    p, q = probs(SETTINGS), probs(SETTINGS._replace(temperature=1.6))
    out = np.zeros((count, TOKENS + 1), int)
    for row in out:
        for at in range(TOKENS):
            token = random.choice(VOCABULARY, p=q[row[at]] / q[row[at]].sum())
            if p[row[at], token] == 0:  # what the target excludes is not kept
                token = random.choice(VOCABULARY, p=p[row[at]] / p[row[at]].sum())
            row[at + 1] = token
    return out


def test_a_sampler_that_keeps_rejected_tokens_is_found() -> None:
    result = result_of(rejected_kept(np.random.default_rng(1), 200))
    assert result.wrong and result.p_value is not None and result.p_value < 1e-4


@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [
        (SETTINGS, SETTINGS._replace(top_p=1.0), "top-p not applied"),
        (Settings(0.6), Settings(0.36), "temperature applied twice"),
    ],
)
def test_other_settings_are_found_and_named(right: Settings, wrong: Settings, cause: str) -> None:
    result = result_of(drawn(probs(wrong), np.random.default_rng(2), 100), right)
    assert result.wrong and (result.outside > 0) == (right.top_p < 1)
    assert result.cause is not None and result.cause.name == cause
