"""Who is this process? The agent says so in one line on standard input, and hears signals for it."""

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.runtime.lifeline import die_with_parent, is_orphan, name_process
from trimtab.runtime.recorder import Recorder

STOP_NOTICES = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers send to the processes of a job whose time is over: the end, and the warning before it."""


def take_ticket() -> Mapping[str, Any] | None:
    """Tie this process to its agent, read who it is, take its name, and go to the job's working folder.

    SIGUSR2 prints the stack of every thread. SIGINT is passed over: a terminal's Ctrl-C reaches the whole group, and
    the agent decides. A notice of preemption is noted, until somebody hears it. Returns None if the agent died before this
    process was tied to it, whatever it had said.
    """
    die_with_parent(signal.SIGKILL)
    line = sys.stdin.readline()
    if not line:
        return None
    ticket: Mapping[str, Any] = json.loads(line)
    if is_orphan(ticket["agent_pid"]):
        return None
    name_process(f"rank-{ticket['rank']}")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in STOP_NOTICES:
        signal.signal(number, _note_early)
    os.chdir(ticket["settings"]["working_folder"])
    return ticket


def hear_stop_notices(ask_to_stop: Callable[[], None]) -> None:
    """From now on a notice asks for a stop at a step border; one that came earlier does so at once."""
    for number in STOP_NOTICES:
        signal.signal(number, lambda _number, _frame: ask_to_stop())
    if _early:
        ask_to_stop()


_early: list[int] = []


def _note_early(number: int, _frame: object) -> None:
    _early.append(number)


def open_recorder(ticket: Mapping[str, Any]) -> Recorder:
    """The journal and the clocks of the rank that a ticket names."""
    return Recorder(Path(ticket["folder"]), rank=ticket["rank"], incarnation=ticket["incarnation"])
