"""Scripts that know nothing of Trimtab, run for real: started, watched, started again, ended, and paid for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Trimtab

pytestmark = pytest.mark.process

TELLING = """
import os, sys
keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
print(*(os.environ[key] for key in keys), *sys.argv[1:], __name__)
assert "torch" not in sys.modules
"""

FAILING_ONCE = """
import os, pathlib, time
mark = pathlib.Path(os.environ["TRIMTAB_RUN"] + ".mark")
if os.environ["RANK"] == "1" and not mark.exists():
    mark.touch()
    raise ValueError("the first time")
time.sleep(0 if mark.exists() and os.environ["RANK"] == "1" else 0.5)
"""

ADDING = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(total)
print("sum", int(total))
dist.destroy_process_group()
"""


def script(workplace: Path, name: str, text: str) -> str:
    (workplace / name).write_text(text, encoding="utf-8")
    return name


def test_ranks_find_what_torchrun_would_tell_them(trimtab: Trimtab, workplace: Path) -> None:
    """A script that was written for torchrun is run as it is, its arguments included."""
    name = script(workplace, "telling.py", TELLING)
    ran = trimtab("run", "--script", name, "--json", "--set", "orchestration.devices=2", "--", "--lr", "1")
    assert ran.document["state"] == "done"
    for rank in range(2):
        said = (ran.folder / "logs" / f"rank-{rank}-0.log").read_text(encoding="utf-8")
        assert said.split() == [str(rank), str(rank), "2", "2", "127.0.0.1", "--lr", "1", "__main__"]


def test_the_time_of_a_silent_script_is_unattributed_and_paid_for(trimtab: Trimtab, workplace: Path) -> None:
    """Nothing is known of it but that it ran: the ledger says so, to the nanosecond."""
    name = script(workplace, "sleeping.py", "import time; time.sleep(1)")
    price = "orchestration.price_usd_per_device_hour=3600"
    ran = trimtab("run", "--script", name, "--json", "--set", "orchestration.devices=2", "--set", price)
    ledger = ran.document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]
    assert ledger["classes"]["unattributed"] >= 2e9
    assert ran.document["cost_usd"] == pytest.approx(ledger["allocated_ns"] / 1e9)


def test_all_ranks_are_started_again_after_one_failed(trimtab: Trimtab, workplace: Path) -> None:
    """As torchrun does; each start has its own logs and its own port."""
    name = script(workplace, "failing-once.py", FAILING_ONCE)
    ran = trimtab("run", "--script", name, "--json", "--set", "orchestration.devices=2")
    assert ran.document["state"] == "done"
    spawned = sorted((event["incarnation"], event["rank"]) for event in ran.events("spawned"))
    assert spawned == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert any("ValueError: the first time" in event["reason"] for event in ran.events("decision"))


def test_a_script_that_always_fails_ends_the_run_with_its_error(trimtab: Trimtab, workplace: Path) -> None:
    """`fault_tolerance.restarts.script` bounds what is paid for it."""
    name = script(workplace, "failing.py", "raise ValueError('each time')")
    ran = trimtab("run", "--script", name, "--json", "--set", "fault_tolerance.restarts.script=1", check=1)
    assert "ValueError: each time; all ranks were started 2 times" in ran.document["error"]


def test_a_script_that_rejects_its_arguments_is_not_started_again(trimtab: Trimtab, workplace: Path) -> None:
    """Exit code 2 is argparse's word for wrong input, and ours."""
    name = script(workplace, "strict.py", "import argparse; argparse.ArgumentParser().parse_args()")
    ran = trimtab("run", "--script", name, "--json", "--", "--unknown", check=2)
    assert len(ran.events("spawned")) == 1


@pytest.mark.slow
def test_sigterm_reaches_a_script_and_leaves_no_process(workplace: Path) -> None:
    """A preempted node must be free when the grace is over."""
    name = script(workplace, "patient.py", "import time\nprint('here', flush=True)\ntime.sleep(600)")
    command = [sys.executable, "-m", "trimtab", "run", "--script", name]
    with subprocess.Popen(command, cwd=workplace, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
        assert run.stderr is not None
        folder = Path(run.stderr.readline().decode().split()[-1])
        log, deadline = folder / "logs" / "rank-0-0.log", time.monotonic() + 60
        while not (log.exists() and "here" in log.read_text(encoding="utf-8")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 143
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if _is_of(path, folder.name)]
    assert left == []


def _is_of(path: Path, run: str) -> bool:
    try:
        return int(path.parent.name) != os.getpid() and f"TRIMTAB_RUN={run}".encode() in path.read_bytes()
    except (OSError, ValueError):
        return False


@pytest.mark.slow
def test_a_script_of_torch_distributed_finds_its_peers(trimtab: Trimtab, workplace: Path) -> None:
    """init_process_group without arguments is how such scripts begin."""
    name = script(workplace, "adding.py", ADDING)
    ran = trimtab("run", "--script", name, "--json", "--set", "orchestration.devices=2")
    for rank in range(2):
        assert "sum 3" in (ran.folder / "logs" / f"rank-{rank}-0.log").read_text(encoding="utf-8")


def test_what_torchrun_is_for_is_refused_by_name(trimtab: Trimtab, workplace: Path) -> None:
    """Two launchers for one script would start each rank twice."""
    name = script(workplace, "telling.py", TELLING)
    ran = trimtab("run", "--script", name, "--set", "orchestration.engine=torchrun", check=2)
    assert "script is started by Trimtab's own agent" in ran.stderr


def test_a_strategy_that_needs_the_operators_is_refused_at_its_line(
    trimtab: Trimtab, workplace: Path
) -> None:
    """Tensor parallelism of a model that is not known would be a promise."""
    name = script(workplace, "telling.py", TELLING)
    formulas = "parallelism=MESH dp 1, tp 2; SPLIT heads OVER tp"
    ran = trimtab("run", "--script", name, "--set", "orchestration.devices=2", "--set", formulas, check=2)
    assert "SPLIT heads cannot be given to a script: the operators of its model are not known" in ran.stderr


@pytest.mark.parametrize("verb", ["explain", "query", "verify"])
def test_verbs_that_look_into_the_network_say_that_only_the_script_knows_it(
    trimtab: Trimtab, workplace: Path, verb: str
) -> None:
    """A traceback, or a plan of nothing, would be the alternative."""
    (workplace / "scripted.yaml").write_text("run: x\nscript: {file: telling.py}\n", encoding="utf-8")
    ran = trimtab(verb, "scripted.yaml", check=2)
    assert f"scripted.yaml:2  {verb} looks into the network, and only the script telling.py" in ran.stderr
