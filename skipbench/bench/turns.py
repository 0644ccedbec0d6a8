"""A row: on every prompt vanilla and each method, the arms, decode once, one after another, in an
order that is balanced over the prompts.
"""

import copy
import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence

from skipbench.bench.arm import ArmRunner, Decoded, judged, scored
from skipbench.bench.prompts import Prompt
from skipbench.console import note, progress
from skipbench.decode.method import Method
from skipbench.methods.vanilla import Vanilla
from skipbench.runs.record import VANILLA, Texts, Turn, paired
from skipbench.runs.state import defer_signals
from skipbench.runs.store import append_turn


def decode_missing(*runners: ArmRunner, deadline: float = math.inf) -> None:
    """Decodes for each arm the prompts that it lacks. The arms that lack a prompt take one turn on
    it, vanilla among them, which is stored as a whole.

    A method that carries state across prompts goes on from the state in its last turn. A later turn
    of a conversation comes after vanilla's answer to the turn before it, for all arms. `deadline`:
    time of `time.monotonic` after which no further prompt begins.
    """
    longest = max(len(runner.prompts) for runner in runners)
    lacking = {at: [r for r in runners if at in r.missing] for at in range(longest)}
    missing = [at for at in lacking if lacking[at]]
    _warm_up(runners, missing)
    with progress("prompts", longest, longest - len(missing)) as advance:
        for index in missing:
            turns: dict[str, list[ArmRunner]] = {}
            for runner in lacking[index]:  # one turn, unless their answers differ
                if runner.error is None:
                    turns.setdefault(runner.prompt(index).hash, []).append(runner)
            for turn in turns.values():
                _turn(turn, index)
            if all(r.error is not None for r in runners) or time.monotonic() > deadline:
                break
            advance(_so_far(runners))
    for runner in runners:
        runner.turns.sort(key=lambda turn: turn.index)


def _warm_up(runners: Sequence[ArmRunner], missing: Sequence[int]) -> None:
    """Vanilla and a copy of each method decode the first prompts, before anything is timed; then
    each method makes what it keeps of the weights.
    """
    for runner in runners:
        after = {i: runner.prompts[i].example.after for i in missing if i < len(runner.prompts)}
        ready = [i for i, turn in after.items() if turn is None or turn in runner.answers]
        for index in ready[: runner.config.engine.warmup]:
            prompt = runner.prompt(index)
            if runner is runners[0]:
                runner.decode(Vanilla(), prompt, index)
            _attempt(runner, copy.deepcopy(runner.method), prompt, index)
        if missing:
            runner.prepare()


def _attempt(
    runner: ArmRunner,
    method: Method,
    prompt: Prompt,
    index: int,
    reference: list[int] | None = None,
) -> Decoded | None:
    """Decodes a prompt; None if the method fails where other arms go on."""
    try:
        return runner.decode(method, prompt, index, reference)
    except Exception as error:  # kept in the record of this arm, and raised where it is alone
        if not runner.others:
            raise
        runner.error = error
        return None


def _turn(runners: Sequence[ArmRunner], index: int) -> None:
    """Decodes a prompt by vanilla and every arm, and stores the turn. After a signal no other arm
    begins: those that are done are stored.
    """
    by_name, first = {runner.name: runner for runner in runners}, runners[0]
    prompt, done = first.prompt(index), dict[str, Decoded]()
    order, forced = arm_order(first.config.seed, list(by_name), index), first.config.teacher_forced
    if forced:  # its tokens come first
        order.sort(key=lambda name: name != VANILLA)
    timed_from = _captured_ahead(first, prompt)
    with defer_signals() as asked:
        for name in order:
            if name == VANILLA:
                done[name] = first.decode(Vanilla(), prompt, index)
            elif not asked or not done.keys() - {VANILLA}:
                reference = done[VANILLA].arm.tokens if forced else None
                runner = by_name[name]
                decoded = _attempt(runner, runner.method, prompt, index, reference)
                done |= {} if decoded is None else {name: decoded}
        if late := first.lm.engine.captured().graphs - timed_from:
            note(f"{late} CUDA graphs captured in the timed rounds of prompt {index}")
        _store([by_name[name] for name in done if name != VANILLA], prompt, index, done)


def _store(
    runners: Sequence[ArmRunner], prompt: Prompt, index: int, done: Mapping[str, Decoded]
) -> None:
    """Stores a turn, where an arm beside vanilla has decoded it."""
    if not runners:
        return
    example, vanilla = prompt.example, done[VANILLA].arm
    made = {VANILLA: scored(runners[0], prompt, vanilla)}
    made |= {runner.name: judged(runner, prompt, vanilla, done[runner.name]) for runner in runners}
    said = {name: text for name, (_, text) in made.items()}
    turn = Turn(
        index=index,
        id=example.id,
        prompt_hash=prompt.hash,
        prompt_tokens=len(prompt.ids),
        order=[*done],
        arms={name: made[name][0] for name in done if name in made},
        groups=example.groups | ({"prompt": "cut"} if prompt.cut else {}),
        question=example.question,
    )
    texts = Texts(index, example.id, example.prompt, example.reference, said)
    append_turn(runners[0].store.folder.parent, turn, texts)
    for runner in runners:
        runner.add(turn, said[VANILLA])
        runner.peak_bytes = max(runner.peak_bytes, done[runner.name].peak_bytes)


def _captured_ahead(runner: ArmRunner, prompt: Prompt) -> int:
    """Captures the graphs of a turn before its clocks run; how many there are then."""
    engine, before = runner.lm.engine, runner.lm.engine.captured()
    start = len(prompt.ids)
    engine.capture_ahead(start, start + runner.config.dataset.max_new_tokens)
    now = engine.captured()
    if new := now.graphs - before.graphs:
        took, held = f"in {now.seconds - before.seconds:.1f} s", f"all take {now.mib:.0f} MiB"
        note(f"{new} CUDA graphs captured {took} before the next prompt; {held}")
    return now.graphs


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


def _so_far(runners: Sequence[ArmRunner]) -> str:
    """The fastest arm so far."""
    means = {}
    for runner in runners:
        if ratios := paired(runner.turns, VANILLA, runner.name).values():
            means[runner.config.method.name] = statistics.geometric_mean(ratios)
    if not means:
        return ""
    best = max(means, key=means.__getitem__)
    if len(means) > 1 and best == "vanilla":
        return "so far no method is ahead of vanilla"
    of = f" over vanilla by {best}, the fastest of {len(means)}" if len(means) > 1 else ""
    return f"speedup so far {means[best]:.2f}x{of}"
