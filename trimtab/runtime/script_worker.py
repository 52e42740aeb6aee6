"""`python -m trimtab.runtime.script_worker`: one rank that runs a script. Its ticket arrives on standard input.

The script finds the variables that torchrun sets. If it calls ``trimtab.adopt`` it becomes a rank like any other; if
not, it is a process that starts, prints and ends, and nothing more is known of it.
"""

import atexit
import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.runtime.enlisting import Enlistment, enlist
from trimtab.runtime.lifeline import die_with_parent
from trimtab.runtime.recorder import Recorder
from trimtab.terms import Clock, InputError, TrimtabError


def main() -> None:
    """Run the script of the ticket to its end, and exit as it does."""
    die_with_parent(signal.SIGKILL)
    line = sys.stdin.readline()
    if not line:  # the agent died before it had said anything
        return
    ticket = json.loads(line)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's Ctrl-C reaches the whole group; the agent decides
    os.chdir(ticket["settings"]["working_folder"])
    os.environ.update(rank_variables(ticket))
    recorder = Recorder(Path(ticket["folder"]), rank=ticket["rank"], incarnation=ticket["incarnation"])
    started_ns = time.monotonic_ns()
    recorder.switch(Clock.UNATTRIBUTED, at_ns=started_ns)
    enlistment = Enlistment(ticket=ticket, recorder=recorder, started_ns=started_ns)
    enlist(enlistment)
    atexit.register(_leave_at_once, enlistment)  # the first to be registered is the last to be called
    enlistment.exit_code = _run(ticket["settings"]["job"]["script"], enlistment)
    sys.exit(enlistment.exit_code)


def _leave_at_once(enlistment: Enlistment) -> None:
    """End the process of a rank: an abandoned collective may block its teardown for minutes."""
    if enlistment.duty is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(enlistment.exit_code)


def rank_variables(ticket: Mapping[str, Any]) -> dict[str, str]:
    """What torchrun would set in the environment of this rank, all ranks being on one node."""
    rank, devices = str(ticket["rank"]), str(ticket["devices"])
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": devices,
        "LOCAL_WORLD_SIZE": devices,
        "MASTER_ADDR": ticket["agent_host"],
        "MASTER_PORT": str(ticket["settings"]["rendezvous_port"]),
    }


def _run(script: Mapping[str, Any], enlistment: Enlistment) -> int:
    """Be the script; returns its exit code, having told the agent why if it owed the run more."""
    path = os.path.abspath(script["file"])
    sys.argv = [script["file"], *script.get("args", ())]
    sys.path[0] = os.path.dirname(path)
    code = 0
    failure: Exception | None = None
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ending:
        code = _exit_code(ending)
    except Exception as error:  # noqa: BLE001 - whatever it is, the agent must hear the first cause
        traceback.print_exc()
        code, failure = 1, error
    duty = enlistment.duty
    if duty is None or duty.is_fulfilled:
        return code
    if failure is None:
        ended = f"the script {f'exited with code {code}' if code else 'ended'} before the run did"
        duty.fail(
            f"{ended}: go through session.steps() to its end, or call session.stop()", is_input_error=True
        )
    else:
        text = str(failure) if isinstance(failure, TrimtabError) else f"{type(failure).__name__}: {failure}"
        duty.fail(text, is_input_error=isinstance(failure, InputError))
    return code or 1


def _exit_code(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return ending.code or 0
    sys.stderr.write(f"{ending.code}\n")
    return 1


if __name__ == "__main__":
    main()
