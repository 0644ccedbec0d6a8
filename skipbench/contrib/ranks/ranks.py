"""The processes of tensor parallelism on one machine: rank 0 is this one and decodes; the others
serve it until it is gone. `torchrun` starts them all, else rank 0 starts the others.
"""

import atexit
import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from skipbench.config.model import Model, PlantedModel
from skipbench.contrib.ranks.tensor_parallel import Tell, TensorParallelLM, shard
from skipbench.errors import SkipbenchError
from skipbench.lm.engine import MakeEngine
from skipbench.models.load import read_model

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""By which torch.distributed finds the other ranks; `torchrun` sets them and more."""
GOES_ON = 5.0
"""Seconds that rank 0 waits at its end for the ranks that it started."""


class Ranks:
    """The other ranks, as rank 0 reaches them. Started by `torchrun`, they are as many as it says;
    children of this process would have ranks of their own.
    """

    def __init__(self, launched: dict[str, str] | None, count: int) -> None:
        """
        Args:
            launched: the variables of `torchrun`; `None` without it.
            count: of ranks, this one included.

        Raises:
            SkipbenchError: `torchrun` started another number of ranks.
        """
        self.count, self.serves = count, object()
        if launched is not None and int(launched["WORLD_SIZE"]) != count:
            words = " ".join(sys.argv[1:]) or "..."
            raise SkipbenchError(
                f"torchrun started {launched['WORLD_SIZE']} processes and model.tensor_parallel_"
                f"size={count}: torchrun --nproc-per-node {count} -m skipbench {words}"
            )
        here = launched or _variables(count)
        self.started = [] if launched else [_start(here, rank) for rank in range(1, count)]
        with _environment(here):
            dist.init_process_group("gloo")
        key = secrets.token_bytes(32)
        with Listener(backlog=count, authkey=key) as listener:
            dist.broadcast_object_list([(listener.address, key)], 0)
            self.others = [listener.accept() for _ in range(1, count)]

    def tell(self, call: str, *arguments: Any) -> None:
        """Makes the other ranks call a method of their part of the model. Raises RuntimeError where
        one of them is gone.
        """
        try:
            for other in self.others:
                other.send((call, arguments))
        except OSError as error:
            count, self.count = self.count, 0  # the next model gets others
            text = f"a rank of model.tensor_parallel_size={count} is gone; its error stands above"
            raise RuntimeError(text) from error

    def close(self) -> None:
        """Ends the other ranks."""
        for other in self.others:
            other.close()
        self.others = []
        for process in self.started:
            try:
                process.wait(GOES_ON)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with contextlib.suppress(RuntimeError):  # they are gone
            dist.destroy_process_group()


_launched: dict[str, str] | None = None
_ranks: Ranks | None = None


def check_parallel(model: Model, strict: bool) -> None:
    """Raises SkipbenchError for a setting that the ranks of a model cannot keep, and where there
    are fewer GPUs than ranks.
    """
    ranks = model.tensor_parallel_size
    given = f"model.tensor_parallel_size={ranks}"
    refused = {
        f"model.device={model.device}": ":" in model.device,
        f"model.quantization={model.quantization}": model.quantization != "none",
        f"model.sparsity={model.sparsity}": model.sparsity != "none",
        "engine.strict=true": strict,
    }
    if wrong := [words for words, found in refused.items() if found]:
        raise SkipbenchError(f"{given} cannot be with {', '.join(wrong)}; leave one of them out")
    if model.device != "cpu" and (gpus := torch.cuda.device_count()) < ranks:
        raise SkipbenchError(f"{given} needs {ranks} GPUs; this machine has {gpus}")


def load_on_ranks(
    model: Model, engine: str | MakeEngine, spare_mib: int
) -> tuple[TensorParallelLM, Any]:
    """Rank 0's part of a model, whose other parts the other ranks hold; and its tokenizer. The
    model before it, if one was loaded so, cannot run any more. Raises SkipbenchError as `load` and
    `shard`, and for another number of ranks than `torchrun` started.
    """
    global _ranks
    if _ranks is None or _ranks.count != model.tensor_parallel_size:
        close()
        _ranks = Ranks(_launched, model.tensor_parallel_size)
    ranks = _ranks
    ranks.serves = serves = object()

    def tell(call: str, *arguments: Any) -> None:
        if ranks.serves is not serves:
            raise SkipbenchError(
                "another model with model.tensor_parallel_size was loaded since; load this one anew"
            )
        ranks.tell(call, *arguments)

    ranks.tell("load", model, engine, spare_mib, torch.get_num_threads())
    return _part(model, engine, spare_mib, tell)


def close() -> None:
    """Ends the other ranks, if there are any."""
    global _ranks
    if _ranks is not None:
        _ranks.close()
        _ranks = None


atexit.register(close)


@contextlib.contextmanager
def launched_by_torchrun() -> Iterator[None]:
    """Rank 0 of `torchrun`: its other processes end with what is done within."""
    global _launched, _ranks
    names = [k for k in os.environ if k in VARIABLES or k.startswith("TORCHELASTIC_")]
    _launched = kept = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        _ranks = _ranks or Ranks(kept, int(kept["WORLD_SIZE"]))  # they wait for it
        close()
        _launched = None


def _part(
    model: Model, engine: str | MakeEngine, spare_mib: int, tell: Tell | None
) -> tuple[TensorParallelLM, Any]:
    """This rank's part of a model, and the tokenizer."""
    rank, count, device = dist.get_rank(), model.tensor_parallel_size, torch.device("cpu")
    group: Any = None
    if model.device != "cpu":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        group = dist.new_group(backend="nccl")
    # of a file on the host, each rank reads the pages of its own part
    place = str(device) if isinstance(model, PlantedModel) else "cpu"
    whole = dataclasses.replace(model, device=place, tensor_parallel_size=1)
    made, tokenizer, notes = read_model(whole)
    lm = TensorParallelLM(shard(made, rank, count, device, group), engine, spare_mib, tell)
    lm.remarks += notes
    return lm, tokenizer


def _variables(count: int) -> dict[str, str]:
    """The variables of rank 0 of processes on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return dict(zip(VARIABLES, ("0", str(count), "127.0.0.1", port), strict=True))


def _start(here: dict[str, str], rank: int) -> "subprocess.Popen[bytes]":
    own = os.environ | here | {"RANK": str(rank)}
    return subprocess.Popen([sys.executable, "-m", "skipbench"], env=own, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    """Has these variables, which no child inherits, while torch.distributed reads them."""
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            del os.environ[name]


@torch.inference_mode()
def serve() -> NoReturn:
    """A rank but the first: does what rank 0 tells it, until that is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when to end
    dist.init_process_group("gloo")
    place: list[Any] = [None]
    dist.broadcast_object_list(place, 0)
    address, key = place[0]
    status = 1  # without the interpreter's end: a GPU may wait for rank 0 for ever
    try:
        with Client(address, authkey=key) as rank_0:
            _follow(rank_0)
    except (EOFError, ConnectionError):
        status = 0
    except Exception:  # whatever it is, the process ends here, without the interpreter's end
        traceback.print_exc()
    finally:
        os._exit(status)


def _follow(rank_0: "Connection[Any, Any]") -> NoReturn:
    """Does what it is told; raises EOFError once rank 0 is gone."""
    lm: TensorParallelLM | None = None
    while True:
        call, arguments = rank_0.recv()
        # of a wrong value, at which rank 0 stops at the same place
        with contextlib.suppress(SkipbenchError):
            if call == "load":
                lm = None  # its memory goes first
                model, engine, spare_mib, threads = arguments
                torch.set_num_threads(threads)
                lm, _ = _part(model, engine, spare_mib, None)
            else:
                getattr(lm, call)(*arguments)
