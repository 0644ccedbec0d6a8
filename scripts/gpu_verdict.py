"""What ran of a GPU report, what of it is wrong, and whether `cuda_graphs` is the engine to take
where a CUDA device is: gates over the lines that its steps printed. It needs Python alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
ALPHA, NEW_SET_US = 0.99, 50.0
TROUBLE = ("used instead", "left out", "no memory left", "not strict", "cannot be kept")
"""What notes say of an engine that is not what was asked for."""
MISSING = "not measured"


def lines(steps: Steps, **having: Any) -> Iterator[Found]:
    """Lines of all steps that have these values."""
    for step in steps:
        for line in step["found"]:
            if all(line.get(key) == value for key, value in having.items()):
                yield line


def named(steps: Steps, says: Callable[[Found], str | None]) -> list[str]:
    """What is wrong with lines, with the names of their steps, once each."""
    found = ((step["name"], says(line)) for step in steps for line in step["found"])
    return [*dict.fromkeys(f"{name}: {text}" for name, text in found if text)]


def replaced(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        asked = line.get("engine_asked")
        return f"engine {line['engine']} in place of {asked}" if asked else None

    engines = {line["engine"] for line in lines(steps) if "engine" in line}
    none = (
        ["no figure is of engine cuda_graphs"] if engines and "cuda_graphs" not in engines else []
    )
    return [*named(steps, says), *none]


def notes(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        said = line.get("notes") or ""
        said = said if isinstance(said, str) else "; ".join(said)
        return said if any(word in said for word in TROUBLE) else None

    return named(steps, says)


def kernels(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        return f"no {line['lacking']} among the kernels of a pass" if line.get("lacking") else None

    return named(steps, says)


def refused(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        if "refused" in line:
            return f"strict refused, {line['engine']}: {line['refused']}"
        half = line.get("table") == "start" and line["dtype"] != "float32"
        loose = half and line["engine"] == "cuda_graphs" and not line["strict"]
        return "not strict in half precision" if loose else None

    return named(steps, says)


def differing(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        if not (line.get("strict") and line.get("differing")):
            return None
        of = f"{line['differing']} of {line['compared']:,} rows differ"
        return f"{of}, {line['engine']}, {line['dtype']}: {line['first']}, by {line['gap']:.3g}"

    return named(steps, says)


def apart(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        if line.get("table") != "logits":
            return None
        most = EXACT if line["dtype"] == "float32" else ROUNDED * line["fused"]
        if line["graphs"] <= most:
            return None
        off = f"logits are off by {line['graphs']:.2g} in {line['dtype']}"
        return f"{off}, wanted at most {most:.2g}; those of fused by {line['fused']:.2g}"

    return named(steps, says)


def diverged(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        kinds = (line.get("metrics") or {}).get("lossless", {})
        bad = [f"{kinds[k]} {k}" for k in ("diverged", "unchecked", "failed") if kinds.get(k)]
        return f"outputs of {line['method']}: {', '.join(bad)}" if bad else None

    return named(steps, says)


def parted(steps: Steps) -> list[str]:
    """Texts of one engine, or in float32 of both, that are not equal."""

    def says(line: Found) -> str | None:
        texts, said = line.get("texts"), list[str]()
        if line.get("equal", texts) != texts:
            said.append(f"{line['equal']} of {texts} texts are equal: {line['table']}")
        strict = line.get("strict") or line.get("dtype") == "float32"
        for key in ("as vanilla", *["as fused"] * (line.get("dtype") == "float32")):
            if strict and line.get(key, texts) != texts:
                said.append(f"{line['method']}, {line[key]} of {texts} texts {key}")
        return "; ".join(said)

    return named(steps, says)


def drafted(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        alpha = line.get("alpha") if line.get("method") == "planted" else None
        low = alpha is not None and alpha < ALPHA
        return f"alpha of the planted set is {alpha:.3f}, wanted {ALPHA}" if low else None

    return named(steps, says)


def allocated(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        made = line.get("allocations")
        return f"{made} device allocations in long texts, wanted none" if made else None

    return named(steps, says)


def tests(steps: Steps) -> list[str]:
    def says(line: Found) -> str | None:
        bad = line.get("outcome") in ("failed", "error")
        return f"test {line['test']}: {line['why']}" if bad else None

    return named(steps, says)


def undone(steps: Steps) -> list[str]:
    bad = (s for s in steps if s["state"] != "done")
    return [": ".join(filter(None, (s["name"], s["state"], s["why"]))) for s in bad]


def unforeseen(steps: Steps) -> list[str]:
    """Figures outside of what was predicted for this card, or that a step did not print."""
    if not any("copy GB/s" in line for line in lines(steps)):
        return []  # a CPU
    of, found = {step["name"]: step for step in steps}, list[str]()
    for one in predictions(card_of(lines(steps))):
        step = of.get(one.step)
        if step is None or step["state"] != "done":
            continue
        value, wanted = one.measured(step["found"]), f"predicted {one.low:.4g} to {one.high:.4g}"
        if value is None or not one.low <= value <= one.high:
            text = "missing" if value is None else f"{value:.4g}"
            found.append(f"{step['name']}: {one.what} is {text}, {wanted}")
    return found


GATES: dict[str, Callable[[Steps], list[str]]] = {
    "engine": replaced, "notes": notes, "kernels": kernels, "strict": refused,
    "rows that differ": differing, "logits": apart, "outputs": diverged, "texts": parted,
    "drafts": drafted, "allocations": allocated, "tests": tests, "steps": undone,
    "predictions": unforeseen,
}  # fmt: skip
"""What is wrong, by what it is about; each says nothing of a healthy report."""
FIRST = ("engine", "notes", "kernels", "strict", "rows that differ", "logits", "outputs", "texts")
"""Gates without which no figure means what it says: they decide on the default, too."""


class Claim(NamedTuple):
    """A line of what ran, or a condition of the default; `holds` is None where it is not known."""

    what: str
    wanted: str
    found: str
    holds: bool | None


def ran(steps: Steps) -> list[Claim]:
    """The engine, kernels, strict, rows that differ and outputs, as they were."""
    engines = Counter(line["engine"] for line in lines(steps) if "engine" in line)
    own = [line["own"] for line in lines(steps) if "own" in line]
    bits = [line for line in lines(steps, table="rows", engine="cuda_graphs", strict=True)]
    said = [f"refused: {line['refused']}" for line in bits if "refused" in line]
    said += [f"held in {line['dtype']}" for line in bits if "refused" not in line]
    rows = [
        f"{line['differing']} of {line['compared']:,}, {line['dtype']}"
        for line in bits
        if "compared" in line
    ]
    off = [f"{line['graphs']:.2g}, {line['dtype']}" for line in lines(steps, table="logits")]
    kinds = Counter[str]()
    for line in lines(steps):
        kinds.update((line.get("metrics") or {}).get("lossless", {}))
    equal = [line for line in lines(steps) if "texts" in line]
    texts = sum(line.get("equal", line.get("as vanilla", 0)) for line in equal)
    what = {
        "engine": ("cuda_graphs", ", ".join(f"{k} in {n} lines" for k, n in engines.items())),
        "kernels": ("ours", "; ".join(dict.fromkeys(own))),
        "strict": ("held", "; ".join(said)),
        "rows that differ": ("none", "; ".join(rows)),
        "logits": ("near float32's", "off by " + "; ".join(off) if off else ""),
        "outputs": ("as vanilla's", ", ".join(f"{n} {k}" for k, n in kinds.items() if n)),
        "texts": ("equal", f"{texts} of {sum(line['texts'] for line in equal)}" if equal else ""),
        "notes": ("none of a replacement", "none" if engines else ""),
    }
    claims = list[Claim]()
    for name, (wanted, found) in what.items():
        bad = GATES[name](steps)
        known = False if bad else True if found else None
        claims.append(Claim(name, wanted, "; ".join(bad[:3]) or found or MISSING, known))
    return claims


def conditions(steps: Steps, rehearsal: bool) -> list[Claim]:
    """Of `cuda_graphs` as the default on a CUDA device; what a CPU cannot show is not known."""
    ends = [line for line in lines(steps, table="both engines, end to end")]
    exact = [line for line in ends if line["dtype"] == "float32"]
    equal = sum(line["as fused"] for line in exact), sum(line["texts"] for line in exact)
    bits = [*lines(steps, table="rows", engine="cuda_graphs", strict=True)]
    bits = [line for line in bits if "compared" in line and line["dtype"] != "float32"]
    bad, rows = (sum(line[key] for line in bits) for key in ("differing", "compared"))
    slow = min(ends, key=lambda line: line["graphs / fused"], default=None)
    held = [line["GiB of graphs"] for line in lines(steps, table="memory")]
    first = {
        kind: [line["first token s"] for line in lines(steps, table="start", **{"from": kind})
               if line["engine"] == "cuda_graphs"]
        for kind in ("cold", "warm")
    }  # fmt: skip
    claims = [
        Claim("float32 tokens equal fused's", "all", f"{equal[0]} of {equal[1]} texts",
              equal[0] == equal[1] if exact else None),
        Claim("verified rows that differ from alone", f"0 of {ROWS:,}", f"{bad} of {rows:,}",
              bad == 0 and (rows >= ROWS or rehearsal) if bits else None),
    ]  # fmt: skip
    timed = [
        Claim("graphs over fused, end to end, the slowest cell", "1 or more",
              f"{slow['graphs / fused']:.3g}, {slow['method']}, {slow['dtype']}" if slow else "",
              slow["graphs / fused"] >= 1 if slow else None),
        *(Claim(what, f"at most {most:g}", f"{max(got):.3g}" if got else "",
                max(got) <= most if got else None)
          for what, most, got in (("GiB of graphs, by the driver", GRAPHS_GIB, held),
                                  ("s to the first token, no kernel compiled", COLD_S,
                                   first["cold"]),
                                  ("s to the first token, warm", WARM_S, first["warm"]))),
    ]  # fmt: skip
    if rehearsal:
        timed = [claim._replace(holds=None, found="not judged on a CPU") for claim in timed]
    found = [*claims, *timed]
    return [c if c.holds is not None or rehearsal else c._replace(found=MISSING) for c in found]


def default(steps: Steps, rehearsal: bool) -> tuple[bool, list[str]]:
    """Whether all that ran is what is claimed and all conditions hold; and what does not."""
    claims = [*ran(steps), *conditions(steps, rehearsal)]
    against = [f"{c.what}: {c.found}" for c in claims if c.holds is False]
    unknown = [f"{c.what}: {c.found}" for c in claims if c.holds is None]
    return not (against or unknown), against or unknown
