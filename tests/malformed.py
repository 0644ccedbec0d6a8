"""Damage to files, by chance and by intent, and what is wrong with how a file is read."""

import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skipbench.errors import LONGEST, SkipbenchError

HOSTILE: list[Any] = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -0.5, 1e-320),
    *(float("nan"), float("inf"), "", "\x1b[2J\x07", "\ud800", "a" * 5000, "9" * 5000),
    *("../../etc/passwd", "/dev/zero", "os.system", [], [[]], [None], {}, {"": 0}),
    *({"a": {"a": {}}}, ["attn:1"] * 3, [2**63, -1, 0.5], "attn:0-999999999999"),
    "attn:" + "9" * 5000,
]
"""In place of a value."""
NO_JSON = [
    *(b"{", b"[]", b"\0" * 64, b"7", b'"a"', b"[" * 100_000, b'{"a":' * 100_000, b"- " * 50_000),
    *(b'{"M": NaN, "state": "done", "dirty": Infinity}', b'{"state": "d\xff"}', b"a" * 1_000_000),
    b'{"M": 1e400, "state": "done", "dirty": 1e400}',
    b'{"state": "done", "x": ' + b"9" * 100_000 + b"}",
    b'{"state": "done", "x": 18446744073709551616}',  # 65 bits
    *(b'{"state": "done", "state": "failed"}', b'{"state": "done", "x": {"a": 1, "a": 2}}'),
    b'{"state": "done", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"state": 7, "M": "high", "commit": ["a"]}',
    b'{"state": "\\u001b[2J", "M": [], "host": "\\u001b[2J"}',
]
"""Contents that no JSON file of a run may have."""
NO_YAML = [
    *(b"a: !!python/object/apply:os.system ['touch executed']", b"a: !!python/name:os.system"),
    *(b"model: !!python/object/new:os.system [touch executed]", b"a: [unclosed", b"- 1", b"\xff"),
    *(b"a: &a [x, x]\nb: [*a, *a]\n", b"a: " + b"9" * 5000, b"a: " + b"[" * 100_000),
    *(b'model: {name: "\\e[2J", dtype: float32, device: cpu}', b"model: tiny"),
    b"model: {name: [tiny]}",
]
"""Contents that no `config.yaml` of a run may have."""
WHOLE = [
    *(*NO_JSON, *NO_YAML, b"", b"\n", b"[" * 100_000 + b"\n", b"{}", b"null", b"{}\n" * 20_000),
    *(b"\xff\xfe\x00a\n", b"\xef\xbb\xbf{}\n", b'{"prompt": "\\ud800"}\n'),
    b'{"id": "\\u001b[2J"}\n',
    *(b"PAR1" + b"\0" * 100 + b"PAR1", b"GGUF\3\0\0\0" + b"\xff" * 16),
    b'{"job": "\xaa", "first": 0, "count": 1, "base_model_name_or_path": "\xaa"}\n',
    b'{"runs": [{"model": "\xaa"}], "figure": "\xaa", "weight_map": {"\xaa": "\xaa"}}\n',
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
    return rng.choice(HOSTILE)


MOST_S = 2.0
"""To refuse a file; also on a busy machine, so that it is asked of the CPU's time."""
MOST_BYTES = 500 << 20
"""Of memory, in addition."""


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


def resident_bytes(field: str) -> int:
    """`VmRSS`, what is in memory now, or `VmHWM`, the most since the last call for `VmRSS`."""
    if field == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) << 10


def cpu_s() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def fault(reader: Reader, contents: bytes) -> str | None:
    """What is wrong with how a file of these contents is read; the old ones are put back."""
    before = reader.path.read_bytes()
    reader.path.write_bytes(contents)
    before_bytes, began, text = resident_bytes("VmRSS"), cpu_s(), ""
    try:
        reader.read()
    except SkipbenchError as error:
        text = str(error)
        place = (reader.path.name, reader.path.parent.name)
        if not any(name in text for name in place) and reader.path.name not in UNNAMED:
            return f"{text!r:.300} names no file"
        if not text.isprintable() or len(text) > 10 * LONGEST:
            return f"{text!r:.300} is no line"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{error!r:.300}"
    finally:
        reader.path.write_bytes(before)
    took_s = cpu_s() - began
    more_bytes = resident_bytes("VmHWM") - before_bytes
    far = took_s > MOST_S or more_bytes > MOST_BYTES
    return f"{took_s:.1f} s, {more_bytes >> 20} MiB, {text!r:.100}" if far else None


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


def read_in_place_of(kind: str, readers: Mapping[str, Reader]) -> None:
    """Reads what is no file: none of the readers waits for it, and an error is one line."""
    for name, reader in readers.items():
        before = reader.path.read_bytes()
        reader.path.unlink()
        if kind == "a pipe":
            os.mkfifo(reader.path)
        elif kind == "a folder":
            reader.path.mkdir()
        elif kind != "none":
            reader.path.symlink_to("/dev/zero")
        try:
            if name not in UNNAMED:
                reader.read()
        except SkipbenchError as error:
            assert str(error).isprintable()
        finally:
            reader.path.rmdir() if kind == "a folder" else reader.path.unlink(missing_ok=True)
            reader.path.write_bytes(before)


KINDS = ["a pipe", "a folder", "a link to endless zeros", "none"]
