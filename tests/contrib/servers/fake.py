"""A server of OpenAI's API that answers from memory, and misbehaves where it is told to."""

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SILENCE_S = 0.2  # that the tests' client takes for a stall
Event = dict[str, Any] | bytes
TORN = b'{"choices": [{"index'

FAULTS = {  # what it does in place of an answer: what the record has to say
    "silent": "stalled for",
    "stalls": "stalled for",
    "comments": "stalled for",
    "hangs up": "stream cut",
    "cuts": "stream cut",
    "cuts an event": "stream cut",
    "500": "status 500: not now",
    "400": "status 400: not now",
    "malformed": "malformed JSON",
    "a list": "an event that is no JSON object",
    "no delta": "an event of another form",
    "error": "error in the stream: out of memory",
    "empty": "empty answer",
    "ends early": "no finish_reason",
    "too few": "wrong usage: 1 tokens",
    "too many": "wrong usage: 1000000 tokens",
    "no number": "wrong usage: many tokens",
    "whole": "not streamed",
}


class Fake(ThreadingHTTPServer):
    """The server. `plan`: by prompt, what it does at each try, then it answers; `other`: parts of
    prompts whose answers are other ones; `told`: fields of the last event, such as an engine's
    metrics; `loads`: requests that it refuses because it loads; `asked`: bodies that came; `keys`:
    path and `Authorization` of every request.
    """

    daemon_threads, allow_reuse_address, request_queue_size = True, True, 128

    def __init__(self, port: int = 0, **given: Any) -> None:
        self.plan, self.other = dict[str, list[str]](), list[str]()
        self.told, self.asked = dict[str, Any](), list[dict[str, Any]]()
        self.version, self.counters, self.key = "1", "", ""
        self.longest, self.drafts, self.loads = 2048, 3, 0
        self.keys = list[tuple[str, str | None]]()
        self.do: Callable[[Any], None] = Handler.answer
        self.__dict__ |= given
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._refused():
            return
        said = {"created": time.time(), "status": {"value": time.time(), "args": ["secret"]}}
        said |= {"max_model_len": self.server.longest, "media_marker": f"<{time.time_ns()}>"}
        pages = {
            "/v1/models": {"data": [{"id": "fake", **said}]},
            "/version": {"version": self.server.version},
            "/get_server_info": {"api_key": "secret", "drafts": self.server.drafts},
        }
        if self.path == "/metrics" and self.server.counters:
            self._send(200, self.server.counters.format(n=len(self.server.asked)).encode())
        elif self.path in pages:
            self._send(200, json.dumps(pages[self.path]).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        if not self._refused():
            self.server.do(self)

    def _refused(self) -> bool:
        """Whether a request has another key than the server's; its answer quotes that."""
        given = self.headers.get("Authorization")
        if self.server.loads:
            self.server.loads, self.close_connection = self.server.loads - 1, True
            self._send(503, b'{"error": {"message": "Loading model"}}')
            return True
        self.server.keys.append((self.path, given))
        if wrong := (given or "Bearer ") != f"Bearer {self.server.key}":
            self._send(401, json.dumps({"error": {"message": f"no such key: {given}"}}).encode())
        return wrong

    def answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        said = body.get("prompt") or body["messages"][-1]["content"]
        plan = self.server.plan.get(said, [])
        what = plan.pop(0) if plan else ""
        if what.isdigit():
            self._send(int(what), b'{"error": {"message": "not now"}}', {"Retry-After": "0"})
        elif what == "whole":
            self._send(200, b'{"choices": []}')
        elif what == "hangs up":
            self.close_connection = True
        else:
            if what == "silent":
                time.sleep(3 * SILENCE_S)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                for event in self._events(what, said, "messages" in body):
                    data = event if isinstance(event, bytes) else json.dumps(event).encode()
                    line = data if data.startswith(b":") else b"data: " + data
                    self._chunk(line + b"\n\n" * (event != TORN))
                if what not in ("cuts", "cuts an event"):
                    self._chunk(b"")
            self.close_connection = True

    def _events(self, what: str, said: str, chat: bool) -> Iterator[Event]:
        other = any(part in said for part in self.server.other)
        words = [f"{(zlib.crc32(said.encode()) >> at) % 97} " for at in range(12)]
        words[-1:] = ["other"] if other else words[-1:]
        odd: dict[str, Event] = {
            "malformed": b'{"choices": [', "a list": b"[1]",
            "error": {"error": {"message": "out of memory"}},
            "no delta": {"choices": [{"index": 0, "delta": 5, "text": 5}]},
        }  # fmt: skip
        for at, word in enumerate(words if what != "empty" else []):
            if at == len(words) // 2:
                if what in odd:
                    yield odd[what]
                for _ in range(40 if what == "comments" else 0):
                    yield b": ping"
                    time.sleep(SILENCE_S / 10)
                if what == "stalls":
                    time.sleep(5 * SILENCE_S)
                if what in ("cuts", "cuts an event", "ends early"):
                    yield from [TORN] * (what == "cuts an event")
                    return
            part = "reasoning" if what == "reasons" else "content"
            piece = {"delta": {part: word}} if chat else {"text": word}
            yield {"choices": [{"index": 0, **piece}]}
        yield {"choices": [{"index": 0, "delta": None, "finish_reason": "length"}]}
        wrong = {"too few": 1, "too many": 10**6, "no number": "many", "one more": len(words) + 1}
        usage = {"completion_tokens": wrong.get(what, len(words)), "prompt_tokens": 5}
        for _ in range({"no usage": 0, "usage twice": 2}.get(what, 1)):
            yield {"choices": [], "usage": usage, **self.server.told}
        if what != "no end":  # as `transformers serve`
            yield b"[DONE]"

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fakes(*given: dict[str, Any]) -> Iterator[Sequence[Fake]]:
    """Servers in threads, which end with the block."""
    made = [Fake(**one) for one in given]
    threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for one, thread in zip(made, threads, strict=True):
            one.shutdown()
            thread.join()
            one.server_close()
