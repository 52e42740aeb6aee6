"""`python -m trimtab.runtime.elastic_worker RUN|JOB`: one rank that torchrun (or another launcher) started.

Given a run's folder, it works for `trimtab run`. Given a job file, torchrun was started by hand, on several hosts that
see the same files: the run's folder is named after the launcher's run id, so that all ranks find the same one.

What needs torch is imported late: signals must be heard from the beginning, and a rank that has nothing to do must
end before it has paid for torch.
"""

import faulthandler
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LAUNCHER_LOST_EXIT = 75
"""Exit code of a rank whose launcher is gone (EX_TEMPFAIL): it must not train on unwatched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Self:
    """Who this rank is, and in whose name it works."""

    folder: Path
    settings: Mapping[str, Any]
    rank: int
    incarnation: int

    @property
    def first_incarnation(self) -> int:
        """Of this attempt of the run; the launcher's restarts count on from there."""
        return int(self.settings["launcher"]["first_incarnation"])


def main() -> None:
    """Train until the end; SIGTERM saves and ends at the next step border. Exits 1 after an error."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda _number, _frame: stop.set())
    folder, settings = _open_run(Path(sys.argv[1]))
    me = _Self(
        folder=folder,
        settings=settings,
        rank=int(os.environ["RANK"]),
        incarnation=settings["launcher"]["first_incarnation"]
        + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )
    if settings["launcher"]["pid"] is not None:
        _end_with(settings["launcher"]["pid"])
    _log_to(folder / "logs" / f"rank-{me.rank}-{me.incarnation}.log")
    _fail_if_it_would_fail_again(me)
    os.chdir(settings["working_folder"])
    code = _work(me, stop)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as under the agent: teardown of the group may block


def _open_run(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """The run's folder and what every rank is told: as `trimtab run` wrote it, or from a job file."""
    if path.is_dir():
        return path, json.loads((path / "settings.json").read_text(encoding="utf-8"))
    from trimtab.spec import load_job
    from trimtab.spec.resolved import plain_values

    loaded = load_job(
        path.read_text(encoding="utf-8"),
        source=str(path),
        overrides=["orchestration.engine=torchrun", f"orchestration.devices={os.environ['WORLD_SIZE']}"],
        environment=os.environ,
        read=lambda name: Path(name).read_text(encoding="utf-8"),
    )
    folder = Path(loaded.job.orchestration.runs) / f"{loaded.job.run}-{os.environ['TORCHELASTIC_RUN_ID']}"
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    if os.environ["RANK"] == "0":
        (folder / "resolved.yaml").write_text(loaded.resolved_yaml(), encoding="utf-8")
    launcher = {"pid": None, "attempt": 1, "first_incarnation": 0}
    settings = {
        "job": plain_values(loaded.job),
        "injections": [],
        "working_folder": str(Path.cwd()),
        "launcher": launcher,
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
    }
    return folder.resolve(), settings


def _work(me: _Self, stop: threading.Event) -> int:
    from trimtab.runtime.recorder import Recorder

    recorder = Recorder(me.folder, rank=me.rank, incarnation=me.incarnation)
    recorder.event("started", pid=os.getpid())

    from trimtab.runtime.assembly import assemble
    from trimtab.runtime.errors import CollectiveError
    from trimtab.runtime.launcher_link import LauncherLink

    shares = me.settings["job"]["fault_tolerance"]["shares"]
    link = LauncherLink(
        os.environ,
        folder=me.folder,
        attempt=me.settings["launcher"]["attempt"],
        num_shares=0 if shares == "off" else int(shares),
    )

    def ask_to_stop(_number: int, _frame: object) -> None:
        link.is_stop_wanted = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, ask_to_stop)
    link.is_stop_wanted |= stop.is_set()
    ticket = {
        "rank": me.rank,
        "folder": str(me.folder),
        "settings": me.settings,
        "incarnation": me.incarnation,
    }
    code = 0
    try:
        assemble(ticket, recorder, link).run()
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever started us must find the first cause
        traceback.print_exc()
        sys.stderr.flush()
        kind = "-collective" if isinstance(error, CollectiveError) else ""
        cause = {
            "rank": me.rank,
            "step": link.progress.step,
            "phase": link.progress.phase.value,
            "error": _text(error),
        }
        _write_once(_errors(me) / f"attempt-{me.incarnation}{kind}.json", json.dumps(cause))
        code = 1
    recorder.event("ended", code=code)
    return code


def _text(error: Exception) -> str:
    from trimtab.terms import TrimtabError

    return str(error) if isinstance(error, TrimtabError) else f"{type(error).__name__}: {error}"


def _errors(me: _Self) -> Path:
    return me.folder / "errors"


def _write_once(path: Path, text: str) -> None:
    """Write a file whole, unless another rank was first."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    unfinished.write_text(text + "\n", encoding="utf-8")
    try:
        os.link(unfinished, path)
    except FileExistsError:
        pass
    finally:
        unfinished.unlink()


def _fail_if_it_would_fail_again(me: _Self) -> None:
    """End at once if a rank of an earlier incarnation raised an error of its own: it would only be paid again."""
    for number in range(me.first_incarnation, me.incarnation):
        path = _errors(me) / f"attempt-{number}.json"
        if path.exists():
            cause = json.loads(path.read_text(encoding="utf-8"))
            sys.exit(f"not started again: rank {cause['rank']} failed: {cause['error']}")


def _log_to(path: Path) -> None:
    """Send everything that this process and its children print to a file, stacks on SIGUSR2 included."""
    path.parent.mkdir(exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)


def _end_with(launcher_pid: int) -> None:
    """Exit as soon as the parent, or the process that started it, is gone: nobody would end this rank then.

    A parent that is left alone is told to end, too; it would start all ranks again for nothing.
    """
    try:
        parent = os.pidfd_open(os.getppid())
        launcher = os.pidfd_open(launcher_pid)
    except ProcessLookupError:
        os._exit(_LAUNCHER_LOST_EXIT)

    def wait() -> None:
        ended, _, _ = select.select([parent, launcher], [], [])
        if parent not in ended:
            signal.pidfd_send_signal(parent, signal.SIGTERM)
        os._exit(_LAUNCHER_LOST_EXIT)

    threading.Thread(target=wait, daemon=True, name="launcher-watch").start()


if __name__ == "__main__":
    main()
