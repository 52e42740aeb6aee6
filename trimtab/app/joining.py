"""The verb ``agent``: make this machine a host of a run that was started on another one."""

import time
from pathlib import Path

from trimtab.app.output import say
from trimtab.engines.joining import join
from trimtab.terms import InputError, read_address

_PATIENCE_S = 60.0
"""How long to wait for the token's file, and for a coordinator that has not said how long it wants to be waited for."""


def join_run(address: str, token_file: Path, *, interface: str | None) -> int:
    """Start and watch the ranks that the run's coordinator gives this host; returns the exit code.

    Raises: InputError for what is wrong with the address, the token, the interface or the versions of this host.
    """
    where = read_address(address)
    if where is None:
        raise InputError(f"--join is {address!r}; it takes ADDRESS:PORT, as `trimtab run` shows it")
    deadline_s = time.monotonic() + _PATIENCE_S
    while not token_file.exists():  # a run that is only just being started makes it
        if time.monotonic() > deadline_s:
            raise InputError(
                f"there is no {token_file}, the file with the run's token, after {_PATIENCE_S:g} s"
            )
        time.sleep(0.1)
    return join(where, token_file, interface=interface, patience_s=_PATIENCE_S, say=say)
