"""What `bench` of servers finds, and what its client takes and adds:

    python scripts/bench_servers.py [pairs] [load] [times]

`pairs`: one server as both arms, and one that sleeps a tenth longer per token; a row is 24 prompts,
with 8 in flight 80, and each command asks for many. `load`: what the client's process takes from
its first 100 answers to its last, at 32 in flight. `times`: the client's times beside those of a
server that answers from memory, by the clock that both have; its streams have their tokens at the
same ticks, as a batch has. `serve` is with the embedded model. Servers and clients are processes of
their own. A line per figure, with its bar and the load of the machine.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from skipbench.contrib.servers.client import Fault, fetch
from skipbench.contrib.servers.levels import Level
from skipbench.contrib.servers.records import Record, read_records
from skipbench.metrics.interval import paired_ratio_interval

TOKENS, ROW, PORT = 16, 24, 8316
SLEEPS_S = 0.01, 0.011  # per token; asyncio sleeps whole milliseconds
TICK_S, REPEATS = 0.02, 3
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
PAGE = HEAD + b'Content-Length: 28\r\n\r\n{"data": [{"id": "memory"}]}'
STREAM = HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WORD = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
Sample = tuple[float, float, float]


def event(data: object) -> bytes:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return b"%x\r\ndata: %s\n\n\r\n" % (len(text) + 8, text)


async def memory_servers(given: Sequence[tuple[float, bool]]) -> None:
    """Servers from memory until the process is ended. A token is there every so many seconds of
    sleep, or of the clock; `usage` has when the request was read and the tokens were written.
    """

    async def server(pause_s: float, ticks: bool) -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request, times, word = await reader.readuntil(b"\r\n\r\n"), [time.time()], event(WORD)
            if request.startswith(b"GET"):
                writer.write(PAGE)
            else:
                writer.write(STREAM)
                for _ in range(TOKENS):
                    await asyncio.sleep(pause_s - time.time() % pause_s if ticks else pause_s)
                    times.append(time.time())
                    writer.write(word)
                await asyncio.sleep(0.001)  # the client's turn, where both have one core
                usage = {"completion_tokens": TOKENS, "times": [*times[:2], times[-1]]}
                last = END, {"choices": [], "usage": usage}, b"[DONE]"
                writer.write(b"".join(map(event, last)) + b"0\r\n\r\n")
            writer.close()

        return await asyncio.start_server(answer, "127.0.0.1", 0, backlog=128)

    made = [await server(*one) for one in given]
    print(*("http://127.0.0.1:{1}".format(*one.sockets[0].getsockname()) for one in made))
    sys.stdout.flush()
    await asyncio.Event().wait()


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """One of Python's, which ends with the block."""
    out, err = subprocess.PIPE, subprocess.DEVNULL
    child = subprocess.Popen([sys.executable, *words], text=True, stdout=out, stderr=err)
    try:
        yield child
    finally:
        child.terminate()
        child.communicate()


@contextmanager
def memory(*given: tuple[float, bool]) -> Iterator[list[str]]:
    """Addresses of servers from memory."""
    with process(__file__, "memory", json.dumps(given)) as child:
        assert child.stdout
        yield child.stdout.readline().split()


@contextmanager
def served() -> Iterator[list[str]]:
    """The address of `serve`, for two arms."""
    url, settings = f"http://127.0.0.1:{PORT}", ("model=tiny", "method=vanilla", f"port={PORT}")
    with process("-m", "skipbench", "serve", *settings) as child:
        while True:
            assert child.poll() is None, "serve has ended"
            try:
                fetch(url, "/health")
                break
            except Fault:
                time.sleep(0.1)
        yield [url, url]


def used(process: int) -> Sample:
    """Now, seconds of the CPU, and resident bytes."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.time(), cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def bench(
    urls: Sequence[str], prompts: int, concurrency: str
) -> tuple[list[Record], list[tuple[int, Sample]]]:
    """The records of a bench, and what its process had used after so many of them."""
    with tempfile.TemporaryDirectory() as folder:
        path, seen = Path(folder) / "prompts.jsonl", list[tuple[int, Sample]]()
        path.write_text("".join(f'{{"prompt": "Story {n}: once"}}\n' for n in range(prompts)))
        words = ["dataset=prompts", f"dataset.path={path}", "limit=null", f"results={folder}"]
        words += [f"dataset.max_new_tokens={TOKENS}", f"concurrency={concurrency}"]
        with process("-m", "skipbench", "bench", *urls, *words) as child:
            while child.poll() is None:
                time.sleep(0.25)
                for file in Path(folder).rglob("requests.jsonl"):
                    seen.append((file.read_bytes().count(b"\n"), used(child.pid)))
        assert child.returncode == 0
        return read_records(next(Path(folder).rglob("requests.jsonl")).parent), seen


def line(figure: str, value: str, bar: str = "") -> None:
    print(f"{figure:58} {value:30} {bar:12} load {os.getloadavg()[0]:.1f}", flush=True)


def pairs() -> None:
    """How many rows have an interval with 1."""
    sleeps, longer = ((one, False) for one in SLEEPS_S)
    for figure, servers, clients, rows, bar in (
        ("one server from memory", memory(sleeps, sleeps), 1, 20, "19 or more"),
        ("a tenth slower", memory(sleeps, longer), 1, 5, "0"),
        ("serve", served(), 1, 20, "19 or more"),
        ("serve, 8 in flight", served(), 8, 20, "19 or more"),
    ):
        size = ROW if clients == 1 else 10 * clients
        with servers as urls:
            records, _ = bench(urls, rows * size, str(clients))
        ids, ratios = [*dict.fromkeys(r.id for r in records)], list[tuple[float, bool]]()
        for at in range(0, len(ids), size):
            own = [r for r in records if r.id in ids[at : at + size]]
            mean, ends = paired_ratio_interval([*Level(own, ["A", "B"], {}).ratios("B").values()])
            ratios.append((mean, ends is not None and ends[0] <= 1 <= ends[1]))
        held, middle = (
            sum(held for _, held in ratios),
            statistics.median(mean for mean, _ in ratios),
        )
        line(f"{figure}: rows of {rows} that hold 1", f"{held}, median ratio {middle:.3f}", bar)


def load() -> None:
    """The client's process at 32 in flight."""
    with served() as urls:
        records, seen = bench(urls, 500, "32")
    between = [one for count, one in seen if 100 <= count < len(records)]
    (begun, cpu_s, first), (ended, until_s, last) = between[0], between[-1]
    wrong = sum(bool(r.error or r.faults) for r in records)
    line(f"serve, 32 in flight: faults of {len(records)}", str(wrong), "0")
    line("    client's CPU, of a core", f"{(until_s - cpu_s) / (ended - begun):.3f}", "< .150")
    line("    its MB after 100 and at the end", f"{first / 1e6:.1f} {last / 1e6:.1f}", "flat")


def times() -> None:
    """Medians over requests of what the client's times have beyond the server's; of each repeat."""
    medians_ms = dict[str, list[float]]()
    for _ in range(REPEATS):
        with memory(*[(TICK_S, True)] * 2) as urls:
            records, _ = bench(urls, 64, "1,8,32")
        each = dict[str, list[float]]()
        for record in records:
            assert record.response and record.itl_s
            asked, first, last = record.response["usage"]["times"]
            for name, value in {
                "a token after the first (ITL)": record.itl_s - (last - first) / (TOKENS - 1),
                "a token, end to end": (record.seconds - (last - asked)) / TOKENS,
                "first token (TTFT), accepting included": record.ttft_s - (first - asked),
                "from a write to its time, last token": record.at + record.seconds - last,
            }.items():
                each.setdefault(f"{record.concurrency} in flight: {name}", []).append(value)
        for name, values in each.items():
            medians_ms.setdefault(name, []).append(1e3 * statistics.median(values))
    for name, values in medians_ms.items():
        text = " ".join(f"{value:.3f}" for value in sorted(values))
        line(f"{name}, ms", text, "< .200" if "a token" in name else "")


def main() -> None:
    if sys.argv[1:2] == ["memory"]:
        asyncio.run(memory_servers(json.loads(sys.argv[2])))
    parts = {"pairs": pairs, "load": load, "times": times}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
