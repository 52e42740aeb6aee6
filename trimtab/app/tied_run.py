"""A run that ends with the worker that made it: ``python -m trimtab.app.tied_run WORKER_PID run JOB ...``.

When the worker is gone, however it went, the kernel sends SIGTERM to the run, which ends its ranks and saves what it
would save: no device stays taken by a trial that nobody waits for.
"""

import signal
import sys

from trimtab.app.cli import run_cli
from trimtab.runtime.lifeline import die_with_parent, is_orphan


def main() -> int:
    """Run the command that stands behind the worker's number."""
    worker, *command = sys.argv[1:]
    die_with_parent(signal.SIGTERM)
    if is_orphan(int(worker)):
        return 128 + signal.SIGTERM
    return run_cli(command)


if __name__ == "__main__":
    sys.exit(main())
