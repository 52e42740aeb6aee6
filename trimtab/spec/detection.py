"""How a lost rank is found: one deadline, and the limits that follow from it."""

from collections.abc import Mapping
from typing import Literal

from trimtab.spec.card_types import Card, Duration, Fraction, NaturalInt

RATIOS: Mapping[str, float] = {
    "heartbeat": 1 / 30,
    "progress": 1.0,
    "step": 10.0,
    "save": 5.0,
    "evaluation": 5.0,
    "first_step": 2.0,
    "start": 2.0,
    "park": 0.5,
}
"""What each limit is of the deadline, where the job file does not set it. Judgements: a frozen machine is known long before
a slow step could be blamed; a save, an evaluation and the first step are honestly slower than a step."""


class Detection(Card):
    """How long a rank may be silent or stand still. All limits follow from the first, unless they are set."""

    deadline: Duration = 60.0
    """Longest time without progress in a step, in seconds; all other limits follow from it. Default: 60s."""
    heartbeat: Duration | Literal["auto"] = "auto"
    """Silence after which a rank is declared dead, in seconds. Default: auto, a thirtieth of `deadline`."""
    progress: Duration | Literal["auto"] = "auto"
    """Longest time without progress in a step, in seconds. Default: auto, `deadline`."""
    step: Duration | Literal["auto"] = "auto"
    """Longest time that a rank may work at one step, whatever progress it tells, in seconds. Default: auto, 10
    times `deadline`."""
    save: Duration | Literal["auto"] = "auto"
    """Longest time of one save, in seconds. Default: auto, 5 times `deadline`."""
    evaluation: Duration | Literal["auto"] = "auto"
    """Longest time without progress in an evaluation, in seconds. Default: auto, 5 times `deadline`."""
    first_step: Duration | Literal["auto"] = "auto"
    """Longest time without progress before the first step ends, in seconds. Default: auto, twice `deadline`."""
    start: Duration | Literal["auto"] = "auto"
    """From the start of a rank's process to its first word, in seconds. Default: auto, twice `deadline`."""
    park: Duration | Literal["auto"] = "auto"
    """Longest time to leave an epoch that is over, in seconds. Default: auto, half of `deadline`."""
    probe: Fraction = 0.0
    """Part of the shares that a second rank computes again, 0 to 1, to find a rank that computes wrong numbers; above 0,
    all shares of a step with an odd gradient norm, too. Default: 0, none."""
    compare: NaturalInt = 100
    """Steps between two comparisons of the parameters of all replicas, bit by bit; 0: only at the end. Default:
    100."""

    def limit_s(self, name: str) -> float:
        """One limit in seconds, as set or as it follows from the deadline.

        >>> Detection(deadline=15.0).limit_s("heartbeat"), Detection(save=9.0).limit_s("save")
        (0.5, 9.0)
        """
        said = getattr(self, name)
        return self.deadline * RATIOS[name] if said == "auto" else float(said)

    def limits_s(self) -> dict[str, float]:
        """All limits in seconds, by key."""
        return {name: self.limit_s(name) for name in RATIOS}
