"""Another number of devices for a run that is at work: the verb ``resize``."""

import time

from trimtab.app.errors import RunStateError
from trimtab.app.job_reading import read_job
from trimtab.app.machines import find_machine
from trimtab.app.output import print_document, say
from trimtab.app.run_folders import JOURNAL_FOLDER, RESOLVED_FILE, find_run, is_alive, next_attempt
from trimtab.app.seating import seating_of
from trimtab.engines.resizing import want_devices
from trimtab.ledger import EventKind, read_events
from trimtab.spec import Engine
from trimtab.terms import ExitCode

_LOOKS_AFTER_S = 0.1


def resize_run(text: str, devices: int, *, wait_s: float, is_json: bool) -> int:
    """Have a run go on with another number of devices, and wait until an epoch has begun with them.

    Raises: RunStateError if the run is not at work, cannot be resized so far, or does not follow in time.
    """
    folder = find_run(text)
    loaded = read_job(str(folder / RESOLVED_FILE))
    job = loaded.job
    most = job.orchestration.devices
    if job.orchestration.engine is not Engine.LOCAL or job.script is not None:
        raise RunStateError(
            f"{folder.name}: only a run of the local engine can be resized while it is at work"
        )
    if not 1 <= devices <= most:
        raise RunStateError(
            f"{folder.name} was started with {most} devices, and {devices} were asked for: from 1 to {most} are possible; "
            f"stop it and `trimtab resume {folder.name} --set orchestration.devices={devices}` for more"
        )
    if not is_alive(folder):
        raise RunStateError(f"{folder.name} is not running")
    seating = seating_of(job, loaded.program, find_machine())
    if seating.num_seats(devices) != devices:
        possible = [number for number in range(1, most + 1) if seating.num_seats(number) == number]
        raise RunStateError(
            f"{folder.name} has no layout for {devices} devices that keeps its bits; it has one for "
            f"{', '.join(map(str, possible))}"
        )
    path = folder / JOURNAL_FOLDER / f"agent-{next_attempt(folder) - 1}.jsonl"
    before = len(path.read_bytes())
    want_devices(folder, devices)
    say(f"asked {folder.name} to go on with {devices} devices")
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        epochs = [
            event for event in read_events(path.read_bytes()[before:]) if event.kind == EventKind.FORMED
        ]
        if epochs and len(epochs[-1].fields["active"]) == devices:
            active = epochs[-1].fields["active"]
            if is_json:
                print_document({"run": folder.name, "directory": str(folder.resolve()), "active": active})
            else:
                print(f"{folder.name} goes on with ranks {', '.join(map(str, active))}")
            return ExitCode.DONE
        if not is_alive(folder):
            raise RunStateError(f"{folder.name} ended meanwhile")
        time.sleep(_LOOKS_AFTER_S)
    raise RunStateError(
        f"{folder.name} did not form an epoch with {devices} devices within {wait_s:g} s; it goes on as before until it "
        f"does, and `trimtab report {folder.name}` shows with how many"
    )
