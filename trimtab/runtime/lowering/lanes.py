"""One thread for each process group on which a rank sends while it computes."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Lane:
    """A thread that does one thing after another, in the order in which they were started.

    It ends with ``end``, or with the lane: what is under way then is done to its end or until it fails, and so is what was
    started after it.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: _Jobs = queue.SimpleQueue()
        self._is_started = False
        weakref.finalize(self, self._jobs.put, None)

    def start(self, act: Callable[[], _Result]) -> Future[_Result]:
        """Do something as soon as all before it is done; whatever it raises is raised where its result is asked for."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=_serve, args=(self._jobs,), daemon=True, name=self._name).start()
        work: Future[_Result] = Future()
        self._jobs.put((work, act))
        return work

    def end(self) -> None:
        """No more is started."""
        self._jobs.put(None)


_Jobs = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        work, act = job
        try:
            work.set_result(act())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again where it is waited for
            work.set_exception(error)
        del job, work, act  # They hold gradients, and the next one may be long in coming.
