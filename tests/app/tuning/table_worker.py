"""Workers on a study whose trials come from a table, each a process: python table_worker.py STUDY SETTINGS COUNT."""

import json
import os
import sys
from pathlib import Path

from trimtab.app.tuning.studies import Study
from trimtab.app.tuning.table_trials import TableTrials
from trimtab.app.tuning.workers import Rules, Worker
from trimtab.cost.search.tuning import Numbers, Space
from trimtab.policy.trials import TrialBudget
from trimtab.spec.tunings import TuningObjective

VALUES = tuple(range(1, 41))


def worker_on(folder: Path, **settings: float) -> Worker:
    """A worker whose trials take ``delay_s`` really, on a study in a folder."""
    devices = int(settings.get("devices", 1))
    return Worker(
        study=Study(folder),
        rules=Rules(
            space=Space(knobs={"x": Numbers(values=VALUES)}),
            objectives=(TuningObjective.LOSS,),
            budget=TrialBudget(trials=int(settings.get("trials", 20)), devices=int(settings.get("pool", 64))),
            prune=None,
            lease_s=settings.get("lease_s", 30.0),
            seed=0,
        ),
        maker=TableTrials(
            rows=[({"x": value}, {"loss": (value - 17) ** 2 / 100}) for value in VALUES],
            devices=devices,
            seconds=1.0,
            delay_s=settings.get("delay_s", 0.0),
        ),
    )


def main() -> None:
    """Fork so many workers, for loading takes longer than working; tell their numbers, then how each ended."""
    folder, settings, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            worker_on(folder, **settings).work()
            os._exit(0)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    ended = dict(os.wait() for _ in pids)
    print(json.dumps([os.waitstatus_to_exitcode(ended[pid]) for pid in pids]), flush=True)


if __name__ == "__main__":
    main()
