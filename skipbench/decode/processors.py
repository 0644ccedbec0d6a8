"""Hugging Face's logits processors and stopping criteria around the loop."""

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from skipbench.decode.draft import Draft, Finish, Process
from skipbench.decode.loop import Step


def process_by(processors: Sequence[Any], device: torch.device) -> Process | None:
    """The processors over every row of a verification, each after the tokens before it, so that the
    distribution that verification samples from is the processed one; `None` without any.
    """
    return partial(_processed, processors, device) if processors else None


def _processed(
    processors: Sequence[Any],
    device: torch.device,
    committed: list[int],
    draft: Draft,
    logits: Tensor,
) -> Tensor:
    """As `decode.draft.Process`; rows that no token is chosen from stay as they are."""
    rows, paths = logits.float().clone(), [committed]
    for node, parent in enumerate(draft.parents()[: draft.num_verifiable]):
        paths.append([*paths[parent + 1], draft.tokens[node]])
    for row, path in enumerate(paths):
        ids, scores = torch.tensor([path], device=device), rows[row : row + 1].to(device)
        for processor in processors:
            scores = processor(ids, scores)
        rows[row] = scores[0].to(rows.device)
    return rows


def until(
    steps: Generator[Step, None, Finish | None],
    prompt: Sequence[int],
    criteria: Iterable[Any],
    device: torch.device,
) -> Generator[Step, None, Finish | Literal["stop"] | None]:
    """The steps up to the token after which a stopping criterion holds, none after it."""
    tokens, criteria = list(prompt), list(criteria)
    try:
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # of `steps`
            for at, token in enumerate(step.tokens if criteria else (), 1):
                tokens.append(token)
                ids = torch.tensor([tokens], device=device)
                if any(bool(torch.as_tensor(one(ids, None)).all()) for one in criteria):
                    yield step.cut(at)
                    return "stop"
            yield step
    finally:
        steps.close()
