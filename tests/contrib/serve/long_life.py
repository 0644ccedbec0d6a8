"""A process that answers prompts for as long as it is asked to:
`python long_life.py generate|serve`.

Each line on stdin, `FIRST COUNT`, asks for the answers to so many random prompts from that number
on; the reply is a line of JSON: tokens, resident bytes, Python's objects, and how many numbers
`auto` carries on. A random model of four layers and 2,000 words.
"""

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import skipbench
from skipbench.language_model import LanguageModel

WORDS, NEW = 2000, 12
PRICES = "method.row_prices=[1,1.02,1.04,1.1,1.2,1.4]"
"""Given: each process would measure others, and draft otherwise."""


def make_checkpoint(folder: str) -> None:
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4)
    ids = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=512, **sizes, **ids
    )
    model = transformers.LlamaForCausalLM(config)
    for weights in model.parameters():
        weights.data *= 8 if weights.ndim > 1 else 1
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def prompt(number: int) -> str:
    """Words that come again, so that there is something to draft; one in ten is long."""
    rng = random.Random(number)
    known = [f"w{rng.randrange(WORDS)}" for _ in range(8)]
    return " ".join(rng.choice(known) for _ in range(rng.randrange(2, 40 if number % 10 else 400)))


async def ask(server: Any, text: str) -> int:
    """One request to the ASGI application, streamed or not; its number of tokens."""
    body = {"model": server.name, "prompt": text, "max_tokens": NEW, "stream": len(text) % 2 == 0}
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/completions"}
    scope |= {"headers": [(b"host", b"localhost")], "query_string": b"", "scheme": "http"}
    asked, sent = asyncio.Queue[dict[str, Any]](), list[dict[str, Any]]()
    asked.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await server.app(scope, asked.get, send)
    assert sent[0]["status"] == 200, sent
    return NEW


def carried(state: Any) -> int:
    """Numbers in the state that a method carries on."""
    if isinstance(state, dict):
        state = state.values()
    elif not isinstance(state, list | tuple):
        return 1
    return sum(map(carried, state))


class Process:
    """This file as a process of its own."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, __file__, kind]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(self, first: int, count: int) -> dict[str, float]:
        """The reply to a line; what is in JSON's place where the process has failed is an error."""
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(f"{first} {count}\n")
        self.child.stdin.flush()
        reply: dict[str, float] = json.loads(self.child.stdout.readline())
        return reply

    def end(self) -> None:
        self.child.communicate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        model: LanguageModel = skipbench.load(folder, "auto", overrides=[PRICES])
        loop, server = asyncio.new_event_loop(), None
        if sys.argv[1] == "serve":
            from skipbench.contrib.serve.app import Server

            server = Server(model, {"temperature": 0.0})
        for line in sys.stdin:
            first, count = map(int, line.split())
            tokens = 0
            for number in range(first, first + count):
                if server is None:
                    tokens += len(model.generate(prompt(number), NEW).tokens)
                else:
                    tokens += loop.run_until_complete(ask(server, prompt(number)))
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            state = model.method.state_dict()
            reply = {"tokens": tokens, "objects": len(gc.get_objects()), "carried": carried(state)}
            reply |= {"resident_bytes": pages * os.sysconf("SC_PAGE_SIZE")}
            sys.stdout.write(f"{json.dumps(reply)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
