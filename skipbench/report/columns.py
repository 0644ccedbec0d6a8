"""The columns of a table of runs, a line each: the terminal, all files, `frame` and `--help` read
them here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from skipbench.errors import SkipbenchError
from skipbench.report import values as v
from skipbench.report.compared import replaced
from skipbench.report.values import Ratio, Value, figures, number
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run

ALL, OVER, NOTE = "all", "over", "note"


class Line(NamedTuple):
    """A run in its table."""

    run: Run
    best: Ratio = (None, None)  # its speed over that of the fastest method of its row
    over: Ratio = (None, None)  # and over that of the method of `over=`
    fastest: bool = False  # or not significantly slower, and faster than vanilla

    @property
    def metrics(self) -> Metrics:
        """Empty ones where it has none."""
        return self.run.metrics or Metrics()


@dataclass(frozen=True)
class Column:
    """A column; `of` gives a number, a text, or a `Value` for another form or several numbers."""

    key: str  # in `columns=`, and in `frame`
    heading: str
    of: Callable[[Line], Value | str | float | None]
    definition: str
    shown: Literal["terminal", "files", "asked"] = "terminal"  # asked: by `columns=`
    kind: Literal["label", "number", "text"] = "number"

    def value(self, line: Line) -> Value:
        """What it says of a run; the text of a fraction has about three figures."""
        if isinstance(found := self.of(line), Value):
            return found
        return Value(str(found) if isinstance(found, str | int) else figures(found), {"": found})


def _note(run: Run) -> str:
    if not run.metrics:
        return run.reason or "not run"
    parts = [replaced([run]), run.reason, *v.exceptions(run.metrics)]
    return "; ".join(filter(None, parts))


# fmt: off
COLUMNS = (
    Column("dataset", "dataset", lambda of: of.run.dataset, "of the prompts.", kind="label"),
    Column("model", "model", lambda of: of.run.model, "the model that verifies.", kind="label"),
    Column("method", "method", lambda of: of.run.method, "what drafts.", kind="label"),
    Column("point", "point", lambda of: of.run.label or "",
           "settings of the run that differ in its sweep.", kind="label"),
    Column("n", "n", lambda of: v.count(of.run.metrics),
           "prompts decoded by both arms, in how many questions where these are fewer."),
    Column("speedup", "speedup", lambda of: v.speedup(of.metrics.speedup),
           "vanilla's seconds per token / the method's on the same prompts in the same process, "
           "prefill and adaptation included: geometric mean over questions [95 % interval] or, "
           "below 5, (their values). The turns of a conversation, and the samples of one task, are "
           "one question."),
    Column("best", "over best", lambda of: v.ratio(*of.best),
           "speed / that of the fastest method of its row, vanilla among them: geometric mean over "
           "the questions that all have [95 % interval for all pairs of the row at once]."),
    Column(OVER, "over METHOD", lambda of: v.ratio(*of.over),
           "speed / that of this method in the same row: geometric mean over the questions of both "
           "[95 % interval for this pair alone].", "asked"),
    Column("worst", "worst tenth", lambda of: v.decimals(v.worst_tenth(of.metrics), 2, "x"),
           "the speedup that a tenth of the questions stays below, from 5 questions on.", "files"),
    Column("M", "M", lambda of: of.metrics.M,
           "tokens emitted per verification pass, bonus included; the prefill and its token are in "
           "neither (SWIFT B.3)."),
    Column("passes", "passes / round", lambda of: of.metrics.draft_passes,
           "forward passes that drafted, per verification; a dash where the trace does not tell "
           "them from copies.", "files"),
    Column("rows", "rows / round", lambda of: of.metrics.rows,
           "rows of a verification pass, the pending token, the proposed ones and a method's own; "
           "vanilla has 1.", "files"),
    Column("skipped", "skipped", lambda of: v.decimals(v.skipped(of.metrics)),
           "share of all sub-layers that the draft leaves out, mean over samples at their end; a "
           "dash without draft passes, and for auto, whose sets are in their traces."),
    Column("adapt", "adapt", lambda of: v.decimals(v.adapting(of.metrics), 0, " %", 100),
           "seconds of adaptation / of decoding, such as a search for a skip set.", "files"),
    Column("tokens_per_s", "tok/s",
           lambda of: v.pair(" -> ", figures, vanilla=of.metrics.baseline.tokens_per_s,
                             own=of.metrics.tokens_per_s),
           "decoded tokens per second, pooled, without the prefill: vanilla -> method."),
    Column("lossless", "lossless", lambda of: v.lossless(of.metrics),
           "samples whose tokens are identical to vanilla's under greedy decoding; a tie first "
           "differs where the target's two best logits are equal within rounding; unchecked: "
           "whether it is a tie could not be computed."),
    Column("decode", "decode only",
           lambda of: v.ratio(of.metrics.speedup.paired, of.metrics.speedup.ci95),
           "the speedup without the prefill.", "asked"),
    Column("alpha", "alpha", lambda of: v.decimals(of.metrics.alpha_of_passes, 3),
           "accepted draft tokens / draft passes, pooled over all rounds (SWIFT B.3), where every "
           "step of a draft is a forward pass, of some layers or of a draft model.", "asked"),
    Column("accepted", "accepted share", lambda of: v.decimals(of.metrics.accepted_share, 3),
           "accepted draft tokens / proposed ones, of a tree all its nodes; AIPerf's "
           "`draft_acceptance_rate`.", "asked"),
    Column("tau", "tau", lambda of: of.metrics.tau,
           "tokens emitted per round that drafted, bonus included (CLaSp 4).", "asked"),
    Column("tpt", "TPT", lambda of: of.metrics.tpt,
           "(1 - a^(g+1)) / (1 - a) / (g t_draft + t_target) in tokens/s (KnapSpec Eq. 4): a is "
           "`alpha_cond`, g the mean draft length, 0 for vanilla; a round without a draft emits a "
           "token; latencies profiled in this engine for the sets that drafted, lm_head included; "
           "t_draft is 0 for drafts without a forward pass.", "asked"),
    Column("expected", "E(Spd)",
           lambda of: v.pair(" / ", number, own=of.metrics.expected_speedup.paper,
                             measured=of.metrics.expected_speedup.measured_cost),
           "M alpha / ((M - 1) c + alpha) (SWIFT Eq. 6) with c = 1 - r, r the mean skipped ratio "
           "of the sets that drafted, and c = 0 for drafts without a forward pass / the same with "
           "the measured cost of a draft step and of a verification pass.", "asked"),
    Column("ttft", "TTFT", lambda of: v.waits(of.metrics, "ttft_s"),
           "time to first token, the prefill, in ms: p50 / p90 / p99, vanilla -> method.", "asked"),
    Column("itl", "ITL", lambda of: v.waits(of.metrics, "s_per_output_token"),
           "inter-token latency of all tokens behind the first, in ms: a round's wall-clock shared "
           "by the tokens that it emitted; p50 / p90 / p99, vanilla -> method.", "asked"),
    Column("copy", "low-bit copy",
           lambda of: v.decimals((of.metrics.variant_bytes or 0) / 2**20 or None, 0, " MiB"),
           "MiB of copies of weights in fewer bits for draft passes; arms of a row that read the "
           "same bits share one.", "asked"),
    Column("setup", "set-up", lambda of: v.decimals(of.metrics.setup_s or None, 1, " s"),
           "seconds, once per process and in no other time, in which the method measures prices "
           "and latencies of the machine, and makes its copy of weights in fewer bits.", "asked"),
    Column("score", "score", lambda of: v.scores(of.metrics),
           "mean over the samples, vanilla -> method. Shares, and BLEU in percent: sentence_bleu "
           "is a mean over samples, bleu is of the whole corpus.", "asked"),
    Column(NOTE, NOTE, lambda of: _note(of.run),
           "what is not as usual, or why there are no numbers.", kind="text"),
)
# fmt: on
BY_KEY = {column.key: column for column in COLUMNS}
DEFINITIONS = {column.heading: column.definition for column in COLUMNS}


def check_columns(keys: Sequence[str], known: Sequence[str] = tuple(BY_KEY)) -> None:
    """Raises SkipbenchError for a column that is neither `known`, by default one of a table of
    runs, nor `ALL`.
    """
    if unknown := [key for key in keys if key not in (*known, ALL)]:
        from skipbench.config.explain import did_you_mean  # slow to import

        hint = did_you_mean(unknown[0], [*known])
        wanted = ", ".join([*known, ALL])
        raise SkipbenchError(f"columns={unknown[0]}.{hint} Wanted any of {wanted}")


def chosen(keys: Sequence[str], over: str = "") -> list[Column]:
    """The columns of a table with `columns=keys` and `over=over`: labels, then those of `keys` in
    their order; without keys, those of a table's files.
    """
    named = [BY_KEY[key] for key in dict.fromkeys([*keys, OVER]) if key != ALL]
    if not keys or ALL in keys:
        named = [c for c in COLUMNS if c.shown != "asked" or ALL in keys or c.key == OVER]
    labels = (c for c in COLUMNS if c.kind == "label" and c not in named)
    return [c for c in (*labels, *named) if over or c.key != OVER]


def numbers(values: Mapping[str, Value]) -> dict[str, object]:
    """The numbers of columns, by a column's name and what each adds to it, its own first."""
    found = dict[str, object]()
    for name, of in values.items():
        found |= {name: of.numbers[""]} if "" in of.numbers else {}
        found |= {f"{name} {end}".strip(): number for end, number in of.numbers.items()}
    return found
