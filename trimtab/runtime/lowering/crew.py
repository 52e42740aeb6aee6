"""Local processes that form one process group and do one task after another, so that start-up is paid once.

They are forked from a server that has imported torch and done nothing else: eight are there in about a second.
"""

import contextlib
import datetime as dt
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trimtab.runtime.lowering.wires import Wires
from trimtab.terms import RunError

_Result = TypeVar("_Result")
_PATIENCE_S = 120.0
"""For one task, by default; collectives give up after as long."""
_LOADED_ONCE = [__name__, "trimtab.runtime.lowering.rank", "torch.fx.experimental.symbolic_shapes"]
"""By the server that ranks are forked from; the last is what torch loads at the first backward pass from a gradient."""


class CrewError(RunError):
    """A rank of a crew failed; the message is what it said, first cause first."""


class Crew:
    """So many ranks over gloo on this machine. Not thread-safe. Close it, or use it as a context.

    Args:
        size: Ranks; one needs no process.
        patience_s: Seconds that a task may take.
    """

    def __init__(self, size: int, *, patience_s: float = _PATIENCE_S) -> None:
        self.size = size
        self._patience_s = patience_s
        self._folder = tempfile.TemporaryDirectory(prefix="trimtab-crew-")
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._alone = Wires(0, 1) if size == 1 else None
        if size > 1:
            self._start()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it takes tasks: not after ``close``, nor after a failure."""
        return self._alone is not None or bool(self._processes)

    def run(self, task: Callable[[Wires, Any], _Result], argument: Any) -> list[_Result]:
        """The results of a task, by rank.

        Args:
            task: Runs on every rank with the rank's wires and the argument; defined at the top of a module.
            argument: The same for every rank.

        Raises: CrewError if a rank fails or the crew takes too long; the crew is closed then.
        """
        if self._alone is not None:
            return [task(self._alone, argument)]
        for connection in self._connections:
            connection.send((task, argument))
        try:
            return self._answers()
        except CrewError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes. May be called twice."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(None)
            connection.close()
        for process in self._processes:
            process.join(timeout=1.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._connections.clear()
        self._processes.clear()
        self._folder.cleanup()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED_ONCE)
        path = str(Path(self._folder.name) / "rendezvous")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, path, rank, self.size, self._patience_s), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        while len(found) < self.size:
            missing = [self._connections[rank] for rank in range(self.size) if rank not in found]
            ready = wait(missing, timeout=self._patience_s)
            if not ready:
                late = [rank for rank in range(self.size) if rank not in found]
                raise CrewError(f"ranks {late} gave no answer in {self._patience_s:g} s")
            for connection in ready:
                assert isinstance(connection, Connection), connection
                rank = self._connections.index(connection)
                found[rank] = self._answer(rank, connection)
        return [found[rank] for rank in range(self.size)]

    def _answer(self, rank: int, connection: Connection) -> Any:
        try:
            is_done, answer = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise CrewError(f"rank {rank} ended without an answer") from error
        if not is_done:
            raise CrewError(f"rank {rank}: {answer}")
        return answer


def _work(connection: Connection, path: str, rank: int, size: int, patience_s: float) -> None:
    """A rank's life: join the group, do tasks until there are no more."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=size,
        timeout=dt.timedelta(seconds=patience_s),
    )
    wires = Wires(rank, size)
    while True:
        try:
            order = connection.recv()
        except EOFError:
            break
        if order is None:
            break
        task, argument = order
        try:
            answer: tuple[bool, Any] = (True, task(wires, argument))
        except Exception:  # noqa: BLE001 - whatever it is, it is told to who gave the task
            answer = (False, traceback.format_exc())
        try:
            connection.send(answer)
        except BrokenPipeError:  # Who gave the task has given up on this crew.
            break
    dist.destroy_process_group()
