"""How close CLaSp's and KnapSpec's dynamic programmes come to the best skip set of all (CLaSp
Figure 3b).

    python scripts/brute_force.py                          # 200 cases: random Llama models of 12
        sub-layers
    python scripts/brute_force.py --model FOLDER           # a checkpoint of up to 12 layers
    python scripts/brute_force.py --model FOLDER --keep 10 # all layers but the first and last 10:
        the paper's setting, with the 32 layers of Llama 3 8B

Every set of the same size (CLaSp) or of the same skipped weight (KnapSpec) is run over the same
states; random sets stand beside. The paper gives no size: with `--keep` CLaSp skips half of the
layers that are free, else a random number.
"""

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.decode.trial_passes import parallel_branches
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import choose_layers
from skipbench.methods.knapspec import knapsack
from skipbench.methods.vanilla import Vanilla
from skipbench.models.load import load

# of attention and MLP, as a model has them at different context lengths
WEIGHTS = ((1, 1), (2, 1), (1, 2), (3, 1))
Run = Callable[[int, Tensor], Tensor]


def states_of(lm: LM, tokens: list[int]) -> Tensor:
    """[S + 1, T, D], the target's states of all tokens; the cache then holds them."""
    hidden_states: list[Tensor] = []
    lm.run(lm.embed(tokens), TokenRows.chain(0, len(tokens)), hidden_states=hidden_states)
    lm.cache.length = len(tokens)
    return torch.stack(hidden_states)


def cosines(x: Tensor, run: Run, sets: Tensor) -> Tensor:
    """[n], mean cosine to the target's last states x[-1] [r, D] of drafts without `sets` [n, units]
    (true: skipped).
    """
    first = int(sets.any(0).int().argmax())  # before it all sets have the target's states
    g = x[first].expand(len(sets), *x.shape[1:])
    for unit in range(first, sets.shape[1]):
        g = torch.where(sets[:, unit, None, None], g, run(unit, g))
    return torch.cosine_similarity(g.double(), x[-1].double(), dim=-1).mean(-1)


def subsets(units: int, keep: int = 0) -> Tensor:
    """[2^(units - 2 keep), units], every set without the first and the last `keep` units."""
    sets = torch.tensor(list(itertools.product((False, True), repeat=units - 2 * keep)))
    return torch.nn.functional.pad(sets, (keep, keep))


def one_case(
    lm: LM, tokens: list[int], size: int, rng: random.Random, keep: int = 0
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Cosines found, best and at random: of CLaSp for one M, and of KnapSpec for every skipped
    weight. The first and the last `keep` units, of `size` sub-layers each, are always executed.
    """
    x, every = states_of(lm, tokens), subsets(lm.sublayers // size, keep)
    units, recent = every.shape[1], min(6, len(tokens) // 2)
    single = parallel_branches(lm, 1, len(every), size)
    free = [keep <= unit < units - keep for unit in range(units)]
    skipped = sum(free) // 2 if keep else rng.randrange(1, units)
    last = x[::size, -1:]
    # what is always executed ends in the target's states before, and decides nothing behind
    inner_states, run = last[keep : units - keep + 1, 0], lambda i, g: single(keep + i, g[:, None])
    inner, *_ = choose_layers(inner_states, lambda i, g: run(i, g)[:, 0], skipped)
    chosen = [keep + unit for unit in inner]
    same = every[every.sum(1) == skipped]
    clasp = compare(cosines(last, single, same), (same == marks(chosen, units)).all(1))

    weights = (*rng.choice(WEIGHTS),) * (units // 2) if size == 1 else (1,) * units
    last, several = x[::size, -recent:], parallel_branches(lm, recent, 256, size)
    budget = sum(w for w, one in zip(weights, free, strict=True) if one) // 2
    weight, sets, *_ = knapsack(last, several, weights, budget, -1.0, free)
    found, total = cosines(last, several, every), every.long() @ torch.tensor(weights)
    knap = []
    for w, s in zip(weight, sets, strict=True):
        if w:
            same = total == w
            knap.append(compare(found[same], (every[same] == marks(sorted(s), units)).all(1)))
    return clasp, knap


def marks(chosen: Sequence[int], units: int) -> Tensor:
    return torch.tensor([unit in chosen for unit in range(units)])


def compare(found: Tensor, ours: Tensor) -> dict[str, float]:
    """`found` [n] of all sets alike; `ours` marks the one that the programme took."""
    own, best, drawn = float(found[ours]), float(found.max()), float(found.mean())
    cosines = {"optimum": float(own >= best - 1e-6), "best": best, "found": own, "random": drawn}
    return cosines | {"lost": best - own, "random_lost": best - drawn}


def report(name: str, model: str, cases: list[dict[str, float]]) -> None:
    means = {k: round(statistics.fmean(c[k] for c in cases), 5) for k in cases[0]}
    line = {"programme": name, "model": model, "cases": len(cases)}
    print(json.dumps(line | means | {"worst": round(max(c["lost"] for c in cases), 5)}))


def text(lm: LM, rng: random.Random) -> list[int]:
    """12 to 48 tokens, sampled from the model itself."""
    first = rng.randrange(lm.config.vocab_size)
    sampler = Sampler(temperature=1.0, seed=rng.randrange(2**31))
    return [first, *generate(lm, Vanilla(), [first], rng.randrange(11, 48), sampler=sampler).tokens]


def random_lm(seed: int, layers: int = 6) -> LM:
    """A random Llama model, its sub-layers of very different strength as those of trained models
    are.
    """
    import transformers

    torch.manual_seed(seed)
    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 96}
    sizes |= {"num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(max_position_embeddings=512, **sizes)
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(float(torch.empty(1).uniform_(1.0, 8.0)))
    lm = LM(model, "fused")
    lm.allocate(64 + 512)
    return lm


@torch.inference_mode()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", help="folder of a checkpoint; without it, a random model every 10 cases")
    add("--keep", type=int, default=0, help="layers at each end that are never skipped")
    add("--cases", type=int, default=200)
    add("--seed", type=int, default=0)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    clasp, knap = [], []
    for case in track(range(options.cases), "cases", console=Console(stderr=True)):
        if options.model and case == 0:
            lm, _ = load(options.model)
            lm.allocate(64 + 512)
        elif not options.model and case % 10 == 0:
            lm = random_lm(options.seed * 10_000 + case)
        keep, free = options.keep, lm.layers - 2 * options.keep
        size = 1 if lm.sublayers <= 12 and not keep else 2  # deeper models layer by layer
        if not 2 <= free <= 12:
            parser.error(
                f"{options.model or 'a random model'} has {lm.layers} layers, of which --keep "
                f"{keep} leaves {max(free, 0)}; brute force takes 2 to 12"
            )
        tokens = text(lm, rng)
        one, many = one_case(lm, tokens, size, rng, keep)
        clasp.append(one)
        knap += many
    random_one = "random models in memory (not a replication)"
    name = Path(options.model).name if options.model else random_one
    units = "sub-layers" if size == 1 else "layers"
    of = f"{name}: {lm.sublayers // size - 2 * keep} of {lm.sublayers // size} {units} free"
    report("clasp", of, clasp)
    report("knapspec", of, knap)


if __name__ == "__main__":
    main()
