"""The forest plots on top of the page: which runs they hold, and what they say to take."""

from msgspec import structs

from skipbench.metrics.interval import paired_ratio_interval
from skipbench.report.page.forest import ROOM, panels
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.run import Origin, Run

VANILLA = (0.99, 1.01, 1.0, 1.02, 0.98, 1.0)
FAST = (1.2, 1.31, 1.24, 1.26, 1.25, 1.24)
CLOSE = tuple(r * 0.99 + 0.02 * (i % 2) for i, r in enumerate(FAST))


def run(method: str, *ratios: float, dataset: str = "d", **more: object) -> tuple[str, Run]:
    mean, ends = paired_ratio_interval(ratios)
    by_question = {str(i): ratio for i, ratio in enumerate(ratios)}
    speedup = Speedup(e2e=mean, e2e_ci95=ends, by_question=by_question)
    metrics = Metrics(samples=len(ratios), speedup=speedup)
    name = f"{method}-{dataset}"
    made = Run(id=name, model="m", dataset=dataset, method=method, metrics=metrics, **more)  # type: ignore[arg-type] # fields of Run
    return f"#run={name}", made


def test_the_best_and_those_as_good_are_taken() -> None:
    slow = [0.5 * r for r in FAST]
    runs = [run("vanilla", *VANILLA), run("c", *slow), run("b", *CLOSE), run("a", *FAST)]
    panel, few = panels([*runs, run("a", *FAST[:4], dataset="e")])
    assert panel.title == "m on d" and few.title == "m on e"
    again = structs.replace(runs[-1][1], id="again")  # of other settings
    assert "from a" not in panels([*runs, ("#again", again)])[0].verdict
    assert panel.verdict == "take a, 1.25x [1.19, 1.31] of vanilla; not told apart from b"
    arms = {arm.name: arm for arm in panel.arms}
    assert list(arms) == ["a", "b", "vanilla", "c"] and arms["c"].address == "#run=c-d"
    assert [name for name, arm in arms.items() if arm.take] == ["a", "b"]
    assert panel.noise is not None and panel.noise == arms["vanilla"].ends
    one = dict(panel.ticks)["1x"]
    assert panel.noise[0] < one < panel.noise[1] < arms["b"].at < arms["a"].at
    assert few.verdict.startswith("nothing can be told apart") and not few.arms[0].take
    (noise,) = panels([run("vanilla", *VANILLA), run("c", *slow)])
    assert [arm.name for arm in noise.arms if arm.take] == ["vanilla"]


def test_a_run_of_a_few_prompts_keeps_no_other_from_a_verdict() -> None:
    (panel,) = panels([run("vanilla", *VANILLA), run("a", *FAST), run("b", 1.5, 1.4)])
    assert panel.verdict.startswith("take a, 1.25x") and panel.arms[0].name == "b"
    assert [arm.name for arm in panel.arms if arm.take] == ["a"]


def test_an_interval_does_not_stretch_the_axis() -> None:
    (panel,) = panels([run("a", 0.2, 8.0, 0.3, 9.0, 1.0), run("b", *FAST)])
    ends = panel.arms[0].ends
    assert ends == (0.0, 100.0) and max(float(text[:-1]) for text, _ in panel.ticks) < 1.5 * ROOM


def test_a_run_stands_once_and_apart_from_others_of_its_method() -> None:
    address, one = run("a", *FAST, keys={"subtask": "qa"})
    _, same = run("a", *FAST, keys={"subtask": "rag"})
    other = Run(**{n: getattr(one, n) for n in ("model", "dataset", "method", "metrics")}, id="x_7")
    (panel,) = panels([(address, one), ("#table-t", same), ("#table-u", other)])
    named = [(arm.name, arm.address) for arm in panel.arms]
    assert named == [("a a-d", "#run=a-d"), ("a 7", "#table-u")]


def test_other_machines_and_precisions_have_panels_of_their_own() -> None:
    origins = [Origin(cpu=cpu, device="cpu", dtype=d) for cpu, d in ("Ab", "Bb", "Bf")]
    runs = [run("a", *FAST, origin=origin) for origin in origins]
    ones = [one for _, one in runs]
    numbered = [(at, structs.replace(one, id=at)) for at, one in zip("xyz", ones, strict=True)]
    titles = [panel.title for panel in panels(numbered)]
    assert titles == ["m on d, b, A", "m on d, b, B", "m on d, f, B"]


def test_other_engines_and_temperatures_have_panels_of_their_own() -> None:
    """A method on one engine is not compared with vanilla on another."""
    rows = [("fused", 0), ("reference", 0), ("reference", 1)]
    runs = [
        run("a", *FAST, dataset="d", origin=Origin(engine=engine), keys={"temperature": warm})
        for engine, warm in rows
    ]
    named = [(f"{n}", structs.replace(one, id=f"{n}")) for n, (_, one) in enumerate(runs)]
    assert [(panel.title, len(panel.arms)) for panel in panels(named)] == [
        ("m on d, greedy, fused", 1),
        ("m on d, greedy, reference", 1),
        ("m on d, temperature 1, reference", 1),
    ]
