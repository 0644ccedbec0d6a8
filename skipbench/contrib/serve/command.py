"""`serve`: OpenAI's API over one model."""

import ipaddress
import logging
import os
import socket
from importlib.util import find_spec
from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from skipbench.cli.command import Loaded
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.configurable import Positive, PositiveFloat
from skipbench.console import say, say_replaced, working
from skipbench.errors import SkipbenchError
from skipbench.runs.state import Interrupted

KEY = "SKIPBENCH_API_KEY"
NEEDED = ("starlette", "uvicorn", "prometheus_client")


class Serve(Loaded):
    """OpenAI's API over a model, one decoding at a time:  serve model=smollm2-135m method=auto
    [port=8000] [host=127.0.0.1]
    """

    method: Annotated[str, "the decoding method"] = DEFAULT_METHOD
    host: Annotated[str, "another than this machine needs a SKIPBENCH_API_KEY"] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, title="1 to 65535"), "where it listens"] = 8000
    queue: Annotated[Positive, "requests at the same time; more get a 429"] = 64
    timeout: Annotated[PositiveFloat, "seconds of one request"] = 600.0


def run_serve(asked: Serve) -> None:
    """Serves until Ctrl-C or SIGTERM."""
    key = os.environ.get(KEY) or None
    if not _local(asked.host) and key is None:
        raise SkipbenchError(
            f"host={asked.host} can be reached by others; set {KEY} to a key that they have to "
            "send, or leave host out"
        )
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SkipbenchError(f"serve needs {', '.join(missing)}: pip install 'skipbench[serve]'")
    try:
        family = socket.AF_INET6 if ":" in asked.host else socket.AF_INET
        listening = socket.create_server((asked.host, asked.port), family=family, backlog=2048)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0].lower()
        raise SkipbenchError(f"{asked.host}:{asked.port}: {why}; port= names another") from error
    try:
        import uvicorn

        from skipbench.contrib.serve.app import Server
        from skipbench.language_model import load_settings

        with working("loading the model"):
            model = load_settings(asked.model_settings(), asked.method)
        say_replaced(model.config.engine.name, model.lm)
        names = [w for w in asked.settings if w.startswith("model=") and w != "model=path"]
        server = Server(
            model,
            asdict(model.config.decoding),
            queue=asked.queue,
            timeout_s=asked.timeout,
            key=key,
            name=names[-1].partition("=")[2] if names else None,  # else that of its folder
            host=asked.host,
        )
        shown = f"[{asked.host}]" if ":" in asked.host else asked.host
        say(f"{server.name}, {model.method.name}, at http://{shown}:{asked.port}/v1; Ctrl-C ends")
        config = uvicorn.Config(
            server.app,
            log_level="warning",
            limit_concurrency=asked.queue + 256,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        log = logging.getLogger("uvicorn.error")  # what is cut off at the end is no failure
        log.addFilter(lambda said: "Cancelled" not in str(said.exc_info))
        uvicorn.Server(config).run([listening])
    except (KeyboardInterrupt, Interrupted):
        say("ended")


def _local(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
