"""Arms take turns on the prompts, under a closed loop of clients, and every answer is a record."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from skipbench.contrib.servers.client import Fault, ask, fetch
from skipbench.contrib.servers.records import DraftCounts, Record
from skipbench.contrib.servers.told import counters, since
from skipbench.data.chat import as_messages, as_text
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line
from skipbench.runs.record import VANILLA

TRIES = 3  # of a request whose fault may pass
PAUSE_S = 0.5  # before the second try, and so much more before each later one
WARM = 2  # requests that do not count, before an arm's first turn with one client
BLOCK = 2  # prompts of a turn per client, where there are several


@dataclass
class ServerArm:
    """A server, further fields of the requests to it, its key, and whether its counters are of use
    and it has answered before.
    """

    name: str
    url: str
    model: str
    extra: Mapping[str, Any]
    key: str = field(default="", repr=False)
    counts: bool = True
    warm: bool = False

    def counters(self) -> DraftCounts | None:
        """Of its drafts, where it has such and its answers do not tell."""
        try:
            return counters(fetch(self.url, "/metrics", self.key)) if self.counts else None
        except Fault:
            return None


@dataclass
class Load:
    """What is measured, and the file that its records are added to.

    Attributes:
        body: fields of all requests.
        chat: the form of prompts: `none` and `vicuna`, texts; `template`, messages.
        timeout_s: silence after which an answer counts as stalled, and time that a server may be
            gone.
    """

    file: Path
    arms: Sequence[ServerArm]
    rows: Sequence[Example]
    body: Mapping[str, Any]
    chat: str
    seed: int
    timeout_s: float
    records: list[Record]

    def measure(self, concurrency: int, advance: Callable[[str], None]) -> None:
        """Asks every arm what it lacks at this number of clients. Later turns of a conversation go
        on after the first arm's answers, for all arms.
        """
        from skipbench.bench.turns import arm_order  # with torch, which takes seconds

        arms, known = {arm.name: arm for arm in self.arms}, {row.id: row for row in self.rows}
        first, *others = arms
        before = dict[str, list[Example]]()
        for row in self.rows:
            before[row.id] = [*before[row.after], known[row.after]] if row.after else []
        done = {(r.arm, r.id): r for r in self.records if r.concurrency == concurrency}
        size, number, started = BLOCK * concurrency if concurrency > 1 else 1, count(), time.time()
        for depth in sorted({len(turns) for turns in before.values()}):
            rows = [row for row in self.rows if len(before[row.id]) == depth]
            for block in (rows[at : at + size] for at in range(0, len(rows), size)):
                for name in arm_order(self.seed, others, at := next(number)):
                    arm = arms[first if name == VANILLA else name]
                    answered = {one: done[first, one] for one in before if (first, one) in done}
                    jobs = [
                        self._job(arm, concurrency, row, before[row.id], answered)
                        for row in block
                        if (arm.name, row.id) not in done
                    ]
                    for record in self._turn(arm, jobs, f"{started:.0f}/{at}"):
                        done[arm.name, record.id] = record
                        advance(record.error)

    def _job(
        self,
        arm: ServerArm,
        clients: int,
        row: Example,
        before: Sequence[Example],
        done: Mapping[str, Record],
    ) -> Record:
        """The record of a request before it is sent; `done`: the first arm's."""
        lost = [turn.id for turn in before if turn.id not in done or done[turn.id].error]
        turns = [] if lost else [(turn.prompt, done[turn.id].texts[0]) for turn in before]
        asked: dict[str, Any] = {"prompt": as_text(turns, row.prompt, self.chat)}
        if self.chat == "template":
            last = row.messages or [{"role": "user", "content": row.prompt}]
            asked = {"messages": as_messages(turns, last)}
        seed = {"seed": self.seed + self.rows.index(row)} if self.body["temperature"] else {}
        return Record(
            arm=arm.name,
            concurrency=clients,
            turn="",
            id=row.id,
            question=row.question or row.id,
            groups=row.groups,
            request={"model": arm.model, **asked, **self.body, **seed, **arm.extra},
            error=f"no answer of {self.arms[0].name} to {lost[0]}" if lost else "",
        )

    def _turn(self, arm: ServerArm, jobs: Sequence[Record], turn: str) -> Iterator[Record]:
        """An arm's turn; a record is written when it is there."""
        if jobs and jobs[0].concurrency == 1 and not arm.warm:
            for job in islice(fillers(jobs), WARM):
                self._ask(arm, job)
            arm.warm = True
        before = arm.counters() if jobs else None
        for at, record in enumerate(closed_loop(jobs, lambda job: self._ask(arm, job)), 1):
            record.turn = turn
            arm.counts = arm.counts and getattr(record.acceptance, "steps", None) is None
            if before and at == len(jobs):
                record.counted = since(before, arm.counters())
            append_line(self.file, msgspec.json.encode(record).decode())
            self.records.append(record)
            yield record

    def _ask(self, arm: ServerArm, job: Record) -> None:
        """Asks until there is an answer, or no other try can help, and fills the record. Raises
        SkipbenchError for a server that stays away.
        """
        begun, wait_s, tries = time.monotonic(), 0.0, 0
        while not job.error:
            try:
                job.at = time.time()
                for name, value in ask(arm.url, job.request, self.timeout_s, arm.key).items():
                    setattr(job, name, value)
                return
            except Fault as fault:
                if job.faults[-1:] != [text := str(fault)]:
                    job.faults = [*job.faults, text]
                if fault.absent and time.monotonic() - begun > self.timeout_s:
                    advice = "the same command goes on when it is back"
                    raise SkipbenchError(f"{arm.url}: {text}; {advice}") from fault
                tries += not fault.absent
                job.error = "" if fault.passing and tries < TRIES else text
                wait_s = min(fault.wait_s or wait_s + PAUSE_S, self.timeout_s)
            time.sleep(0 if job.error else wait_s)


def fillers(jobs: Sequence[Record], start: int = 1, step: int = 1) -> Iterator[Record]:
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
        yield msgspec.structs.replace(job, request=request)


def closed_loop(jobs: Sequence[Record], ask: Callable[[Record], None]) -> Iterator[Record]:
    """The `jobs` as they are answered. Each client sends its next request when it has the answer to
    its last. With several clients, each begins with a request that does not count, and goes on with
    such ones until all that count are answered: these meet the whole load.
    """
    waiting, answered, done = deque(jobs), list[Record](), SimpleQueue[Record | BaseException]()
    clients = jobs[0].concurrency if jobs else 0

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

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    for _ in jobs:
        if isinstance(one := done.get(), BaseException):
            raise one
        yield one
    for thread in threads:
        thread.join()
