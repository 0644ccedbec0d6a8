"""A model and a method ready to decode any prompt, outside of a measured cell."""

import dataclasses
from pathlib import Path
from typing import Any

from skipbench.bench.latency_file import latency_path, stored_latency
from skipbench.bench.load import check_method, check_model, load_model
from skipbench.bench.memory import check_memory
from skipbench.bench.prompts import SCRATCH_ROWS, encode
from skipbench.bench.stored_sets import resolve
from skipbench.config.run_config import RunConfig
from skipbench.data.rows import Row
from skipbench.decode.method import Method
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.models.outline import sized
from skipbench.profile.roofline import device_name

PROFILED_ROWS = 512
"""Cache rows up to which latencies are measured for a method that needs them."""
STEP_ROWS = 512
"""The cache grows in such steps, so that a conversation does not reallocate it at every turn."""


def load_ready(config: RunConfig, method: Method | None = None) -> tuple[LM, Any, Method]:
    """The model, its tokenizer, and the method, with its stored skip set and latencies.

    Args:
        method: instead of the one of `config`, whose values are then not used.

    Raises:
        SkipbenchError: as a run of these settings would, before anything is loaded where the
            settings alone are wrong.
    """
    if method is None:
        config = with_stored_set(config)
    check_model(config.model, config.engine)
    check_memory(sized(config.model), config.dataset, [])
    if method is None:
        check_method(config.model, config.method.factory())
    lm, tokenizer = load_model(config.model, config.engine, config.calibration_rows())
    return lm, tokenizer, method or make_method(config, lm)


def with_stored_set(config: RunConfig) -> RunConfig:
    """Fills in the skip set of `method.skip=stored`.

    Raises:
        SkipbenchError: none is stored.
    """
    method = config.method
    if method.skip is None:
        return config
    skip = resolve(method.skip, config.model, method.name, config.results)
    return dataclasses.replace(config, method=method.with_skip(skip))


def make_method(config: RunConfig, lm: LM) -> Method:
    """The method of `config` for a loaded model; latencies are measured where it needs them."""
    method: Method = with_stored_set(config).method.factory()(layers=lm.layers)
    if method.needs_latency and method.latency_model is None:
        lm.allocate(min(PROFILED_ROWS, lm.max_positions))
        path = latency_path(
            config.model, config.engine, device_name(lm.output_device), Path(config.results)
        )
        with lm.turn():
            method.latency_model = stored_latency(lm, path)
    return method


def encode_prompt(
    lm: LM, tokenizer: Any, prompt: str | list[dict[str, str]], max_new_tokens: int, chat: str
) -> list[int]:
    """Token ids of a text or of messages, and room for them and the output in the cache.

    Args:
        prompt: a text, or messages with `role` and `content`.
        chat: as `bench.prompts.encode` takes it.

    Raises:
        SkipbenchError: no prompt, a message of another form, or one that does not fit.
    """
    if isinstance(prompt, str):
        row = Row("prompt", prompt, {}, {})
    else:
        _check_messages(prompt)
        plain = "\n\n".join(message["content"] for message in prompt)
        row = Row("prompt", plain, {}, {}, messages=tuple(prompt))
    if max_new_tokens < 1:
        raise SkipbenchError(f"{max_new_tokens=}; wanted 1 or more")
    (made,) = encode([row], tokenizer, lm, max_new_tokens, "refuse", chat=chat)
    rows = len(made.ids) + max_new_tokens + SCRATCH_ROWS
    lm.allocate(-(-rows // STEP_ROWS) * STEP_ROWS)
    return made.ids


def _check_messages(messages: list[dict[str, str]]) -> None:
    for message in messages:
        if not (isinstance(message, dict) and {"role", "content"} <= message.keys()):
            raise SkipbenchError(
                f"a message is {str(message)[:80]!r}; wanted a dict with 'role' (system, user, "
                "assistant or tool) and 'content', a text"
            )
    if not messages:
        raise SkipbenchError("no messages; give at least one of the user")
