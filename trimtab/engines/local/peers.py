"""A connection that carries frames, in a loop over a selector."""

import selectors
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from trimtab.policy import wire

_SEND_LIMIT_S = 2.0
"""How long a peer may take nothing before it counts as gone; what is sent is small, and system buffers hold it."""


class Peer:
    """One connected peer. Its owner decides what its messages mean.

    Args:
        connected: The socket; it is the peer's from now on.
        kinds: The messages that it may send.
        on_message: Called for each, in order; a WireError that it raises ends the connection.
        on_end: Called once, when the connection is over, with what was wrong (empty: it was closed).
    """

    def __init__(
        self,
        connected: socket.socket,
        selector: selectors.BaseSelector,
        kinds: Mapping[str, type[wire.Message]],
        *,
        on_message: Callable[["Peer", wire.Message], None],
        on_end: Callable[["Peer", str], None],
    ) -> None:
        self._socket, self._selector = connected, selector
        self._decoder = wire.Decoder(kinds)
        self._on_message, self._on_end = on_message, on_end
        self.is_open = True
        connected.settimeout(_SEND_LIMIT_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connected, selectors.EVENT_READ, self.read)

    @property
    def own_address(self) -> str:
        """The address of this end."""
        return str(self._socket.getsockname()[0])

    def read(self) -> None:
        """Take what has arrived."""
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for message in self._decoder.feed(data):
                if self.is_open:
                    self._on_message(self, message)
        except wire.WireError as error:
            self.close(str(error))

    def drain(self) -> None:
        """Take all that has arrived from a peer that is gone."""
        with suppress(OSError):
            self._socket.setblocking(False)
        while self.is_open:
            self.read()

    def send(self, message: wire.Message) -> bool:
        """Send one message; False if the connection is over."""
        if not self.is_open:
            return False
        try:
            self._socket.sendall(wire.encode(message))
        except OSError:
            self.close()
        return self.is_open

    def close(self, problem: str = "") -> None:
        """End the connection; may be called again."""
        if self.is_open:
            self.is_open = False
            self._selector.unregister(self._socket)
            self._socket.close()
            self._on_end(self, problem)
