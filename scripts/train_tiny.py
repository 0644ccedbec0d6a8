"""Trains the embedded model (`model=tiny`) from a seed: tokenizer, corpus, stochastic depth,
checkpoint.

    python scripts/train_tiny.py --out skipbench/models/tiny --steps 3000 --threads 2

The corpus is the endless stream of `skipbench.data.mini.training_document`, packed so that a row
holds whole documents which cannot see one another. Sub-layers are dropped at random in the last
part of the run, each with a rate of its own (`DROP_RATE`): a model becomes robust to skipping what
it has learned to do without, and to nothing else, which gives the skip sets a landscape to search.
A run that is stopped goes on from its last snapshot in --work.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from skipbench.data.mini import training_document

TINY = Path(__file__).resolve().parent.parent / "skipbench" / "models" / "tiny"
SIZES = json.loads((TINY / "config.json").read_text())
LAYERS, HIDDEN, VOCAB = (SIZES[k] for k in ("num_hidden_layers", "hidden_size", "vocab_size"))
HEADS, KV_HEADS = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
FEED_FORWARD, HEAD_DIM = SIZES["intermediate_size"], SIZES["head_dim"]
ROW, ROWS = 256, 32  # tokens per row, rows per step
PROMPT_WEIGHT = 0.15  # of a prompt token in the loss
BOS, EOS, PAD = 0, 1, 2
DROP_START = 0.35  # share of the run after which sub-layers are dropped
# Chance of dropping (attention, MLP) of each layer: first and last are needed, attention is easier
# to miss than an MLP.
DROP_RATE = [
    (0.00, 0.00), (0.10, 0.05), (0.50, 0.30), (0.60, 0.50), (0.10, 0.10), (0.60, 0.60),
    (0.50, 0.30), (0.10, 0.05), (0.60, 0.60), (0.60, 0.50), (0.40, 0.30), (0.10, 0.00),
]  # fmt: skip
Params = dict[str, Tensor]
# ids, weight, document, position of every token of a row
Packed = tuple[list[int], list[float], list[int], list[int]]


def family_weights(progress: float) -> dict[str, float]:
    """Share of each family in the stream; the arithmetic drills fall from 0.22 to 0.08."""
    shares = {"mini-stories": 0.3, "mini-math": 0.3, "mini-code": 0.15, "mini-summary": 0.25}
    return shares | {"drill": 0.28 - 0.2 * progress}


def train_tokenizer(documents: int) -> Tokenizer:
    """Byte-level BPE whose digits stay single tokens, so that arithmetic is done digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    tokenizer.decoder = decoders.ByteLevel()
    special, letters = ["<s>", "</s>", "<pad>"], pre_tokenizers.ByteLevel.alphabet()
    how = {"special_tokens": special, "initial_alphabet": letters, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, **how)
    texts = (training_document(i, family_weights(0.5)) for i in range(documents))
    tokenizer.train_from_iterator((e.prompt + e.body for e in texts), trainer)
    return tokenizer


def rows(tokenizer: Tokenizer, start: int, progress: list[float]) -> Iterator[tuple[Packed, int]]:
    """Rows of whole documents from document `start`, each with the number of the next one."""
    row: Packed = ([], [], [], [])
    number = 0
    for index in itertools.count(start):
        example = training_document(index, family_weights(progress[0]))
        prompt = [BOS, *tokenizer.encode(example.prompt).ids] if example.prompt else [BOS]
        body = [*tokenizer.encode(example.body).ids, EOS]
        if len(prompt) + len(body) > ROW + 1:
            continue
        if len(row[0]) + len(prompt) + len(body) > ROW + 1:
            pad = ROW + 1 - len(row[0])
            for part, filler in zip(row, (PAD, 0, -1, 0), strict=True):
                part.extend([filler] * pad)
            yield row, index
            row, number = ([], [], [], []), 0
        ids, weight, doc, pos = row
        ids += prompt + body
        weight += [0.0] + [PROMPT_WEIGHT] * (len(prompt) - 1) + [1.0] * len(body)
        doc += [number] * (len(prompt) + len(body))
        pos += range(len(prompt) + len(body))
        number += 1


def initial(generator: torch.Generator) -> Params:
    """Parameters under the names of Hugging Face's Llama."""

    def matrix(out_features: int, in_features: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(out_features, in_features, generator=generator)
        return drawn * scale / math.sqrt(in_features)

    embedding = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.05
    p: Params = {"model.embed_tokens.weight": embedding}
    residual = 1 / math.sqrt(2 * LAYERS)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    attends = {"q": (q, HIDDEN), "k": (kv, HIDDEN), "v": (kv, HIDDEN), "o": (HIDDEN, q, residual)}
    up, down = (FEED_FORWARD, HIDDEN), (HIDDEN, FEED_FORWARD, residual)
    for i in range(LAYERS):
        name = f"model.layers.{i}."
        p[name + "input_layernorm.weight"] = torch.ones(HIDDEN)
        for w, sizes in attends.items():
            p[name + f"self_attn.{w}_proj.weight"] = matrix(*sizes)
        p[name + "post_attention_layernorm.weight"] = torch.ones(HIDDEN)
        for w, sizes in {"gate": up, "up": up, "down": down}.items():
            p[name + f"mlp.{w}_proj.weight"] = matrix(*sizes)
    p["model.norm.weight"] = torch.ones(HIDDEN)
    return {k: v.requires_grad_() for k, v in p.items()}


def rope(positions: Tensor) -> tuple[Tensor, Tensor]:
    inverse = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = (positions[:, None, :, None] * inverse).repeat(1, 1, 1, 2)
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.bfloat16())


def normed(x: Tensor, norm: Tensor) -> Tensor:
    return F.rms_norm(x, (HIDDEN,), norm, 1e-5).bfloat16()


def attention(
    x: Tensor, norm: Tensor, qkvo: list[Tensor], cos: Tensor, sin: Tensor, mask: Tensor
) -> Tensor:
    b, t, _ = x.shape
    h, sizes = normed(x, norm), (HEADS, KV_HEADS, KV_HEADS)
    query, key, value = (
        linear(h, w).view(b, t, heads, HEAD_DIM).transpose(1, 2)
        for w, heads in zip(qkvo[:3], sizes, strict=True)
    )
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return x + linear(out.transpose(1, 2).reshape(b, t, HIDDEN), qkvo[3]).float()


def mlp(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    h = normed(x, norm)
    return x + linear(F.silu(linear(h, gate)) * linear(h, up), down).float()


def head_loss(x: Tensor, norm: Tensor, head: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    logits = linear(normed(x, norm), head).float()
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (each * weight.flatten()).sum() / weight.sum()


def loss_of(
    p: Params, batch: dict[str, Tensor], dropped: set[int], run: dict[str, Callable[..., Tensor]]
) -> Tensor:
    """Weighted cross-entropy of one batch, without the sub-layers in `dropped`."""
    x = F.embedding(batch["ids"], p["model.embed_tokens.weight"])
    for i in range(LAYERS):
        n = f"model.layers.{i}."
        if 2 * i not in dropped:
            a = [p[n + f"self_attn.{w}_proj.weight"] for w in "qkvo"]
            at = (batch[k] for k in ("cos", "sin", "mask"))
            x = run["attention"](x, p[n + "input_layernorm.weight"], a, *at)
        if 2 * i + 1 not in dropped:
            m = [p[n + f"mlp.{w}_proj.weight"] for w in ("gate", "up", "down")]
            x = run["mlp"](x, p[n + "post_attention_layernorm.weight"], *m)
    last = p["model.norm.weight"], p["model.embed_tokens.weight"]
    return run["head"](x, *last, batch["targets"], batch["weight"])


def collate(packed: Sequence[Packed]) -> dict[str, Tensor]:
    ids, weight, doc, pos = (torch.tensor([row[i] for row in packed]) for i in range(4))
    mask = (doc[:, :-1, None] == doc[:, None, :-1]).tril()[:, None]
    within = (doc[:, 1:] == doc[:, :-1]) * weight[:, 1:].float()
    # padding rows attend to anything rather than to nothing
    mask = torch.where(mask | (doc[:, None, :-1, None] < 0), 0.0, float("-inf")).bfloat16()
    cos, sin = rope(pos[:, :-1])
    batch = {"ids": ids[:, :-1], "targets": ids[:, 1:], "weight": within}
    return batch | {"mask": mask, "cos": cos, "sin": sin}


def dropped_at(progress: float, rng: random.Random) -> set[int]:
    """Sub-layers to leave out of one step: none in three steps of ten, else each at its rate times
    a random factor.
    """
    if progress < DROP_START or rng.random() < 0.3:
        return set()
    factor = min(1.0, (progress - DROP_START) / 0.1) * rng.uniform(0.0, 1.6)
    rates = [rate for layer in DROP_RATE for rate in layer]
    return {s for s, rate in enumerate(rates) if rng.random() < min(0.95, factor * rate)}


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    rng = random.Random(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    if not (path := args.work / "tokenizer.json").exists():
        train_tokenizer(20_000).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    p = initial(torch.Generator().manual_seed(args.seed))
    matrices = [v for k, v in p.items() if v.ndim == 2 and "embed" not in k]
    rest = [v for k, v in p.items() if v.ndim != 2 or "embed" in k]
    optimizers = [
        torch.optim.Muon(matrices, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    compile_ = (lambda f: torch.compile(f, dynamic=False)) if args.compile else (lambda f: f)
    run = {"attention": compile_(attention), "mlp": compile_(mlp), "head": compile_(head_loss)}
    step, document, seconds = 0, 0, 0.0
    if (snapshot := args.work / "snapshot.pt").exists():
        saved = torch.load(snapshot, weights_only=False)
        step, document, seconds = saved["step"], saved["document"], saved["seconds"]
        rng.setstate(saved["rng"])
        for k, v in saved["params"].items():
            p[k].data.copy_(v)
        for o, state in zip(optimizers, saved["optimizers"], strict=True):
            o.load_state_dict(state)
    progress = [step / args.steps]
    stream = rows(tokenizer, document, progress)
    began, losses = time.perf_counter() - seconds, list[float]()
    while step < args.steps:
        progress[0] = step / args.steps
        packed, (*_, document) = zip(*itertools.islice(stream, ROWS), strict=True)
        rate = min(1.0, (step + 1) / 60) * min(1.0, max(0.0, (1 - progress[0]) / args.decay))
        for o, share in zip(optimizers, (1, 0.15), strict=True):
            o.param_groups[0]["lr"] = share * args.lr * rate
        dropped = dropped_at(progress[0], rng)
        loss = loss_of(p, collate(packed), dropped, run)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad()
        step += 1
        seconds = time.perf_counter() - began
        if not dropped:
            losses.append(loss.item())
        if step % 25 == 0:
            mean = sum(losses) / max(1, len(losses))
            print(f"step {step} loss {mean:.4f} documents {document} {seconds:.0f} s", flush=True)
            losses.clear()
        if step % 100 == 0 or step == args.steps:
            state = {"step": step, "document": document, "seconds": seconds}
            state |= {"rng": rng.getstate(), "params": {k: v.data for k, v in p.items()}}
            state |= {"optimizers": [o.state_dict() for o in optimizers]}
            torch.save(state, snapshot.with_suffix(".new"))
            snapshot.with_suffix(".new").replace(snapshot)
    export(args.out, p, tokenizer)


def export(out: Path, p: Params, tokenizer: Tokenizer) -> None:
    """Writes all but the configurations, which are the embedded model's."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().contiguous() for k, v in p.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    tokenizer.save(str(out / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=TINY)
    add("--work", type=Path, default=Path("results/train_tiny"), help="snapshots, to go on from")
    add("--steps", type=int, default=3000)
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=2)
    add("--lr", type=float, default=0.02, help="peak learning rate of Muon; AdamW gets 0.15 of it")
    add("--decay", type=float, default=0.5, help="share in which the learning rate falls to 0")
    add("--compile", action=argparse.BooleanOptionalAction, default=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
