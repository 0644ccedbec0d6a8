"""One sentence per column. Files of tables hold those of their columns; the terminal `LEGEND`."""

from collections.abc import Iterable

EQ_6 = (
    "M alpha / ((M - 1) c + alpha) (SWIFT Eq. 6) with c = 1 - r, r the mean skipped ratio of the "
    "sets that drafted, and c = 0 for drafts without a forward pass"
)
LEGEND = "columns: python -m skipbench --help columns, or docs/metrics.md"
DEFINITIONS: dict[str, str] = {
    "n": "prompts decoded by both arms; with repeats, times the number of processes.",
    "M": (
        "tokens emitted per verification pass, bonus included; the prefill and its token are in "
        "neither (SWIFT B.3)."
    ),
    "alpha": "accepted draft tokens / draft steps, pooled over all rounds (SWIFT B.3); macro: mean "
    "over samples; chain: only tokens on the chain of first choices, which differs for trees; "
    "cond: accepted / (accepted + rounds that met a rejection), the chance that a token is "
    "accepted once verification comes to it (KnapSpec Eq. 1).",
    "tau": "tokens emitted per round that drafted, bonus included (CLaSp 4).",
    "TPT": "(1 - a^(g+1)) / (1 - a) / (g t_draft + t_target) in tokens/s (KnapSpec Eq. 4): a is "
    "alpha cond, g the mean draft length; a round without a draft emits one token; latencies "
    "profiled in this engine for the sets that drafted, lm_head included; t_draft is 0 for drafts "
    "without a forward pass, g is 0 for vanilla.",
    "E(Spd)": f"{EQ_6} / the same with the measured cost of a draft step and of a verification "
    "pass.",
    "speedup": "decode wall-clock over vanilla on the same samples in the same process, adaptation "
    "included: geometric mean of the per-sample ratios [95 % interval on the logarithms: Student's "
    "t, from 8 samples on the studentised bootstrap; with repeats, of prompts and processes].",
    "speedup by": "micro: sum of tokens / sum of seconds; macro: mean tokens/s (SWIFT); s/token: "
    "mean s/token (Self-SD); end-to-end: micro with the prefill.",
    "search": "the speedup of the prompts that began while the method searched its skip set, and "
    "of those that began behind the end of the search.",
    "tok/s": "decoded tokens per second, pooled, without the prefill: vanilla -> method.",
    "TTFT": "time to first token, in ms: the prefill; p50 / p90 / p99 over the prompts, vanilla -> "
    "method.",
    "TPOT": "time per output token behind the first, in ms: the wall-clock of a round shared by "
    "the tokens that it emitted; p50 / p90 / p99 over all tokens of all prompts, vanilla -> "
    "method.",
    "J/token": "energy of prefill and decoding per emitted token, in joules, vanilla -> method: of "
    "the processor's packages (RAPL) or the GPUs (NVML), idling and other programs included; "
    "unknown where no counter may be read.",
    "lossless": "samples whose tokens are identical to vanilla's under greedy decoding; a tie "
    "first differs where the target's two best logits are equal within rounding; unchecked: "
    "whether it is a tie could not be computed.",
    "by position": (
        "of the rounds with at least i draft steps, the share whose step i was "
        "accepted on the chain."
    ),
    "tau_draft": "accepted draft tokens per round that drafted, without the bonus.",
    "time": "the method's wall-clock by phase, summed over samples.",
    "score": "mean over the samples, vanilla -> method; (n): samples with that label. Shares, and "
    "BLEU in percent: sentence_bleu is a mean over samples, bleu is of the whole corpus.",
    "skipped": (
        "sub-layers that the draft leaves out, mean over samples at their end; ratio, and as a "
        "column: share of all sub-layers. 0 for copies, and for auto and cas-spec, whose sets are "
        "in their traces."
    ),
    "memory": "the most that was allocated at one time during the run.",
    "roofline": (
        "the least time that memory bandwidth allows per token / vanilla's time per decoded token."
    ),
}
PAPER_DEFINITIONS: dict[str, str] = {
    **DEFINITIONS,
    "tokens_per_s": "decoded tokens per second of the method, pooled, without the prefill.",
    "expected_speedup": f"{EQ_6}.",
    "ms_per_token": "1000 / tokens_per_s.",
    "share": "seconds of the phase / seconds of decoding, without the prefill.",
    "memory_gb": (
        "the most that was allocated at one time during the run of both arms, in 10^9 bytes."
    ),
    "ratio": DEFINITIONS["skipped"],
    "ms": (
        "milliseconds of the phase per decoded token; attention and MLP take the shares that the "
        "profiled sub-layers have in a draft step and in a full forward."
    ),
    "us": "microseconds of the phase per decoded token; the threshold update is the adaptation.",
    "random_steps": "sets tried at random, the first ones included.",
    "bayes_steps": "sets tried that Bayesian optimisation suggested.",
    "search_s": "seconds of the search; for SWIFT those of adaptation while it decodes.",
    "search_h": "the same in hours.",
    "search_min": "the same in minutes.",
    "opt_step_ms": "milliseconds of adaptation per optimisation step.",
}
"""Definitions of the columns of the papers' tables."""
SCORE = "the method's score, a mean over the samples."

_COLUMNS_BY_UNIT = {  # "1" is a plain ratio
    "tokens": "M tau max_new_tokens max_steps window",
    "tokens/s": "TPT tokens_per_s",
    "x": "speedup speedup_low speedup_high expected_speedup",
    "ms": "ms opt_step_ms ms_per_token",
    "s": "search_s pass_s",
    "1": "alpha matchness rouge1 rouge2 rougeL pass@1 pass@10 accuracy ratio share memory_saved "
    "alpha_gain speedup_gain correlation threshold target step beta1 beta2 temperature top_p "
    "tau_pruning max_score skipped_share",
    "steps": "beta steps patience search_steps bayes_steps random_steps",
    "rounds": "interval history",
    "count": "shots samples gpus training_steps skipped_layers skipped_attention skipped_mlp",
    "us": "us",
    "h": "search_h",
    "min": "search_min",
    "GB": "memory_gb",
    "points of 10": "score",
}
UNITS = {column: unit for unit, names in _COLUMNS_BY_UNIT.items() for column in names.split()}
# keys whose values are skipbench's ids and stand in `names`
NAMED = ("model", "method", "dataset", "subtask")
_SETTINGS = (
    "temperature top_p max_new_tokens max_length dtype batch sparsity variant stop max_steps "
    "threshold target interval skipped_layers window search_steps tau_pruning set_from "
    "train_tokens statistic phase part"
)
KEYS = {*NAMED, *_SETTINGS.split()}

PERCENT_SCORES = ("bleu", "sentence_bleu")

EMBEDDED_MODEL = "tiny"
STAND_INS = {EMBEDDED_MODEL: "the embedded model", "smollm2-135m": "the model"}
"""Models in place of the papers' at a smaller scale, and the name of their kind in a table."""
MINI_PREFIX = "mini-"


def definitions_for(names: Iterable[str]) -> list[tuple[str, str]]:
    """Name and sentence of those columns that have a definition, in the order of `DEFINITIONS`."""
    wanted = set(names)
    return [(name, text) for name, text in DEFINITIONS.items() if name in wanted]


def caution(models: Iterable[str], datasets: Iterable[str]) -> str | None:
    """The line under a table made with the embedded model or the mini datasets; None for other
    tables.
    """
    parts = []
    if EMBEDDED_MODEL in set(models):
        parts.append(f"the embedded model `{EMBEDDED_MODEL}`")
    if any(name.startswith(MINI_PREFIX) for name in datasets):
        parts.append(f"the embedded `{MINI_PREFIX}*` datasets")
    if not parts:
        return None
    return f"Made with {' and '.join(parts)}: these are not replications of any paper's numbers."
