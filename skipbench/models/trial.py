"""Run by itself, `trial.py FOLDER SECONDS BYTES`: uses the tokenizer and the chat templates of a
folder once. What takes all memory, or finds no end, ends this process, and no other.
"""

import json
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST = 100_000  # characters of the text that is encoded
TURNS = [(who, f"a {who}") for who in ("system", "user", "assistant", "user")]
GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # a tag of transformers alone


def use_tokenizer(file: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    words = tokenizer.get_vocab()
    tokenizer.decode(tokenizer.encode(" ".join(words)[:MOST]).ids)
    tokenizer.decode([*words.values()])


def use_templates(folder: Path) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    jinja.globals |= {"raise_exception": str, "strftime_now": str}
    for template in templates(folder):
        for turns in (TURNS, TURNS[1:2]):
            messages = [{"role": role, "content": text} for role, text in turns]
            given = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>"}
            jinja.from_string(GENERATION.sub("", template)).render(eos_token="</s>", **given)


def templates(folder: Path) -> Iterator[str]:
    for pattern in ("*.jinja", "additional_chat_templates/*.jinja"):
        yield from (path.read_text() for path in folder.glob(pattern) if path.is_file())
    for path in (folder / "tokenizer_config.json", folder / "chat_template.json"):
        found: Any = json.loads(path.read_text()).get("chat_template") if path.is_file() else None
        yield from ([found] if isinstance(found, str) else (one["template"] for one in found or ()))


def main(folder: Path, seconds: int, most_bytes: int) -> None:
    for kind, most in (("CPU", seconds), ("DATA", most_bytes), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (most, most))
    found = (path for path in folder.glob("tokenizer*.json") if path.is_file())  # no pipe
    tokenizers = [path for path in found if "_config" not in path.name]
    for use, given in (*((use_tokenizer, path) for path in tokenizers), (use_templates, folder)):
        try:
            use(given)
        except MemoryError:
            raise
        except BaseException:  # who loads it says what is wrong; a panic is no `Exception`
            continue


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
