"""The server: OpenAI's routes over one model."""

import asyncio
import hmac
import re
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack, aclosing
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from skipbench.bench.prompts import eos_ids
from skipbench.contrib.serve.metrics import ServerMetrics
from skipbench.contrib.serve.refused import Refused, shown
from skipbench.contrib.serve.replies import Reply
from skipbench.contrib.serve.requests import read_request
from skipbench.contrib.serve.worker import Worker
from skipbench.decode.answer import Stream
from skipbench.errors import SkipbenchError
from skipbench.language_model import LanguageModel

T = TypeVar("T")
BODY_BYTES = 4 << 20
LOCAL = ("localhost", "127.0.0.1", "::1")
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")
KINDS = {401: "authentication_error", 429: "rate_limit_error"}
GONE = 499  # of a client that has gone, as in nginx


class _Events(StreamingResponse):
    """A reply in pieces, which leaves the queue however it ends, begun or not."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], ended: ExitStack) -> None:
        super().__init__(events, headers={"cache-control": "no-cache"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._ended:
            await super().__call__(scope, receive, send)


class Server:
    """The routes and what they share. `app`: for an ASGI server such as uvicorn."""

    def __init__(
        self,
        model: LanguageModel,
        defaults: dict[str, Any],
        *,
        queue: int = 64,
        timeout_s: float = 600.0,
        key: str | None = None,
        name: str | None = None,
        host: str = LOCAL[0],
    ) -> None:
        """Serves a loaded model.

        Args:
            defaults: options of `generate` for what a request leaves out.
            queue: requests that are taken at the same time.
            timeout_s: of one request, from its first byte to its last.
            key: that a request has to bring; without one, only this machine's names are served.
            name: of the model in requests, beside its own.
            host: name of this machine, beside those that it always has.
        """
        self._model, self._defaults, self._timeout_s, self._key = model, defaults, timeout_s, key
        self.name, self._eos = name or model.config.model.name, eos_ids(model.lm)
        self._created, self._worker = int(time.time()), Worker(model, queue)
        self._metrics = ServerMetrics(self._worker)
        routes = [
            *(Route(path, self._complete, methods=["POST"]) for path in PATHS[:2]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._models),
            Route("/health", self._health),
            Route("/metrics", self._text),
        ]
        self._hosts = {*LOCAL, host}
        kinds = SkipbenchError, HTTPException, TimeoutError, ClientDisconnect, Exception
        handlers = dict.fromkeys(kinds, self._error)
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    async def _complete(self, request: Request) -> Response:
        """Both kinds of completions."""
        self._check_key(request)
        until = asyncio.get_running_loop().time() + self._timeout_s
        async with asyncio.timeout_at(until):
            body = await _body(request)
        chat = request.url.path.endswith("/chat/completions")
        asked = read_request(body, chat, self._eos, self._defaults, self._model.lm.vocabulary)
        self._check_model(asked.body.model)
        with ExitStack() as stack:
            stack.enter_context(self._worker.place())
            streams = await _watched(request, self._worker.streams(asked, until))
            for stream in streams:
                stack.callback(self._metrics.count, stream)
            reply = Reply(asked, self._model.tokenizer)
            if asked.body.stream:
                self._metrics.requests.labels(request.url.path, 200).inc()
                return _Events(self._events(reply, streams, until), stack.pop_all())
            body_of = await _watched(request, self._whole(reply, streams, until))
            self._metrics.requests.labels(request.url.path, 200).inc()
            return JSONResponse(body_of)

    async def _whole(self, reply: Reply, streams: list[Stream], until: float) -> dict[str, Any]:
        """A reply in one body."""
        for stream in streams:
            async with aclosing(self._worker.pieces(stream, until)) as pieces:
                async for _ in pieces:
                    pass
        return reply.whole([stream.so_far for stream in streams])

    async def _events(
        self, reply: Reply, streams: list[Stream], until: float
    ) -> AsyncGenerator[bytes, None]:
        """A reply as server-sent events; an error is the last one."""
        try:
            for index, stream in enumerate(streams):
                for event in reply.begin(index):
                    yield _event(event)
                wanted = reply.asked.options.get("logprobs") is not None
                async with aclosing(self._worker.pieces(stream, until)) as pieces:
                    async for piece in pieces:
                        found = stream.so_far.logprobs if wanted else []
                        yield _event(reply.piece(index, piece, found))
                yield _event(reply.end(index, stream.so_far))
            for event in reply.last([stream.so_far for stream in streams]):
                yield _event(event)
            yield b"data: [DONE]\n\n"
        except (SkipbenchError, TimeoutError) as error:
            yield _event(self._described(error)[1])

    def _check_host(self, request: Request) -> None:
        # a page in a browser may not reach the server by a name of its own (DNS rebinding)
        host = re.sub(r":\d*$", "", request.headers.get("host", "")).strip("[]").lower()
        if not self._key and host not in self._hosts:
            why = f"Host: {host[:80]} is served with a key alone, SKIPBENCH_API_KEY of the server"
            raise Refused(f"{why}; without one wanted {' or '.join(sorted(self._hosts))}")

    def _check_key(self, request: Request) -> None:
        self._check_host(request)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given if scheme.lower() == "bearer" else ""
        # headers are bytes, which Starlette reads as Latin-1
        if self._key and not hmac.compare_digest(given.encode("latin-1"), self._key.encode()):
            raise Refused("wrong or no API key", 401, code="invalid_api_key")

    def _check_model(self, name: str) -> None:
        if name not in (self.name, self._model.config.model.name):
            why = f"model={shown(name)} is not served; wanted {shown(self.name)}"
            raise Refused(why, 404, "model", "model_not_found")

    async def _models(self, request: Request) -> Response:
        self._check_key(request)
        config = self._model.config
        settings = {k: v for k, v in config.method.node.items() if k not in ("_target_", "name")}
        settings |= {"engine": config.engine.name, "dtype": config.model.dtype}
        one = {
            "id": self.name,
            "object": "model",
            "created": self._created,
            "owned_by": "skipbench",
            "method": self._model.method.name,
            "settings": settings,
            "version": version("skipbench"),
            "max_model_len": self._model.lm.max_positions,
        }
        if name := request.path_params.get("name"):
            self._check_model(name)
            return JSONResponse(one)
        return JSONResponse({"object": "list", "data": [one]})

    async def _health(self, request: Request) -> Response:
        self._check_host(request)
        return JSONResponse({"status": "ok", "waiting": self._worker.waiting})

    async def _text(self, request: Request) -> Response:
        self._check_host(request)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    def _described(self, error: Exception) -> tuple[int, dict[str, Any]]:
        """Status and body of an error."""
        message, status, param, code = str(error), 400, None, None
        if isinstance(error, Refused):
            status, param, code = error.status, error.param, error.code
        elif isinstance(error, HTTPException):
            status, allowed = error.status_code, (error.headers or {}).get("Allow")
            message = f"{error.detail}; wanted {allowed or ', '.join(PATHS)}"
        elif isinstance(error, ClientDisconnect):
            status, message = GONE, "the client has gone"
        elif isinstance(error, TimeoutError):
            status, message = 504, f"the request took longer than {self._timeout_s:g} s"
        elif not isinstance(error, SkipbenchError):
            status, message = 500, "the server failed; its log says why"
        kind = "server_error" if status >= 500 else KINDS.get(status, "invalid_request_error")
        return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}

    async def _error(self, request: Request, error: Exception) -> Response:
        status, body = self._described(error)
        path = request.url.path if request.url.path in PATHS else "other"
        self._metrics.requests.labels(path, status).inc()
        headers = {"retry-after": "1"} if status == 429 else getattr(error, "headers", None)
        return JSONResponse(body, status, headers)


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


async def _body(request: Request) -> bytes:
    """The body. Raises Refused for one that is too large."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES:
            raise Refused(f"the body has more than {BODY_BYTES} bytes", 413)
        parts.append(part)
    return b"".join(parts)


async def _watched(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled where the client goes: ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.wait({working, gone})


async def _gone(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
