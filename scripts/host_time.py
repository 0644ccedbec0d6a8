"""Milliseconds per round that a method spends outside of the model: trees, counters, choices.

    python scripts/host_time.py TOKENS PROMPTS [overrides...]

The calls of the model are timed from outside; on a GPU, where they return early, the result means
nothing. What a method measures before its first round is left out by a short prompt before.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from skipbench.bench.load import load_model, make_method, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla


class Timer:
    """Seconds in the outermost of the calls that it wraps."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside, began = True, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began
                self._inside = False

        return timed


def main(tokens: int, limit: int, overrides: list[str]) -> None:
    config = compose([*overrides, f"limit={limit}", f"dataset.max_new_tokens={tokens}"])
    lm, tokenizer = load_model(config.model, config.engine)
    method = make_method(config, lm)
    prompts = prepare(lm, tokenizer, config.dataset.rows(limit), config.dataset)
    timer = Timer()
    for name in ("score", "logits", "run", "head", "embed", "prefill"):
        setattr(LM, name, timer.wrap(getattr(LM, name)))
    for arm in (Vanilla(), method):
        generate(lm, arm, prompts[0].ids, 8)
        timer.seconds, total_s, prefill_s, rounds = 0.0, 0.0, 0.0, 0
        for prompt in prompts:
            out = generate(lm, arm, prompt.ids, tokens, eos_ids(lm))
            total_s += sum(out.seconds.values())
            prefill_s += out.seconds["prefill"]
            rounds += len(out.rounds)
        outside_s = total_s - timer.seconds
        outside_ms, share = 1e3 * outside_s / rounds, outside_s / (total_s - prefill_s)
        print(f"{arm.name}: {rounds} rounds, {outside_ms:.2f} ms outside per round, {share:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokens", type=int, help="per output")
    parser.add_argument("prompts", type=int)
    parser.add_argument("overrides", nargs="*")
    main(*vars(parser.parse_args()).values())
