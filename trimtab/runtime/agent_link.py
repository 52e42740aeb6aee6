"""The rank's end of the wire: one thread that listens, beats and wakes the main thread; nothing else.

The main thread reads flags and asks for forms; it never blocks on the socket.
"""

import os
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.policy.wire import (
    Admit,
    Beat,
    Decoder,
    Dismiss,
    Fence,
    Form,
    Hello,
    Message,
    Stop,
    encode,
    prove,
)
from trimtab.runtime.process_groups import Interrupt, Rendezvous, connect_store
from trimtab.terms import Phase

_AGENT_LOST_EXIT = 75
"""Exit code of a rank whose agent is gone (EX_TEMPFAIL): it must not train on unwatched."""


class Fenced(Exception):  # noqa: N818 - it is no error: the epoch ended
    """The epoch that this rank is in is over."""

    def __init__(self, fence: Fence) -> None:
        super().__init__(fence.reason)
        self.fence = fence


class Dismissed(Exception):  # noqa: N818 - it is no error: the agent said that this rank may go
    """The agent needs this rank no more."""


@dataclass(slots=True)
class Progress:
    """What the heartbeat says about the main thread; written by it, read by the heartbeat thread."""

    step: int = 0
    phase: Phase = Phase.START
    count: int = 0
    is_waiting: bool = False
    operation: str = ""


class Link(Protocol):
    """What a rank needs of whoever started it. The main thread calls it."""

    progress: Progress
    interrupt: Interrupt
    is_stop_wanted: bool
    is_border_wanted: bool
    own_address: str
    """At which peers reach this rank."""

    def start(self, fingerprint: dict[str, str]) -> None:
        """Report as fit to join."""

    def send(self, message: Message) -> None:
        """Say something; never waits for an answer."""

    def next_form(self) -> Form:
        """Wait for the next epoch and enter it. Raises Dismissed if there is none."""

    def connect(self, form: Form, rendezvous: Rendezvous) -> Any:
        """The store in which the members of an epoch find each other."""

    def raise_if_fenced(self) -> None:
        """Raise Fenced if the present epoch is over."""

    def wait_for_end(self) -> None:
        """Nothing is left to do in this epoch. Raises Dismissed, or Fenced when there is another."""


class AgentLink:
    """Connection to the agent. ``progress`` may be written freely by the main thread.

    Args:
        address: Host and port of the agent.
        beat_s: Seconds between two signs of life.
        own_address: At which peers reach this rank.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        token: str,
        rank: int,
        incarnation: int,
        beat_s: float,
        own_address: str = "127.0.0.1",
    ) -> None:
        self.own_address = own_address
        self.progress = Progress()
        self.interrupt = Interrupt()
        self.is_stop_wanted = False
        self.is_border_wanted = False
        self._rank, self._incarnation, self._token = rank, incarnation, token
        self._beat_s = beat_s
        self._fence: Fence | None = None
        self._form: Form | None = None
        self._dismissal: str | None = None
        self._epoch = -1
        self._sending = threading.Lock()
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self, fingerprint: dict[str, str]) -> None:
        """Say hello and begin to beat."""
        proof = prove(self._token, rank=self._rank, incarnation=self._incarnation)
        self.send(
            Hello(
                rank=self._rank,
                incarnation=self._incarnation,
                pid=os.getpid(),
                proof=proof,
                fingerprint=fingerprint,
            )
        )
        threading.Thread(target=self._serve, daemon=True, name="agent-link").start()

    def ask_to_stop(self) -> None:
        """Wish for a clean end of the run, as an agent's Stop does; all ranks agree on it at a step border."""
        self.is_stop_wanted = True

    def send(self, message: Message) -> None:
        """Send one message; any thread. A broken connection is found by the listening thread."""
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError:
            self._leave()

    def next_form(self) -> Form:
        """Wait until the agent forms the next epoch, and enter it.

        Raises: Dismissed.
        """
        self.interrupt.on_wake(self._raise_if_dismissed)
        self.interrupt.wait_for(lambda: self._form is not None and self._form.epoch > self._epoch)
        form = self._form
        assert form is not None
        self._epoch = form.epoch
        self.is_border_wanted = False
        self.interrupt.on_wake(self.raise_if_fenced)
        return form

    def connect(self, form: Form, rendezvous: Rendezvous) -> Any:
        """The store of an epoch: the first member's own offer, a connection to it for the others."""
        is_leader = form.members[0] == self._rank
        return rendezvous.store if is_leader else connect_store(form.store_host, form.store_port)

    def raise_if_fenced(self) -> None:
        """Leave the epoch if it is over.

        Raises: Fenced, Dismissed.
        """
        if self._fence is not None and self._fence.epoch >= self._epoch:
            raise Fenced(self._fence)
        self._raise_if_dismissed()

    def wait_for_end(self) -> None:
        """Nothing is left to do in this epoch: wait for the agent's word.

        Raises: Dismissed when the run is complete, Fenced when a peer still needs us.
        """
        self.interrupt.wait_for(lambda: False)

    def _raise_if_dismissed(self) -> None:
        if self._dismissal is not None:
            raise Dismissed(self._dismissal)

    def _serve(self) -> None:
        decoder = Decoder()
        next_beat = 0.0
        while True:
            now = time.monotonic()
            if now >= next_beat:
                self._beat()
                next_beat = now + self._beat_s
            readable, _, _ = select.select([self._socket], [], [], max(0.0, next_beat - now))
            if not readable:
                continue
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._leave()
                return
            for message in decoder.feed(data):
                self._take(message)
            self.interrupt.notify()

    def _take(self, message: Message) -> None:
        match message:
            case Fence():
                self._fence = message
            case Form():
                self._form = message
            case Admit():
                self.is_border_wanted = True
            case Stop():
                self.is_stop_wanted = True
            case Dismiss():
                self._dismissal = message.reason
            case _:
                pass

    def _beat(self) -> None:
        now = self.progress
        self.send(
            Beat(
                step=now.step,
                phase=now.phase,
                progress=now.count,
                waiting=now.is_waiting,
                t_ns=time.monotonic_ns(),
                operation=now.operation,
            )
        )

    def _leave(self) -> None:
        if self._dismissal is None:
            os._exit(_AGENT_LOST_EXIT)
