"""Being a host of a run that another machine runs, under the engine ``local``."""

from collections.abc import Callable
from pathlib import Path

from trimtab.engines.local.joined_agent import JoinedAgent
from trimtab.engines.local.tokens import read_token


def join(
    address: tuple[str, int],
    token_file: Path,
    *,
    interface: str | None,
    patience_s: float,
    say: Callable[[str], None],
) -> int:
    """Be a host of the run whose coordinator is at an address, until it ends; returns the exit code.

    Args:
        address: Of the coordinator.
        token_file: Holds the run's token.
        interface: That the ranks of this host talk over; None for the one that leads to the coordinator.
        patience_s: How long to try to reach a coordinator that has not said yet how long.
        say: Tells people something.

    Raises: InputError for what is wrong with the token, the interface or the versions of this host.
    """
    token = read_token(token_file)
    return JoinedAgent(address, token=token, interface=interface, patience_s=patience_s, say=say).run()
