"""The loop of bench/peers/saving.py with Trimtab's saver; started by bench/checkpoint.py."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent / "peers"))

from saving import Loop, State, measure, parse

from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.events import Saved
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.saver import Saver
from trimtab.runtime.checkpoint.signing import Key

_SIGNING, _SEALING = Key(secret=os.urandom(32)), Key(secret=os.urandom(32))
KEYS = {
    "trimtab": Keyring(run="bench", signing=_SIGNING),
    "trimtab unsigned": None,
    "trimtab encrypted": Keyring(run="bench", signing=_SIGNING, sealing=_SEALING),
}
"""What each way signs and encrypts with; a run signs unless it is told otherwise."""


class TrimtabWay:
    """Staged in shared memory, written by a process of its own, the last two kept."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def save(self, number: int, state: State) -> None:
        """Stage the state."""
        is_staged = self._saver.stage(
            number, {"parameters": state}, {"number": number}, retention=Retention(newest=2)
        )
        assert is_staged

    def wait(self) -> None:
        """Return when the save is durable.

        Raises: RuntimeError if it failed.
        """
        events = self._saver.drain()
        if not any(isinstance(event, Saved) for event in events):
            raise RuntimeError(f"not saved: {events}")


def main() -> None:
    """Measure and print."""
    options = parse()
    torch.set_num_threads(1)
    loop = Loop(options.megabytes)
    keys = KEYS[options.way]
    with closing(Saver(options.folder, {"parameters": loop.state}, keys=keys)) as saver:
        print(json.dumps(measure(TrimtabWay(saver), loop, options)))


if __name__ == "__main__":
    main()
