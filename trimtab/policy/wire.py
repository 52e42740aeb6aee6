"""What agent and ranks say to each other, as values and as bytes.

A message is a frozen dataclass; on the wire it is one JSON object behind a four-byte big-endian length. JSON,
never pickled objects: a peer's bytes must not be able to run code here. Sockets belong to the actors.

Epochs fence: the agent numbers every formation of the ranks, a message of an epoch that is over is stale,
and a rank that is told of a newer one leaves the old.
"""

import hashlib
import hmac
import json
import struct
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields

from trimtab.terms import Phase, RunError

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")


class WireError(RunError):
    """Bytes on the wire that are no message: a foreign client, or another version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Base of everything on the wire."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello(Message):
    """Rank to agent: the first message of a connection; ``proof`` shows knowledge of the run's token."""

    rank: int
    incarnation: int
    pid: int
    proof: str
    fingerprint: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked(Message):
    """Rank to agent: I have left ``left_epoch`` (-1: I never was in one) and wait to be formed.

    ``committed`` counts committed steps; ``held`` are the shares of step ``committed`` whose gradients I keep;
    ``store_port`` is a rendezvous that I offer, and ``store_host`` where my peers reach it.
    """

    left_epoch: int
    committed: int
    held: tuple[int, ...]
    store_port: int
    t_ns: int
    store_host: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble(Message):
    """Rank to agent: a collective of ``epoch`` broke under me; I wait to be fenced, and to hear why."""

    epoch: int
    error: str
    t_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Accused(Message):
    """Rank to agent: in ``epoch`` all ranks have found that ``rank`` computes wrong numbers; I wait to be fenced."""

    epoch: int
    rank: int
    step: int
    reason: str
    t_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat(Message):
    """Rank to agent: a sign of life, from a thread that does nothing else.

    ``progress`` grows with every share, collective and phase of the main thread; ``waiting`` says that the
    main thread waits for peers. ``operation`` is the newest thing that it waited for, such as ``all_gather of step 4``.
    """

    step: int
    phase: Phase
    progress: int
    waiting: bool
    t_ns: int
    operation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed(Message):
    """Rank to agent: the step numbered ``step`` is applied here. ``metrics`` is filled by the lead rank."""

    epoch: int
    step: int
    t_ns: int
    metrics: dict[str, float | int | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Note(Message):
    """Rank to agent: something that people want to see (a fault that was planted, a checkpoint, an evaluation)."""

    kind: str
    t_ns: int
    fields: dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed(Message):
    """Rank to agent: my own code raised; what follows on other ranks is secondary."""

    step: int
    phase: Phase
    error: str
    is_input_error: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Message):
    """Rank to agent: nothing is left to do. ``results`` is the same on every rank."""

    step: int
    is_stopped: bool
    results: dict[str, float | int | str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence(Message):
    """Agent to rank: ``epoch`` is over; keep what you have, leave, and park."""

    epoch: int
    fault_ns: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Form(Message):
    """Agent to rank: form ``epoch`` with these ranks, in this order, and go on with step ``step``.

    ``active`` take part in its steps, by position; the others hand over what they hold, then wait as spares.
    Everybody whose state is not that of ``step`` takes it from rank ``source``. ``owners[share]`` is the rank
    that owns the share in step ``step`` (-1: left out); later steps use the plain assignment. ``is_last``: no step is begun,
    all save what they have and finish.
    """

    epoch: int
    members: tuple[int, ...]
    active: tuple[int, ...]
    store_host: str
    store_port: int
    step: int
    source: int
    is_healing: bool
    owners: tuple[int, ...]
    is_last: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit(Message):
    """Agent to rank: newcomers wait; agree with your peers on a step border and park there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop(Message):
    """Agent to rank: agree with your peers on a step border, save, finish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismiss(Message):
    """Agent to rank: exit now; there is nothing more for you in this run."""

    reason: str


KINDS: Mapping[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        Hello,
        Parked,
        Trouble,
        Accused,
        Beat,
        Committed,
        Note,
        Failed,
        Finished,
        Fence,
        Form,
        Admit,
        Stop,
        Dismiss,
    )
}
"""What a rank and its agent say to each other, by name."""


def encode(message: Message) -> bytes:
    """The frame of a message.

    >>> next(iter(Decoder().feed(encode(Stop()))))
    Stop()
    """
    body = json.dumps(
        [type(message).__name__, asdict(message)], allow_nan=True, separators=(",", ":")
    ).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Messages out of a stream of bytes that arrives in any pieces. One per connection.

    Args:
        kinds: The messages that may arrive, by name.
    """

    def __init__(self, kinds: Mapping[str, type[Message]] = KINDS) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield every message that is complete now.

        Raises: WireError on a frame over 1 MiB, an unknown kind, missing or unknown fields, or text that is no JSON.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {length} bytes arrived, at most {MAX_FRAME_BYTES} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _decode_body(body, self._kinds)


def prove(token: str, *, rank: int, incarnation: int) -> str:
    """The proof that a rank of this run knows the run's token: HMAC-SHA256 over who it says it is."""
    return hmac.new(token.encode(), f"{rank}/{incarnation}".encode(), hashlib.sha256).hexdigest()


def is_proven(hello: Hello, token: str) -> bool:
    """Whether the sender of this Hello knows the run's token; compared in constant time."""
    expected = prove(token, rank=hello.rank, incarnation=hello.incarnation)
    return hmac.compare_digest(hello.proof.encode(), expected.encode())


def _decode_body(body: bytes, kinds: Mapping[str, type[Message]]) -> Message:
    try:
        name, values = json.loads(body)
        kind = kinds[name]
        return kind(**{key: _typed(kind, key, value) for key, value in values.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"no message of this version: {body[:120]!r} ({error})") from error


def _typed(kind: type[Message], key: str, value: object) -> object:
    """JSON knows neither tuples nor enums; the field's own type says what it was."""
    hint = typing.get_type_hints(kind)[key]
    if hint in (int, str, bool) and type(value) is not hint:
        raise TypeError(f"{key} is {value!r}, not of type {hint.__name__}")
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(value)
    if hint is Phase:
        return Phase(str(value))
    return value


def message_fields(kind: type[Message]) -> tuple[str, ...]:
    """The field names of a message kind, for tests that pin the wire's surface."""
    return tuple(f.name for f in fields(kind))
