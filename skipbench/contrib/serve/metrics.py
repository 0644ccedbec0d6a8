"""`/metrics`, for Prometheus."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from skipbench.contrib.serve.worker import Worker
from skipbench.decode.answer import Stream

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
COUNTS = {
    "prompt_tokens": "tokens of prompts",
    "generation_tokens": "tokens of answers",
    "rounds": "verification passes",
    "drafted_tokens": "draft steps",
    "accepted_tokens": "draft tokens that verification accepted",
}
TIMES = {
    "time_to_first_token": "prefill, without the queue",
    "decode": "answers, without the queue",
}


class ServerMetrics:
    """What the server has done since it began."""

    def __init__(self, worker: Worker) -> None:
        self._registry = registry = CollectorRegistry()
        waiting = Gauge("skipbench_requests_in_queue", "requests now", registry=registry)
        waiting.set_function(lambda: worker.waiting)
        counter = partial(Counter, registry=registry)
        self.requests = counter("skipbench_requests", "replies by status", ["path", "status"])
        self._counts = {k: counter(f"skipbench_{k}", v) for k, v in COUNTS.items()}
        self._first, self._whole = (
            Histogram(f"skipbench_{k}_seconds", v, buckets=SECONDS, registry=registry)
            for k, v in TIMES.items()
        )

    def count(self, stream: Stream) -> None:
        """Counts an answer, whether it was cancelled or not."""
        answer = stream.so_far
        if not answer.tokens:
            return
        amounts = answer.prompt_tokens, len(answer.tokens), answer.rounds, answer.drafted
        for counter, amount in zip(self._counts.values(), (*amounts, answer.accepted), strict=True):
            counter.inc(amount)
        self._first.observe(answer.first_token_s)
        self._whole.observe(answer.seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return bytes(generate_latest(self._registry))
