"""Servers take turns on the prompts, under a closed loop of clients, and fill a row."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from skipbench.contrib.servers.about import FIRST, Server, pages_of, refuse_changes
from skipbench.contrib.servers.client import ABSENT, PASSING, Fault, ask, fetch
from skipbench.contrib.servers.told import counters, since
from skipbench.data.chat import as_messages, as_text
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import hashed
from skipbench.runs.record import VANILLA, Arm, Seconds, Texts, Turn
from skipbench.runs.served import DraftCounts, Served
from skipbench.runs.store import append_turn, read_texts, row_turns

TRIES = 3  # of a request whose fault may pass
PAUSE_S = 0.5  # before the second try, and so much more before each later one, up to:
MOST_S = 5.0
WARM = 2  # requests that do not count, before an arm's first turn with one client
BLOCK = 2  # prompts of a turn per client, where there are several
FAILED = Arm([], [], Seconds(0.0, 0.0, 0.0, 0.0, 0.0), "failed", lossless="failed")


@dataclass
class Job:
    """A request, and what came of it: an answer with its text, or an error."""

    row: Example
    request: dict[str, Any]
    error: str = ""
    answer: Arm = FAILED
    text: str = ""

    def note(self, **known: Any) -> None:
        """Adds to what is known of the answer beside its text."""
        served = replace(self.answer.served or Served(), **known)
        self.answer = replace(self.answer, served=served)


@dataclass
class Load:
    """What is measured, and the row that its turns are added to.

    Attributes:
        servers: by letter, with their `keys`.
        clients: requests in flight.
        body: fields of all requests.
        chat: the form of prompts: `none` and `vicuna`, texts; `template`, messages.
        timeout_s: silence after which an answer counts as stalled, and time that a server may be
            gone.
    """

    row: Path
    servers: Mapping[str, Server]
    keys: Mapping[str, str] = field(repr=False)
    rows: Sequence[Example]
    clients: int
    body: Mapping[str, Any]
    chat: str
    seed: int
    timeout_s: float
    warm: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    telling: set[str] = field(default_factory=set)  # whose answers count verifications

    @cached_property
    def again(self) -> set[str]:
        """Ids of stored turns to ask again: a server failed in a way that may pass, or at an
        earlier turn of their conversations. None where a server is gone.
        """
        turns = row_turns(self.row)
        failed = [t.id for t in turns for arm in t.arms.values() if PASSING.match(arm.error or "")]
        found = {*failed}
        for row in self.rows:
            found |= {row.id} if row.after in found else set()
        try:
            for name in self.servers if found else ():
                self._pages(name)
        except Fault as fault:
            found = set() if str(fault).startswith(ABSENT) else found
        return found & {turn.id for turn in turns}

    def measure(self, advance: Callable[[str], None]) -> None:
        """Asks every arm the prompts without a turn. Later turns of a conversation go on after the
        first arm's answers, for all arms.
        """
        from skipbench.bench.turns import arm_order  # with torch, which takes seconds

        rows, (first, *others) = {row.id: row for row in self.rows}, self.servers
        kept = [turn for turn in row_turns(self.row) if turn.id not in self.again]
        there, texts = {turn.id: turn for turn in kept}, read_texts(self.row / first)
        sound = [turn for turn in there.values() if turn.arms[first].finish != "failed"]
        said = {turn.id: texts[turn.index].arms[first] for turn in sound if turn.index in texts}
        before, number, started = dict[str, list[Example]](), count(), time.time()
        for row in self.rows:
            before[row.id] = [*before[row.after], rows[row.after]] if row.after else []
        size = BLOCK * self.clients if self.clients > 1 else 1
        for depth in sorted({len(turns) for turns in before.values()}):
            same = [row for row in self.rows if len(before[row.id]) == depth]
            for block in (same[at : at + size] for at in range(0, len(same), size)):
                order = arm_order(self.seed, others, at := next(number))
                missing = [row for row in block if row.id not in there]
                jobs = dict[str, list[Job]]()
                for name in (first if name == VANILLA else name for name in order):
                    jobs[name] = [self._job(name, r, before[r.id], said) for r in missing]
                    self._turn(name, jobs[name], advance)
                said |= {job.row.id: job.text for job in jobs[first] if not job.error}
                for turn in zip(*jobs.values(), strict=True):
                    self._store(dict(zip(jobs, turn, strict=True)), f"{started:.0f}/{at}")
        for name in self.answered:  # one that began anew meanwhile may be another
            with suppress(Fault):
                refuse_changes(self.servers[name], self._pages(name))

    def _job(
        self, name: str, row: Example, before: Sequence[Example], said: Mapping[str, str]
    ) -> Job:
        """A request before it is sent; `said`: the first arm's answers."""
        lost = [turn.id for turn in before if turn.id not in said]
        turns = [] if lost else [(turn.prompt, said[turn.id]) for turn in before]
        asked: dict[str, Any] = {"prompt": as_text(turns, row.prompt, self.chat)}
        if self.chat == "template":
            last = row.messages or [{"role": "user", "content": row.prompt}]
            asked = {"messages": as_messages(turns, last)}
        asked |= row.template
        seed = {"seed": self.seed + self.rows.index(row)} if self.body["temperature"] else {}
        server = self.servers[name]
        request = {"model": server.model, **asked, **self.body, **seed, **server.extra}
        return Job(row, request, f"no answer of {FIRST} to {lost[0]}" if lost else "")

    def _store(self, jobs: Mapping[str, Job], block: str) -> None:
        """Stores a turn. With several clients the answers of a block wait for each other: it is one
        question.
        """
        job = next(iter(jobs.values()))
        row, request, index = job.row, job.request, self.rows.index(job.row)
        prompt, messages = request.get("prompt", row.prompt), request.get("messages", [])
        served = [one.answer.served for one in jobs.values() if one.answer.served]
        lengths = (one.usage.get("prompt_tokens") for one in served)
        turn = Turn(
            index=index,
            id=row.id,
            prompt_hash=hashed(messages or prompt),
            prompt_tokens=next((n for n in lengths if isinstance(n, int) and n >= 0), 0),
            order=[*jobs],
            arms={name: one.answer for name, one in jobs.items()},
            groups=row.groups,
            question=block if self.clients > 1 else row.question,
        )
        given = {name: one.text for name, one in jobs.items()}
        texts = Texts(index, row.id, prompt, row.reference, given, messages)
        append_turn(self.row, turn, texts, row.id in self.again)

    def _turn(self, name: str, jobs: Sequence[Job], advance: Callable[[str], None]) -> None:
        """A server's turn on a block."""
        if jobs and self.clients == 1 and name not in self.warm:
            for job in islice(fillers(jobs), WARM):
                self._ask(name, job)
            self.warm.add(name)
        before = self._counters(name) if jobs else None
        for at, job in enumerate(closed_loop(jobs, self.clients, partial(self._ask, name)), 1):
            if job.answer.served and job.answer.served.told:
                self.telling |= {name} if job.answer.served.told.steps is not None else set()
            if before and at == len(jobs):
                job.note(counted=since(before, self._counters(name)))
            advance(job.error)

    def _counters(self, name: str) -> DraftCounts | None:
        """Of a server's drafts, where it has such and its answers do not tell."""
        with suppress(Fault):
            page = self.servers[name].url, "/metrics", self.keys[name]
            return None if name in self.telling else counters(fetch(*page))
        return None

    def _pages(self, name: str) -> dict[str, dict[str, Any]]:
        """What a server says of itself now. Raises Fault where nobody listens or it loads."""
        server = self.servers[name]
        return pages_of(server.url, server.extra.get("model"), self.keys[name])

    def _ask(self, name: str, job: Job) -> None:
        """Asks until there is an answer, or no other try can help. Raises SkipbenchError for a
        server that stays away, or that comes back as another one.
        """
        begun, wait_s, tries, faults = time.monotonic(), 0.0, 0, list[str]()
        url, key, away = self.servers[name].url, self.keys[name], False
        while not job.error:
            try:
                if away:
                    refuse_changes(self.servers[name], self._pages(name))
                job.answer, job.text = ask(url, job.request, self.timeout_s, key)
                self.answered.add(name)
                break
            except Fault as fault:
                faults += [text] if faults[-1:] != [text := str(fault)] else []
                away = fault.away
                late = away and time.monotonic() - begun > self.timeout_s
                if late and (fault.loads or name not in self.answered):
                    advice = "the same command goes on when it is back"
                    raise SkipbenchError(f"{url}: {text}; {advice}") from fault
                tries += not away
                job.error = "" if fault.passing and tries < TRIES and not late else text
                wait_s = min(fault.wait_s or min(wait_s + PAUSE_S, MOST_S), self.timeout_s)
            time.sleep(0 if job.error else wait_s)
        if job.error:
            job.answer = replace(FAILED, error=job.error)
        job.note(faults=faults)


def fillers(jobs: Sequence[Job], start: int = 1, step: int = 1) -> Iterator[Job]:
    """Requests like these that do not count. Each begins with a number of its own, so that no cache
    of prompts knows it, nor the prompts by it.
    """
    for number in count(start, step):
        job, mark = jobs[number % len(jobs)], f"({number}) "
        request = dict(job.request)
        if "prompt" in request:
            request["prompt"] = mark + request["prompt"]
        else:
            head, *rest = request["messages"]
            request["messages"] = [{**head, "content": mark + str(head["content"])}, *rest]
        yield Job(job.row, request, job.error)


def closed_loop(jobs: Sequence[Job], clients: int, ask: Callable[[Job], None]) -> Iterator[Job]:
    """The `jobs` as they are answered. Each client sends its next request when it has the answer to
    its last. With several clients, each begins with a request that does not count, and goes on with
    such ones until all that count are answered: these meet the whole load.
    """
    waiting, answered, done = deque(jobs), list[Job](), SimpleQueue[Job | BaseException]()

    def work(client: int) -> None:
        more = fillers(jobs, client + 1, clients)
        try:
            if clients > 1:
                ask(next(more))
            while waiting:
                try:
                    job = waiting.popleft()
                except IndexError:  # another client was faster
                    break
                ask(job)
                answered.append(job)
                done.put(job)
            while clients > 1 and len(answered) < len(jobs):
                ask(next(more))
        except BaseException as error:  # raised by the one who reads
            done.put(error)

    number = clients if jobs else 0
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    for _ in jobs:
        if isinstance(one := done.get(), BaseException):
            raise one
        yield one
    for thread in threads:
        thread.join()
