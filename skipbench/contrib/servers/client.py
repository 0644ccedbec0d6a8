"""A client that reads one streamed answer, and names what goes wrong with it.

It is the standard library's: an event of a stream costs it some 30 us, and nothing else is needed.
"""

import hashlib
import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from skipbench.contrib.oracle.readers import mapping
from skipbench.contrib.servers.told import acceptance, predicted
from skipbench.runs.record import Arm, Seconds
from skipbench.runs.served import Served

MOST = 16 << 20  # bytes of an event or a page
SLACK = 2  # events beyond its tokens that an answer may have: text held back, or a split character
PAGE_S = 10.0  # for a page that is no answer
LONGEST = 250  # characters of a fault
PARTS = ("content", "reasoning_content", "reasoning")  # of a chat's message
ABSENT = "no connection"
BEGINS = "(is|still|currently|being) (load|warm|start|initiali)|loading model|not (yet )?ready"
LOADS = re.compile(f"(?i){ABSENT}|(status|error in the stream).*({BEGINS})")
AWAY = re.compile(f"{LOADS.pattern}|status 50[234]")
CUT = "stalled|stream cut|error in the stream|no finish_reason"
PASSING = re.compile(rf"{AWAY.pattern}|status (408|409|425|429|5\d\d)|{CUT}")


class Fault(Exception):
    """What a server did wrong, in words that begin with its kind. `passing`: another try may go
    well; `away`: once the server is back; `loads`: nobody listens, or it says that it begins;
    `wait_s`: what it asks for before another try.
    """

    def __init__(self, what: str, wait_s: float = 0.0) -> None:
        super().__init__(what)
        self.wait_s = wait_s
        self.loads, self.away, self.passing = (bool(p.match(what)) for p in (LOADS, AWAY, PASSING))


@contextmanager
def connected(url: str, timeout_s: float, key: str) -> Iterator[http.client.HTTPConnection]:
    """An open connection, all of whose failures are `Fault`s, without the key in their words."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.connect()
    except OSError as error:
        raise Fault(f"{ABSENT}: {error.strerror or error}") from error
    try:
        yield connection
    except Fault as fault:  # a server may quote the key that it was sent
        words = str(fault).replace(key, "KEY") if key else str(fault)
        fault.args = (words[:LONGEST],)
        raise
    except TimeoutError as error:
        raise Fault(f"stalled for {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise Fault("stream cut") from error
    finally:
        connection.close()


def sent(
    connection: http.client.HTTPConnection, url: str, path: str, key: str, body: bytes | None = None
) -> http.client.HTTPResponse:
    """The response to a request, of status 200; raises Fault for another."""
    base = urlsplit(url).path.rstrip("/").removesuffix("/v1")
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    connection.request("POST" if body else "GET", base + path, body, headers)
    response = connection.getresponse()
    if (status := response.status) != 200:
        asked = response.getheader("Retry-After", "")
        said = _message(response.read(MOST))
        raise Fault(f"status {status}: {said}", float(asked) if asked.isdecimal() else 0.0)
    return response


def fetch(url: str, path: str, key: str = "") -> str:
    """A page of a server; raises Fault."""
    with connected(url, PAGE_S, key) as connection:
        return sent(connection, url, path, key).read(MOST).decode(errors="replace")


def _message(body: bytes) -> str:
    """The words of an error, in one line."""
    try:
        found = mapping(json.loads(body))
        text = str(mapping(found.get("error")).get("message") or found or "-")
    except (ValueError, RecursionError):
        text = body.decode(errors="replace")
    return " ".join(text.split())


def events(response: Any, timeout_s: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """The events of a stream, each with the time at which it came, up to `[DONE]` or, as
    `transformers serve` has it, to the end of the body.
    """
    last, rest = time.perf_counter(), b""
    while (data := response.read1(MOST)) and len(rest) < MOST:
        now = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                last = now
                if (text := line[5:].strip()) == b"[DONE]":
                    return
                yield now, _event(text)
        if now - last > timeout_s:  # comments alone, which keep the connection alive
            raise Fault(f"stalled for {timeout_s:g} s")
    if rest:
        raise Fault("stream cut")


def _event(text: bytes) -> dict[str, Any]:
    """An event's object; raises Fault for none, and for an error."""
    try:
        event = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise Fault("malformed JSON") from error
    if not isinstance(event, dict):
        raise Fault("an event that is no JSON object")
    if "error" in event:
        raise Fault(f"error in the stream: {_message(text)}")
    return event


def ask(url: str, body: Mapping[str, Any], timeout_s: float, key: str = "") -> tuple[Arm, str]:
    """A server's answer and its text; raises Fault, also after `timeout_s` of silence. The
    connection is made before the clock runs, as clients keep theirs.
    """
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    with connected(url, timeout_s, key) as connection:
        at, begun = time.time(), time.perf_counter()
        response = sent(connection, url, path, key, json.dumps(body).encode())
        if "event-stream" not in response.getheader("Content-Type", ""):
            raise Fault("not streamed")
        try:
            return read(events(response, timeout_s), body, begun, at)
        except (LookupError, TypeError, AttributeError) as error:
            raise Fault(f"an event of another form: {error}") from error


def read(
    stream: Iterator[tuple[float, dict[str, Any]]], body: Mapping[str, Any], begun: float, at: float
) -> tuple[Arm, str]:
    """`ask` of the events; raises Fault, or what an event of another form causes."""
    texts: dict[str, list[str]] = {"content": []}
    times, ids, finish, usage, told = list[float](), list[int](), "", dict[str, Any](), None
    for now, event in stream:
        usage, came = event.get("usage") or usage, False
        for choice in (one for one in event.get("choices") or [] if one.get("index", 0) == 0):
            said = choice.get("delta") or {}  # the last one may have none
            said = said if "messages" in body else {"content": choice.get("text")}
            for part in PARTS:
                if text := said.get(part):
                    texts.setdefault(part, []).append(text + "")
                    came = True
            ids += choice.get("token_ids") or []
            finish = choice.get("finish_reason") or finish
        times += [now - begun] * came
        if not came or finish:
            told = acceptance(event) or told
    if not finish:
        raise Fault("no finish_reason")  # a proxy ends a stream that was cut
    if not times:
        thought = mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
        raise Fault("empty answer" + f": {thought} tokens of reasoning" * bool(thought))
    count = usage.get("completion_tokens") if usage else len(times)
    if type(count) is not int or not max(1, len(times) - SLACK) <= count <= body["max_tokens"]:
        most = f"{len(times)} events of at most {body['max_tokens']} tokens"
        raise Fault(f"wrong usage: {count} tokens in {most}")
    if any(type(token) is not int or token < 0 for token in ids):
        raise TypeError("token_ids")
    whole = ["".join(pieces) for pieces in texts.values()]
    served = Served(
        at=at,
        count=count,
        text_sha256=hashlib.sha256("\0".join(whole).encode()).hexdigest(),
        apart=[part for part in texts if part != "content"],
        reason=finish + "",
        usage=usage,
        told=told or predicted(usage),
    )
    seconds = Seconds(times[0], 0.0, 0.0, 0.0, times[-1] - times[0])
    return Arm(ids, [], seconds, "length" if finish == "length" else "eos", served=served), whole[0]
