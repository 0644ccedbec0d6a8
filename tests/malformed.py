"""Damage to files, and what is wrong with how a damaged file is read."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skipbench.errors import SkipbenchError

ODD: list[Any] = [
    *(None, True, -1, 0, 2**63, 10**30, 1e308, -0.5, float("nan"), float("inf")),
    *("", "\x1b[2J\x07", "\ud800", "9" * 5000, "/dev/zero", "attn:0-999999999999"),
    *([], [[]], [None], {}, {"": 0}, {"a": {"a": {}}}, ["attn:1"] * 3),
]
"""In place of a value."""
WHOLE = [
    *(b"{", b"[]", b"\0" * 64, b"7", b"[" * 100_000, b'{"a":' * 100_000, b"", b"\n", b"{}"),
    *(b'{"M": NaN, "state": "done", "dirty": Infinity}', b'{"state": "d\xff"}', b"null"),
    *(b'{"state": "done", "state": "failed"}', b'{"state": "done", "x": {"a": 1, "a": 2}}'),
    b'{"state": 7, "M": "high", "commit": ["a"]}',
    *(b"a: !!python/object/apply:os.system ['touch executed']", b"a: [unclosed", b"- 1", b"\xff"),
    *(b"- " * 50_000, b"model: {name: tiny}\nmodel: {name: other}"),
    *(b"model: tiny", b"model: {name: tiny, name: other}", b"{}\n" * 20_000),
    *(b"\xff\xfe\x00a\n", b"\xef\xbb\xbf{}\n", b'{"prompt": "\\ud800"}\n'),
    *(b"PAR1" + b"\0" * 100 + b"PAR1", b"GGUF\3\0\0\0" + b"\xff" * 16),
    b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
]
"""In place of a file."""


def damaged(text: bytes, rng: random.Random) -> bytes:
    """The contents with one value, or some bytes, exchanged."""
    lines = text.split(b"\n")
    at = rng.randrange(len(lines))
    if rng.random() < 0.7:
        try:
            if rng.random() < 0.5:
                return json.dumps(exchanged(json.loads(text), rng)).encode()
            lines[at] = json.dumps(exchanged(json.loads(lines[at]), rng)).encode()
            return b"\n".join(lines)
        except (ValueError, RecursionError):
            pass
    start, size = rng.randrange(len(text) + 1), rng.choice((0, 1, 1, 2, 8, 100))
    odd = (b"", b"\0" * 40, b"9" * 30, b"[" * 3000, b"\xff", b"-", b"\x1b[")
    fresh = rng.choice((*odd, b"%d" % rng.randrange(10), rng.randbytes(rng.randrange(9))))
    return text[:start] + fresh + text[start + size :]


def exchanged(value: Any, rng: random.Random) -> Any:
    """The value with a part of it, found by chance, replaced, left out or doubled."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, new = rng.choice(keys), value.copy()
        if (chance := rng.random()) < 0.1:
            del new[key]
        elif chance < 0.15 and isinstance(new, list):
            new += new
        else:
            new[key] = exchanged(value[key], rng)
        return new
    return rng.choice(ODD)


SLOW = {"generation_config.json", "model.safetensors", "brute.jsonl"}
"""A tenth of a second each: a model is loaded, or a figure is drawn."""
UNNAMED = {"plan.txt", "set.json"}
"""Values of settings, whose messages quote the text."""


class Reader(NamedTuple):
    """A file, and what reads it."""

    path: Path
    read: Callable[[], object]


def reader_of(path: Path, text: str, read: Callable[[Path], object]) -> Reader:
    """A reader of a new file with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Reader(path, lambda: read(path))


def fault(reader: Reader, contents: bytes) -> str | None:
    """What is wrong with how a file of these contents is read; the old ones are put back."""
    before = reader.path.read_bytes()
    reader.path.write_bytes(contents)
    try:
        reader.read()
    except SkipbenchError as error:
        text = str(error)
        place = (reader.path.name, reader.path.parent.name)
        if not any(name in text for name in place) and reader.path.name not in UNNAMED:
            return f"{text!r:.300} names no file"
        if "\n" in text:
            return f"{text!r:.300} is no line"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{error!r:.300}"
    finally:
        reader.path.write_bytes(before)
    return None


def faults(readers: Mapping[str, Reader], each: int) -> list[str]:
    """Each file with the contents of `WHOLE`, and damaged so many times; slow ones less often."""
    found = list[str]()
    for name, reader in readers.items():
        rng, sound = random.Random(f"{each} {name}"), reader.path.read_bytes()
        count = each // 30 if name in SLOW else each
        for contents in [*(WHOLE if count else []), *(damaged(sound, rng) for _ in range(count))]:
            if what := fault(reader, contents):
                found.append(f"{name}: {what}; {contents[:200]!r}")
    return found
