"""A row: on every prompt vanilla and each method, the arms, decode once, one after another, in an
order that is balanced over the prompts.
"""

import copy
import math
import random
import statistics
import time
from collections.abc import Sequence

from skipbench.bench.arm import Bench, Decoded, sample_of
from skipbench.bench.prompts import Prompt
from skipbench.console import note, progress
from skipbench.decode.method import Method
from skipbench.methods.vanilla import Vanilla
from skipbench.runs.record import speedups
from skipbench.runs.state import defer_signals

VANILLA = "vanilla"


def decode_missing(*benches: Bench, deadline: float = math.inf) -> None:
    """Decodes for each arm the prompts that it has no sample of. The arms that lack a prompt take
    one turn on it, vanilla among them, and each stores a sample with its own tokens and times and
    with vanilla's of this turn.

    A method that carries state across prompts goes on from the state in its last record. A later
    turn of a conversation comes after vanilla's answer to the turn before it, for all arms.
    `deadline`: time of `time.monotonic` after which no further prompt begins.
    """
    longest = max((bench.prompts for bench in benches), key=len)
    indices = range(len(longest))
    lacking = {i: [b for b in benches if i < len(b.prompts) and i not in b.done] for i in indices}
    missing = [i for i in indices if lacking[i]]
    _warm_up(benches, missing)
    with progress("prompts", len(indices), len(indices) - len(missing)) as advance:
        for index in missing:
            turns: dict[str, list[Bench]] = {}
            for bench in lacking[index]:  # one turn, unless their answers or rows differ
                if bench.error is None:
                    turns.setdefault(bench.prompt(index).hash, []).append(bench)
            for turn in turns.values():
                _turn(turn, index)
            if all(bench.error is not None for bench in benches) or time.monotonic() > deadline:
                break
            advance(_so_far(benches))
    for bench in benches:
        bench.samples.sort(key=lambda s: s.index)


def _warm_up(benches: Sequence[Bench], missing: Sequence[int]) -> None:
    """Vanilla and a copy of each method decode the first prompts, before anything is timed; then
    each method measures what it needs of the machine.
    """
    for bench in benches:
        after = {i: bench.prompts[i].example.after for i in missing if i < len(bench.prompts)}
        ready = [i for i, turn in after.items() if turn is None or turn in bench.answers]
        for index in ready[: bench.config.engine.warmup]:
            prompt = bench.prompt(index)
            if bench is benches[0]:
                bench.decode(Vanilla(), prompt, index)
            _attempt(bench, copy.deepcopy(bench.method), prompt, index)
        bench.prices.passes.clear()
        if missing:
            bench.prepare()


def _attempt(
    bench: Bench, method: Method, prompt: Prompt, index: int, reference: list[int] | None = None
) -> Decoded | None:
    """Decodes a prompt; None if the method fails where other arms go on."""
    try:
        return bench.decode(method, prompt, index, reference)
    except Exception as error:  # kept in the record of this arm, and raised where it is alone
        if not bench.others:
            raise
        bench.error = error
        return None


def _turn(benches: Sequence[Bench], index: int) -> None:
    """Decodes a prompt by vanilla and every arm, and stores a sample per arm. After a signal no
    other arm begins: those that are done are stored, with vanilla's part.
    """
    arms = {bench.store.folder.name: bench for bench in benches}
    prompt, first = benches[0].prompt(index), benches[0]
    done: dict[str, Decoded] = {}
    order, forced = arm_order(first.config.seed, list(arms), index), first.config.teacher_forced
    if forced:  # its tokens come first
        order.sort(key=lambda name: name != VANILLA)
    timed_from = _captured_ahead(first, prompt)
    with defer_signals() as asked:
        for name in order:
            if name == VANILLA:
                done[name] = first.decode(Vanilla(), prompt, index)
            elif not asked or not done.keys() - {VANILLA}:
                reference = done[VANILLA].arm.tokens if forced else None
                decoded = _attempt(arms[name], arms[name].method, prompt, index, reference)
                done |= {} if decoded is None else {name: decoded}
        vanilla = done[VANILLA].arm
        if late := first.lm.engine.captured()[0] - timed_from:
            note(f"{late} CUDA graphs captured in the timed rounds of prompt {index}")
        for name in [n for n in done if n != VANILLA]:
            bench = arms[name]
            others = {n: arm.config.method.name for n, arm in arms.items()}
            shown = others | {VANILLA: VANILLA, name: "method"}
            went = [shown[n] for n in done]
            bench.add(*sample_of(bench, prompt, index, went, vanilla, done[name]))
            bench.peak_bytes = max(bench.peak_bytes, done[name].peak_bytes)


def _captured_ahead(bench: Bench, prompt: Prompt) -> int:
    """Captures the graphs of a turn before its clocks run; how many there are then."""
    engine, before = bench.lm.engine, bench.lm.engine.captured()
    start = len(prompt.ids)
    engine.capture_ahead(start, start + bench.config.dataset.max_new_tokens)
    graphs, seconds = engine.captured()
    if graphs > before[0]:
        took = f"in {seconds - before[1]:.1f} s"
        note(f"{graphs - before[0]} CUDA graphs captured {took} before the next prompt")
    return graphs


def arm_order(seed: int, names: Sequence[str], index: int) -> list[str]:
    """Order of vanilla and the arms at a prompt, by the arguments alone, so that a run that goes on
    keeps it. Over each block of prompts, as many as there are arms or, of an odd number, twice as
    many, every arm is at every place equally often, and equally often right after every other one:
    Williams (1949). Arms are drawn anew for each block.
    """
    arms = [*sorted(names), VANILLA]
    count = len(arms)
    zigzag = [(i // 2 + 1 if i % 2 else -(i // 2)) % count for i in range(count)]
    square = [[(place + shift) % count for place in zigzag] for shift in range(count)]
    square += [order[::-1] for order in square] if count % 2 else []
    block, place = divmod(index, len(square))
    random.Random(f"{seed}/{'/'.join(sorted(names))}/{block}").shuffle(arms)
    return [arms[i] for i in square[place]]


def _so_far(benches: Sequence[Bench]) -> str:
    """The fastest arm so far."""
    means = {}
    for bench in benches:
        if ratios := speedups(bench.samples).values():
            means[bench.config.method.name] = statistics.geometric_mean(ratios)
    if not means:
        return ""
    best = max(means, key=means.__getitem__)
    of = f" over vanilla by {best}, the fastest of {len(means)}" if len(means) > 1 else ""
    return f"speedup so far {means[best]:.2f}x{of}"
