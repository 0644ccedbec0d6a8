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
WHOLE = [
    *(b"", b"\n", b"[" * 100_000 + b"\n", b"\0" * 64, b"{", b"[]", b"{}", b"null", b"7", b'"a"'),
    *(b"\xff\xfe\x00a\n", b"\xef\xbb\xbf{}\n", b"[" * 100_000, b'{"a":' * 100_000),
    *(b"- " * 50_000, b'{"x": NaN}', b'{"x": 1e999}', b'{"a": 1, "a": 2}', b"{}\n" * 20_000),
    *(b'{"x": ' + b"9" * 100_000 + b"}", b'{"prompt": "\\ud800"}\n', b'{"id": "\\u001b[2J"}\n'),
    *(b"a: &a [x, x]\nb: [*a, *a]\n", b"!!python/object/apply:os.system ['true']\n"),
    *(b"PAR1" + b"\0" * 100 + b"PAR1", b"GGUF\3\0\0\0" + b"\xff" * 16),
    *(b'{"job": "\xaa", "first": 0, "count": 1, "base_model_name_or_path": "\xaa"}\n',),
    *(b'{"runs": [{"model": "\xaa"}], "figure": "\xaa", "weight_map": {"\xaa": "\xaa"}}\n',),
    *(b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", b"a" * 1_000_000),
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
