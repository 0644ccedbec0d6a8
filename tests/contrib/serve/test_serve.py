"""The server, asked by OpenAI's own client: what works, what is refused by name, and that answers
of concurrent requests are those that they have alone, whoever goes away.
"""

import asyncio
import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import running
from msgspec.structs import fields

import skipbench as package
from skipbench.bench.prompts import eos_ids
from skipbench.decode.answer import Piece
from skipbench.decode.sampling import Logprob
from skipbench.language_model import LanguageModel

for needed in ("starlette", "prometheus_client"):
    pytest.importorskip(needed)
uvicorn = pytest.importorskip("uvicorn")
from skipbench.contrib.serve.app import Server  # noqa: E402  # needs starlette, asked for above
from skipbench.contrib.serve.refused import Refused  # noqa: E402  # as Server
from skipbench.contrib.serve.replies import Reply  # noqa: E402  # as Server
from skipbench.contrib.serve.requests import (  # noqa: E402  # as Server
    HINTS,
    NEUTRAL,
    Asked,
    ChatCompletion,
    Completion,
    read_request,
)

PROMPTS = ["Once upon a time", "Tom and Lily went", "The red ball", "One day, a bird"]
P, NEW = PROMPTS[0], 8


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return package.load("tiny", method="prompt-lookup")


@contextmanager
def served(model: LanguageModel, **options: Any) -> Iterator[int]:
    """The port of a server in a thread."""
    app = Server(model, {"temperature": 0.0}, **options).app
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port(tiny: LanguageModel) -> Iterator[int]:
    with served(tiny, queue=300) as port:
        yield port


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as made:
        yield made


def chat(client: Any, **more: Any) -> Any:
    said = [{"role": "user", "content": P}]
    return client.chat.completions.create(
        **{"model": "tiny", "messages": said, "max_tokens": NEW, **more}
    )


def complete(client: Any, **more: Any) -> Any:
    return client.completions.create(**{"model": "tiny", "prompt": P, "max_tokens": NEW, **more})


def text(reply: Any) -> str:
    choice = reply.choices[0]
    return str(choice.message.content if hasattr(choice, "message") else choice.text)


def streamed(events: Any) -> str:
    parts = [one.choices[0] for one in events if one.choices]
    return "".join((p.delta.content if hasattr(p, "delta") else p.text) or "" for p in parts)


Works = Callable[[Any, LanguageModel], object]
WORKS: dict[str, Works] = {
    "chat, streamed": lambda c, m: streamed(chat(c, stream=True)) == text(chat(c)),
    "max_completion_tokens": lambda c, m: chat(
        c, max_completion_tokens=3, max_tokens=None
    ).usage.completion_tokens == 3,
    "logprobs of chat": lambda c, m: [
        one.token for one in chat(c, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    ] == [max(one.top_logprobs, key=lambda t: t.logprob).token for one in chat(
        c, logprobs=True, top_logprobs=2).choices[0].logprobs.content],
    "logprobs of completions": lambda c, m: "".join(
        complete(c, logprobs=1).choices[0].logprobs.tokens) == text(complete(c)),
    "logprobs of a stream": lambda c, m: [
        token for one in complete(c, logprobs=1, stream=True)
        if one.choices[0].logprobs for token in one.choices[0].logprobs.tokens
    ] == complete(c, logprobs=1).choices[0].logprobs.tokens,
    "n": lambda c, m: [one.text for one in complete(c, n=2, temperature=1, seed=1).choices]
    == [m.generate(P, NEW, seed=s, temperature=1.0).text for s in (1, 2)],
    "a fresh seed": lambda c, m: len({text(complete(c, temperature=1)) for _ in range(4)}) > 1,
    "several prompts": lambda c, m: [one.text for one in complete(c, prompt=PROMPTS[:2]).choices]
    == [m.generate(p, NEW).text for p in PROMPTS[:2]],
    "token ids": lambda c, m: text(complete(c, prompt=m.tokenizer.encode(P)))
    == text(complete(c)),
    "usage of a stream": lambda c, m: [
        *chat(c, stream=True, stream_options={"include_usage": True})
    ][-1].usage.total_tokens == chat(c).usage.total_tokens,
    "accepted and drafted tokens": lambda c, m: complete(
        c, max_tokens=32).usage.completion_tokens_details.accepted_prediction_tokens
    == m.generate(P, 32).accepted > 0,
    "acceptance, as vLLM tells it": lambda c, m: all(
        of["num_accepted_draft_tokens"]
        == sum(n * times for n, times in enumerate(of["acceptance_histogram"])) > 0
        and of["num_spec_steps"] == sum(of["acceptance_histogram"])
        for reply in (
            complete(c, max_tokens=32),
            *list(complete(
                c, max_tokens=32, stream=True, stream_options={"include_usage": True}))[-1:],
        )
        for of in [reply.metrics["speculative_decoding"]]
    ) and complete(c, n=2).metrics is None,
    "models": lambda c, m: [one.id for one in c.models.list()] == [c.models.retrieve("tiny").id],
    "stop_token_ids, min_tokens": lambda c, m: complete(
        c, extra_body={"stop_token_ids": [m.generate(P, NEW).tokens[2]], "min_tokens": 1}
    ).usage.completion_tokens == 3,
    "ignore_eos": lambda c, m: [
        complete(c, max_tokens=3, logit_bias={str(min(eos_ids(m.lm))): 100},
                 extra_body={"ignore_eos": ignored}).usage.completion_tokens
        for ignored in (False, True)] == [1, 3],
}  # fmt: skip
CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())


def asked_of(**fields: Any) -> Asked:
    body = json.dumps({"model": "tiny"} | fields).encode()
    return read_request(body, "messages" in fields, frozenset(), {}, 9)


@pytest.mark.parametrize("kind", [Completion, ChatCompletion])
def test_fields_that_ask_for_nothing(kind: Any) -> None:
    """Nulls, as LangChain and other clients write them, hints, and neutral values."""
    said = [{"role": "developer", "content": [{"type": "text", "text": P}]}]
    own = {"prompt": ""} if kind is Completion else {"messages": said}
    nothing = {field.name: None for field in fields(kind) if field.required is False}
    nothing |= dict.fromkeys(HINTS, "x") | NEUTRAL | {"of another server": None}
    options = {"include_usage": None, "include_obfuscation": True, "continuous_usage_stats": True}
    asked = asked_of(**nothing | own | {"seed": 2**63 - 1, "stream_options": options})
    assert (asked.seeds, asked.prompts) == ([2**63 - 1], [own.get("messages", "")])
    assert asked.options.keys() - {"tools"} == asked_of(**own).options.keys() - {"tools"}
    for name, value in NEUTRAL.items():
        with pytest.raises(Refused, match=f"{name}=.* is not supported; wanted") as told:
            asked_of(**own, **{name: [value]})
        assert told.value.param == name


def test_messages_are_those_of_templates() -> None:
    """Without nulls, with calls as objects; what a template refuses is in a request's words."""
    made = {"name": "f", "arguments": '{"a": 1}'}
    call = {"role": "assistant", "content": None, "audio": None, "tool_calls": [{"function": made}]}
    (prompt,) = asked_of(messages=[call]).prompts
    calls = [{"function": {"name": "f", "arguments": {"a": 1}}}]
    assert prompt == [{"role": "assistant", "content": "", "tool_calls": calls}]
    model = package.load("tiny", method="vanilla")
    model.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with served(model) as port:
        body = json.dumps({"model": "tiny", "messages": [call]}).encode()
        status, reply, _ = reply_of(port, "POST", "/v1/chat/completions", body)
    error = json.loads(reply)["error"]
    assert (status, error["param"]) == (400, "messages")
    assert error["message"] == (
        "messages: the model's chat template refuses it: roles must alternate"
    )


def test_bytes_of_log_probabilities(tiny: LanguageModel) -> None:
    """They make up the text, characters of several tokens too; an EOS has none."""
    ids = [*tiny.tokenizer.encode(" é 😀!", add_special_tokens=False), min(eos_ids(tiny.lm))]
    found = [Logprob(token, -3.0, [(ids[-2], -1.0), (ids[-2], -2.0)]) for token in ids]
    piece = Piece("", tuple(ids))
    chat = Reply(asked_of(messages=[{"role": "user", "content": P}], logprobs=True), tiny.tokenizer)
    chat.asked.options["logprobs"] = 2
    told = chat.piece(0, piece, found)["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in told for byte in one["bytes"]).decode() == " é 😀!"
    assert all(one["top_logprobs"][-1]["bytes"] == one["bytes"] for one in told)
    text = Reply(asked_of(prompt=P, logprobs=2), tiny.tokenizer)
    told = text.piece(0, piece, found)["choices"][0]["logprobs"]
    assert told["text_offset"][-3:] == [3, 4, 5] and "\\xf0" in told["tokens"]
    assert told["tokens"][-1] in told["top_logprobs"][-1]


@pytest.mark.parametrize("feature", WORKS)
def test_works(client: Any, tiny: LanguageModel, feature: str) -> None:
    assert WORKS[feature](client, tiny)


@pytest.mark.parametrize("feature", CASES["same"])
def test_texts_are_those_of_generate(client: Any, tiny: LanguageModel, feature: str) -> None:
    asked, given = CASES["same"][feature]
    wanted = tiny.generate(P, NEW, **given).text
    assert text(complete(client, **asked)) == wanted
    assert streamed(complete(client, stream=True, **asked)) == wanted
    wanted = tiny.generate([{"role": "user", "content": P}], NEW, **given).text
    assert text(chat(client, **asked)) == wanted


@pytest.mark.parametrize("feature", CASES["refused"])
def test_refused_by_name(client: Any, feature: str) -> None:
    openai = pytest.importorskip("openai")
    more, status, says = CASES["refused"][feature]
    with pytest.raises(openai.APIStatusError, match=says) as told:
        chat(client, **more)
    assert told.value.status_code == status and told.value.body["type"] == "invalid_request_error"


def reply_of(port: int, *request: Any) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(*request)
    reply = connection.getresponse()
    found = reply.status, reply.read(), reply.headers
    connection.close()
    return found


def raw(port: int, body: bytes, **headers: str) -> tuple[int, bytes]:
    return reply_of(port, "POST", "/v1/completions", body, headers)[:2]


def health(port: int, path: str = "/health") -> Any:
    body = reply_of(port, "GET", path)[1]
    return json.loads(body) if path == "/health" else body.decode()


MALFORMED = [b"", b"{", b"[]", b"\xff\xfe", b"[" * 5000, b'{"model": "tiny"}', b"null",
             b'{"model": "tiny", "prompt": 1}', b'{"model": "tiny", "prompt": ["a", 1]}',
             b'{"model": "tiny", "prompt": "a", "max_tokens": -1}']  # fmt: skip


async def crowd(port: int, requests: int, cancelled: int, malformed: int) -> list[tuple[int, str]]:
    """Asks at the same time, streamed or not; returns the finished answers with their numbers."""
    openai = pytest.importorskip("openai")
    lots = random.Random(0)
    gone = {*lots.sample(range(requests), cancelled)}
    found: list[tuple[int, str]] = []
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0, timeout=600
    ) as asked:

        async def ask(i: int) -> None:
            how = {"model": "tiny", "prompt": PROMPTS[i % 4], "max_tokens": NEW, "seed": i}
            how |= {"temperature": float(i % 2)}
            if i in gone:
                late = lots.random() * requests / 50
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(
                        asked.completions.create(**how | {"max_tokens": 500}), late
                    )
            elif i % 3:
                found.append((i, (await asked.completions.create(**how)).choices[0].text))
            else:
                events = await asked.completions.create(**how, stream=True)
                found.append((i, "".join([e.choices[0].text async for e in events])))

        async def spoil(i: int) -> None:
            status, body = await asyncio.to_thread(raw, port, MALFORMED[i % len(MALFORMED)])
            assert status == 400 and json.loads(body)["error"]["message"], body

        await asyncio.gather(*map(ask, range(requests)), *map(spoil, range(malformed)))
    return found


@pytest.mark.parametrize(
    "sizes", [(10, 4, 10), pytest.param((200, 100, 20), marks=pytest.mark.slow)]
)
def test_a_crowd_gets_right_answers(
    port: int, tiny: LanguageModel, sizes: tuple[int, int, int]
) -> None:
    found = asyncio.run(crowd(port, *sizes))
    assert len(found) >= sizes[0] - sizes[1]
    for i, answer in found:
        alone = tiny.generate(PROMPTS[i % 4], NEW, seed=i, temperature=float(i % 2))
        assert answer == alone.text, i
    deadline = time.monotonic() + 60
    while health(port)["waiting"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert health(port) == {"status": "ok", "waiting": 0}


def test_who_goes_away_is_not_decoded_on(port: int, client: Any) -> None:
    events = chat(client, max_tokens=900, stream=True)
    next(iter(events))
    events.close()
    while health(port)["waiting"]:
        time.sleep(0.02)

    def generated() -> float:
        page: str = health(port, "/metrics")
        return float(page.partition("\nskipbench_generation_tokens_total ")[2].split()[0])

    before = generated()
    assert text(complete(client))
    assert generated() == before + NEW, "the answer that nobody reads went on"


def test_limits(tiny: LanguageModel) -> None:
    long = {"model": "tiny", "prompt": "Once", "max_tokens": 900, "min_tokens": 900}
    body = json.dumps(long).encode()
    with served(tiny, queue=1, timeout_s=0.5) as port:
        found = list[int]()
        first = threading.Thread(target=lambda: found.append(raw(port, body)[0]))
        first.start()
        while not health(port)["waiting"]:
            time.sleep(0.01)
        status, reply = raw(port, body)
        assert status == 429 and "the queue holds 1" in json.loads(reply)["error"]["message"]
        first.join()
        assert found == [504]
        assert raw(port, b" " * (5 << 20))[0] == 413
        status, reply = raw(port, body, host="evil.example")
        told = json.loads(reply)["error"]["message"]
        assert status == 400 and "Host: evil.example" in told and "SKIPBENCH_API_KEY" in told
    with served(tiny, key="secret") as port:
        assert raw(port, body)[0] == raw(port, body, authorization="Bearer x")[0] == 401
        short = json.dumps(long | {"max_tokens": 2, "min_tokens": 0}).encode()
        assert raw(port, short, authorization="bearer secret")[0] == 200
        health(port, "/v1/models/1")
        assert 'path="/v1/models/' not in health(port, "/metrics")
    with served(tiny, host="127.0.0.2") as port:
        assert raw(port, short, host="127.0.0.2")[0] == 200
        status, reply, headers = reply_of(port, "GET", "/v1/completions")
        assert status == 405 and headers["allow"] == "POST" and b"wanted POST" in reply
        assert b"/v1/chat/completions, /v1/completions" in reply_of(port, "GET", "/v1/rerank")[1]


def test_a_request_of_many_prompts_ends_in_time(tiny: LanguageModel) -> None:
    many = {"model": "tiny", "prompt": ["Once upon a time " * 50] * 1024, "max_tokens": 1}
    with served(tiny, timeout_s=0.3) as port:
        began = time.monotonic()
        assert raw(port, json.dumps(many).encode())[0] == 504 and time.monotonic() - began < 10
        many["prompt"].append("a")  # type: ignore[attr-defined]  # a list
        status, reply = raw(port, json.dumps(many).encode())
        assert status == 400 and "are 1025; at most 1024" in json.loads(reply)["error"]["message"]


def test_other_hosts_need_a_key(skipbench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIPBENCH_API_KEY", raising=False)
    done = skipbench("serve", "host=0.0.0.0")
    assert done.returncode == 2 and "set SKIPBENCH_API_KEY" in done.stderr


def test_a_port_in_use_and_sigterm(skipbench: Any, tmp_path: Path) -> None:
    """The port is taken before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = skipbench("serve", f"port={port}", "model.path=/nowhere")
        assert done.returncode == 2 and f":{port}: address already in use" in done.stderr

    def end() -> None:
        """Waits for the server, and ends it alone."""
        for _ in range(600):
            with suppress(OSError):
                if health(port)["status"] == "ok":
                    return os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    threading.Thread(target=end).start()
    done = skipbench("serve", "method=vanilla", f"port={port}", f"results={tmp_path}")
    assert done.returncode == 0 and done.stderr.endswith("ended\n")


@pytest.mark.slow
def test_the_memory_stays_flat(tmp_path: Path) -> None:
    """A server of its own over 1,000 requests; Ctrl-C ends it."""
    words = ["serve", "model=tiny", "method=auto", "port=PORT", f"results={tmp_path}"]
    sizes = list[int]()
    with running(sys.executable, "-m", "skipbench", *words) as (address, server):
        for i in range(1000):
            body = {"model": "tiny", "prompt": f"{PROMPTS[i % 4]} {i}", "max_tokens": 4}
            assert raw(int(address.rpartition(":")[2]), json.dumps(body).encode())[0] == 200
            pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
            sizes.append(pages * os.sysconf("SC_PAGE_SIZE") >> 10)
        assert sizes[-1] - sizes[99] < 8 << 10, (sizes[99], sizes[-1])
        server.send_signal(signal.SIGINT)
        assert server.wait(3600) == 0
