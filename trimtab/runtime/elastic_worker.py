"""`python -m trimtab.runtime.elastic_worker RUN`: one rank that torchrun (or another launcher) started."""

import json
import os
import signal
import sys
from pathlib import Path

from trimtab.runtime.recorder import Recorder


def main() -> None:
    """Train until the end; SIGTERM saves and ends at the next step border. Errors end the process with a traceback."""
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    os.chdir(settings["working_folder"])

    from trimtab.runtime.assembly import assemble
    from trimtab.runtime.launcher_link import LauncherLink

    shares = settings["job"]["fault_tolerance"]["shares"]
    link = LauncherLink(os.environ, folder=folder, num_shares=0 if shares == "off" else int(shares))

    def stop(_number: int, _frame: object) -> None:
        link.is_stop_wanted = True

    signal.signal(signal.SIGTERM, stop)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    recorder = Recorder(folder, rank=link.rank, incarnation=attempt)
    assemble(
        {"rank": link.rank, "folder": str(folder), "settings": settings, "incarnation": attempt},
        recorder,
        link,
    ).run()
    sys.stdout.flush()
    os._exit(0)  # as under the agent: teardown of the group may block


if __name__ == "__main__":
    main()
