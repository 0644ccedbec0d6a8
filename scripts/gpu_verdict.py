"""What ran of a GPU report, what of it is wrong, and whether `cuda_graphs` is the engine to take
where a CUDA device is: gates over the lines that its steps printed. It needs Python alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scripts.gpu_predictions import card_of, predictions

Found = dict[str, Any]  # a line of JSON that a step printed
Steps = Sequence[Mapping[str, Any]]

ROWS = 10_000  # that are verified together and alone
EXACT, ROUNDED = 1e-4, 1.5
"""Most that logits of graphs are off in float32; in half precision, times what fused's are."""
GRAPHS_GIB, COLD_S, WARM_S = 2.0, 60.0, 20.0
"""Most that graphs may cost: memory, and seconds to the first token with an empty cache of kernels
and with a full one. A user of one prompt pays them.
"""
ALPHA = 0.99
TROUBLE = ("used instead", "left out", "no memory left", "not strict", "cannot be kept")
"""What notes say of an engine that is not what was asked for."""
MISSING = "not measured"


def lines(steps: Steps, **having: Any) -> list[Found]:
    """Lines of all steps that have these values."""
    every = [line for step in steps for line in step["found"]]
    return [x for x in every if all(x.get(key) == value for key, value in having.items())]


# What is wrong with a line, in words; empty or None where nothing is.


def replaced(line: Found) -> str | None:
    asked = line.get("engine_asked")
    return f"engine {line['engine']} in place of {asked}" if asked else None


def noted(line: Found) -> str | None:
    said = str(line.get("notes") or "")
    return said if any(word in said for word in TROUBLE) else None


def lacking(line: Found) -> str | None:
    return f"no {line['lacking']} among the kernels of a pass" if line.get("lacking") else None


def refused(line: Found) -> str | None:
    if "refused" in line and line.get("engine") != "fused":  # whose libraries may not keep it
        return f"strict refused, cuda_graphs: {line['refused']}"
    loose = line.get("table") == "start" and line["engine"] == "cuda_graphs" and not line["strict"]
    return "not strict in half precision" if loose and line["dtype"] != "float32" else None


def differing(line: Found) -> str | None:
    if not (line.get("strict") and line.get("differing")):
        return None
    of = f"{line['differing']} of {line['compared']:,} rows differ"
    return f"{of}, {line['engine']}, {line['dtype']}: {line['first']}, by {line['gap']:.3g}"


def apart(line: Found) -> str | None:
    if line.get("table") != "logits":
        return None
    most = EXACT if line["dtype"] == "float32" else ROUNDED * line["fused"]
    off = f"logits are off by {line['graphs']:.2g} in {line['dtype']}, wanted at most {most:.2g}"
    return None if line["graphs"] <= most else f"{off}; those of fused by {line['fused']:.2g}"


def diverged(line: Found) -> str | None:
    kinds = (line.get("metrics") or {}).get("lossless", {})
    bad = [f"{kinds[k]} {k}" for k in ("diverged", "unchecked", "failed") if kinds.get(k)]
    return f"outputs of {line['method']}: {', '.join(bad)}" if bad else None


def parted(line: Found) -> str | None:
    """Texts of one engine, or in float32 of both, that are not equal."""
    texts, exact = line.get("texts"), line.get("dtype") == "float32"
    judged = {"equal": True, "as vanilla": exact or line.get("strict"), "as fused": exact}
    bad = [
        f"{line[k]} of {texts} texts {k}"
        for k in judged
        if judged[k] and line.get(k, texts) != texts
    ]
    return f"{line.get('method') or line['table']}, {', '.join(bad)}" if bad else None


def drafted(line: Found) -> str | None:
    alpha = line.get("alpha") if line.get("method") == "planted" else None
    low = alpha is not None and alpha < ALPHA
    return f"alpha of the planted set is {alpha:.3f}, wanted {ALPHA}" if low else None


def allocated(line: Found) -> str | None:
    made = line.get("allocations")
    return f"{made} device allocations in long texts, wanted none" if made else None


def tested(line: Found) -> str | None:
    bad = line.get("outcome") in ("failed", "error")
    return f"test {line['test']}: {line['why']}" if bad else None


def undone(steps: Steps) -> list[str]:
    bad = (s for s in steps if s["state"] != "done")
    return [": ".join(filter(None, (s["name"], s["state"], s["why"]))) for s in bad]


def unforeseen(steps: Steps) -> list[str]:
    """Figures outside of what was predicted for this card, or that a step did not print."""
    done, found = {step["name"]: step for step in steps if step["state"] == "done"}, list[str]()
    gpu = any("copy GB/s" in line for line in lines(steps))
    for one in predictions(card_of(lines(steps))):
        if not gpu or one.step not in done:
            continue
        value = one.measured(done[one.step]["found"])
        if value is None or not one.low <= value <= one.high:
            text = "missing" if value is None else f"{value:.4g}"
            wanted = f"predicted {one.low:.4g} to {one.high:.4g}"
            found.append(f"{one.step}: {one.what} is {text}, {wanted}")
    return found


FIRST: dict[str, Callable[[Found], str | None]] = {
    "engine": replaced, "kernels": lacking, "strict": refused, "rows that differ": differing,
    "logits": apart, "outputs": diverged, "texts": parted, "notes": noted,
}  # fmt: skip
"""Gates without which no figure means what it says: they decide on the default, too."""
OTHERS = {"drafts": drafted, "allocations": allocated, "tests": tested}
WHOLE = {"steps": undone, "predictions": unforeseen}
GATES = *FIRST, *OTHERS, *WHOLE


def faults(gate: str, steps: Steps) -> list[str]:
    """What a gate says of a report, once each; nothing of a healthy one."""
    if gate in WHOLE:
        return WHOLE[gate](steps)
    says = (FIRST | OTHERS)[gate]
    found = ((step["name"], says(line)) for step in steps for line in step["found"])
    return [*dict.fromkeys(f"{name}: {text}" for name, text in found if text)]


class Claim(NamedTuple):
    """A line of what ran, or a condition of the default; `holds` is None where it is not known."""

    what: str
    wanted: str
    found: str
    holds: bool | None


def ran(steps: Steps) -> list[Claim]:
    """The engine, kernels, strict, rows that differ and outputs, as they were."""
    engines = Counter(line["engine"] for line in lines(steps) if "engine" in line)
    bits = lines(steps, table="rows", engine="cuda_graphs", strict=True)
    rows = [line for line in bits if "compared" in line]
    kinds, equal = Counter[str](), [line for line in lines(steps) if "texts" in line]
    for line in lines(steps):
        kinds.update((line.get("metrics") or {}).get("lossless", {}))
    texts = sum(line.get("equal", line.get("as vanilla", 0)) for line in equal)
    logits = lines(steps, table="logits")
    shown = {
        "engine": ("cuda_graphs", [f"{name} in {n} lines" for name, n in engines.items()]),
        "kernels": ("ours", dict.fromkeys(line["own"] for line in lines(steps) if "own" in line)),
        "strict": ("held", [line["dtype"] for line in rows]),
        "rows that differ": ("none", [f"{x['differing']} of {x['compared']:,}, {x['dtype']}"
                                      for x in rows]),
        "logits": ("near float32's", [f"off by {x['graphs']:.2g}, {x['dtype']}" for x in logits]),
        "outputs": ("as vanilla's", [f"{n} {kind}" for kind, n in kinds.items() if n]),
        "texts": ("equal", [f"{texts} of {sum(x['texts'] for x in equal)}"] if equal else []),
        "notes": ("of no replacement", ["none"] if engines else []),
    }  # fmt: skip
    claims = list[Claim]()
    for name, (wanted, found) in shown.items():
        bad = faults(name, steps)
        if name == "engine" and engines and "cuda_graphs" not in engines:
            bad = bad or ["no figure is of cuda_graphs"]
        known = False if bad else True if found else None
        claims.append(Claim(name, wanted, "; ".join(bad[:3] or found) or MISSING, known))
    return claims


def conditions(steps: Steps, rehearsal: bool) -> list[Claim]:
    """Of `cuda_graphs` as the default on a CUDA device; what a CPU cannot show is not known."""
    ends = lines(steps, table="both engines, end to end")
    exact = [line for line in ends if line["dtype"] == "float32"]
    equal, texts = (sum(line[key] for line in exact) for key in ("as fused", "texts"))
    bits = lines(steps, table="rows", engine="cuda_graphs", strict=True)
    bits = [line for line in bits if "compared" in line and line["dtype"] != "float32"]
    bad, rows = (sum(line[key] for line in bits) for key in ("differing", "compared"))
    many = rows >= ROWS or rehearsal
    slow = min(ends, key=lambda line: line["graphs / fused"], default=None)
    claims = [
        Claim("float32 tokens equal fused's", "all", f"{equal} of {texts} texts",
              equal == texts if exact else None),
        Claim("verified rows that differ from alone", f"0 of {ROWS:,}", f"{bad} of {rows:,}",
              bad == 0 and many if bits else None),
        Claim("tokens/s of graphs over fused's, the slowest cell", "1 or more",
              f"{slow['graphs / fused']:.3g}, {slow['method']}, {slow['dtype']}" if slow else "",
              slow["graphs / fused"] >= 1 if slow and not rehearsal else None),
    ]  # fmt: skip
    started = lines(steps, table="start", engine="cuda_graphs")
    cold, warm = ([x["first token s"] for x in started if x["from"] == k] for k in ("cold", "warm"))
    held = [line["GiB of graphs"] for line in lines(steps, table="memory")]
    for what, most, found in (
        ("GiB of graphs, by the driver", GRAPHS_GIB, held),
        ("s to the first token, no kernel compiled", COLD_S, cold),
        ("s to the first token, warm", WARM_S, warm),
    ):  # fmt: skip
        claims.append(Claim(what, f"at most {most:g}", f"{max(found, default=0):.3g}",
                            max(found) <= most if found and not rehearsal else None))  # fmt: skip
    return [c if c.holds is not None else c._replace(found=MISSING) for c in claims]


def default(steps: Steps, rehearsal: bool) -> str:
    """Yes, where all that ran is what is claimed and all conditions hold; else no, and why."""
    claims = [*ran(steps), *conditions(steps, rehearsal)]
    against, unknown = ([c.what for c in claims if c.holds is says] for says in (False, None))
    if not against and rehearsal:
        return "**default: not decided on a CPU**"
    if against or unknown:
        why = ", ".join(against or unknown)
        return f"**default: no** ({why}{'' if against else f': {MISSING}'})"
    return "**default: yes**"
