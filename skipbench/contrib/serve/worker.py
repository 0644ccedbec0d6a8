"""One decoding at a time, behind a bounded queue."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from skipbench.bench.ask import PromptType
from skipbench.contrib.serve.refused import Refused, by_generate
from skipbench.contrib.serve.requests import Asked
from skipbench.decode.answer import Piece, Stream
from skipbench.errors import SkipbenchError
from skipbench.language_model import LanguageModel

T = TypeVar("T")


class Worker:
    """A model and the thread of its work; `waiting`: requests that wait or are decoded."""

    def __init__(self, model: LanguageModel, queue: int) -> None:
        """`queue`: requests that are taken at the same time; further ones are refused."""
        self.model, self.queue, self.waiting = model, queue, 0
        self._thread = ThreadPoolExecutor(1, "decode")
        self._turn = asyncio.Lock()  # serves in order

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue. Raises Refused where it is full."""
        if self.waiting >= self.queue:
            why = f"{self.waiting} requests wait, and the queue holds {self.queue}; ask later"
            raise Refused(why, 429, code="rate_limit_exceeded")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def streams(self, asked: Asked, until: float) -> list[Stream]:
        """The answers of a request before their first step. Raises Refused for what `generate`
        does not take. `until`: time of the loop at which TimeoutError is raised.
        """

        def made(prompt: PromptType, seed: int) -> Stream:
            try:
                return self.model.generate(prompt, stream=True, seed=seed, **asked.options)
            except SkipbenchError as error:
                raise by_generate(error, asked.chat) from error

        found = list[Stream]()
        async with asyncio.timeout_at(until):
            for prompt, seed in zip(asked.prompts, asked.seeds, strict=True):
                # a job per prompt, so that rounds of others come between
                found.append(await self._do(partial(made, prompt, seed)))
        return found

    async def pieces(self, stream: Stream, until: float) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer when its turn has come. Cancelled or closed, it ends the answer
        after the current round. `until`: time of the loop at which TimeoutError is raised.
        """
        async with asyncio.timeout_at(until):
            await self._turn.acquire()
        try:
            while True:
                async with asyncio.timeout_at(until):
                    piece = await self._do(lambda: next(stream, None))
                if piece is None:
                    return
                yield piece
        finally:
            # the thread may be in a round of it still; it closes the stream after that
            self._thread.submit(stream.close)
            self._turn.release()

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
