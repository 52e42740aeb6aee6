"""Faults that a user asks for: `--inject KIND:key=value,...`, made to happen for real by whoever they strike."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum

from trimtab.terms import Clock, InputError, Phase


class FaultKind(StrEnum):
    """What happens."""

    KILL = "kill"
    """The rank sends itself SIGKILL."""
    STOP = "stop"
    """The rank sends itself SIGSTOP: it hangs without dying."""
    HANG = "hang"
    """The rank's main thread gets nowhere, for ever; its heartbeat goes on."""
    LIVELOCK = "livelock"
    """The rank's main thread is busy for ever: it tells progress and finishes nothing."""
    SLOW = "slow"
    """The rank computes every share ``factor`` times as long from ``step`` on, for ``steps`` steps if that is not 0."""
    SLEEP = "sleep"
    """The rank sleeps ``ms`` inside the timer of ``class`` (``none``: in no timer; ``writer``: in the background writer)."""
    RAISE = "raise"
    """The rank's own code raises."""
    NAN = "nan"
    """The loss and gradients of the rank's first share become NaN."""
    BIT_FLIP = "bit-flip"
    """One ``bit`` of one ``element`` flips: of the ``gradient`` of the rank's first share, or of its parameters."""
    DISCONNECT = "disconnect"
    """The rank's collective breaks although the rank lives."""
    DISK_FULL = "disk-full"
    """The kernel refuses the checkpoint's bytes with ENOSPC."""
    TORN_CHECKPOINT = "torn-checkpoint"
    """The checkpoint's writer is killed in the middle of a file."""


NO_TIMER = "none"
IN_WRITER = "writer"
GRADIENT, PARAMETER = "gradient", "parameter"
_FLIPPED = (GRADIENT, PARAMETER)
_PHASE_KINDS = (
    FaultKind.KILL,
    FaultKind.STOP,
    FaultKind.HANG,
    FaultKind.LIVELOCK,
    FaultKind.RAISE,
    FaultKind.DISCONNECT,
)
KEYS_OF_FAULTS = {
    FaultKind.SLOW: ("rank", "step", "factor", "steps"),
    FaultKind.BIT_FLIP: ("rank", "step", "of", "bit", "element"),
    FaultKind.SLEEP: ("rank", "step", "ms", "class"),
    FaultKind.NAN: ("rank", "step"),
    FaultKind.DISK_FULL: ("step",),
    FaultKind.TORN_CHECKPOINT: ("step",),
} | dict.fromkeys(_PHASE_KINDS, ("rank", "step", "phase"))
"""What may be said of each kind."""
SLEEPS_IN = (*(clock.value for clock in Clock if clock is not Clock.UNATTRIBUTED), NO_TIMER, IN_WRITER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One fault. ``step`` counts from 0; a fault strikes once in a run, a slow rank stays slow."""

    kind: FaultKind
    rank: int = 0
    step: int = 0
    phase: Phase = Phase.COMPUTE
    ms: float = 50.0
    factor: float = 2.0
    timer: str = NO_TIMER
    steps: int = 0
    of: str = GRADIENT
    bit: int = 30
    element: int = 0

    @property
    def mark(self) -> str:
        """Names this fault among others of a run, as part of a file's name."""
        flip = f"-{self.of}-{self.bit}-{self.element}" if self.kind is FaultKind.BIT_FLIP else ""
        return f"{self.kind}-rank{self.rank}-step{self.step}-{self.phase}-{self.timer}{flip}"

    @property
    def text(self) -> str:
        """As it stands behind ``--inject``.

        >>> Injection(kind=FaultKind.KILL, rank=1, step=5).text
        'kill:rank=1,step=5,phase=compute'
        """
        values = {
            "rank": self.rank,
            "step": self.step,
            "phase": self.phase,
            "ms": self.ms,
            "factor": self.factor,
            "steps": self.steps,
            "of": self.of,
            "bit": self.bit,
            "element": self.element,
            "class": self.timer,
        }
        return f"{self.kind}:" + ",".join(f"{key}={values[key]}" for key in KEYS_OF_FAULTS[self.kind])

    def to_json(self) -> dict[str, object]:
        """Plain values, read back by ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> "Injection":
        """The fault that ``to_json`` described."""
        plain: dict[str, object] = dict(values)
        plain["kind"] = FaultKind(str(plain["kind"]))
        plain["phase"] = Phase(str(plain["phase"]))
        return cls(**plain)  # type: ignore[arg-type]  # our own to_json wrote the values


def parse_injections(texts: Sequence[str], *, devices: int) -> tuple[Injection, ...]:
    """Faults from the values of ``--inject``.

    >>> parse_injections(["kill:rank=1,step=5,phase=reduce"], devices=2)[0].phase
    <Phase.REDUCE: 'reduce'>

    Raises: InputError naming the value, what is wrong with it and what is allowed.
    """
    return tuple(_parse(text, devices) for text in texts)


def _parse(text: str, devices: int) -> Injection:
    name, _, rest = text.partition(":")
    if name not in list(FaultKind):
        raise InputError(
            f"--inject {text}: unknown kind {name!r}; kinds: {', '.join(FaultKind)}{_nearest(name, list(FaultKind))}"
        )
    kind = FaultKind(name)
    values: dict[str, object] = {"kind": kind}
    for pair in filter(None, rest.split(",")):
        key, separator, value = pair.partition("=")
        if not separator or key not in KEYS_OF_FAULTS[kind]:
            allowed = ", ".join(KEYS_OF_FAULTS[kind])
            raise InputError(
                f"--inject {text}: {pair!r} is no key=value of {kind}; keys: {allowed}{_nearest(key, list(KEYS_OF_FAULTS[kind]))}"
            )
        values["timer" if key == "class" else key] = _value(text, key, value)
    injection = Injection(**values)  # type: ignore[arg-type]  # _value has typed each key
    if not 0 <= injection.rank < devices:
        raise InputError(
            f"--inject {text}: rank {injection.rank} is not one of this run's ranks 0 to {devices - 1}"
        )
    return injection


def _value(text: str, key: str, value: str) -> object:
    try:
        match key:
            case "rank" | "step" | "steps" | "element":
                return int(value)
            case "bit":
                return range(32)[int(value)]
            case "of":
                return _FLIPPED[_FLIPPED.index(value)]
            case "ms" | "factor":
                return float(value)
            case "phase":
                return Phase(value)
            case _:
                return SLEEPS_IN[SLEEPS_IN.index(value)]
    except (ValueError, IndexError):
        allowed = {
            "phase": ", ".join(Phase),
            "class": ", ".join(SLEEPS_IN),
            "of": ", ".join(_FLIPPED),
            "bit": "0 to 31",
        }.get(key, "a number")
        raise InputError(f"--inject {text}: {key}={value} is not valid; required: {allowed}") from None


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f". Did you mean {str(close[0])!r}?" if close else ""
