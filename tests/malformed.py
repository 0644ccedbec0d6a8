"""Damage to files, by chance and by intent."""

import json
import random
from typing import Any

HOSTILE: list[Any] = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -0.5, 1e-320),
    *(float("nan"), float("inf"), "", "\x1b[2J\x07", "\ud800", "a" * 5000, "9" * 5000),
    *("../../etc/passwd", "/dev/zero", "os.system", [], [[]], [None], {}, {"": 0}),
    *({"a": {"a": {}}}, ["attn:1"] * 3, [2**63, -1, 0.5], "attn:0-999999999999"),
    "window:" + "9" * 5000,
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
