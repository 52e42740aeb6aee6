"""What every engine must do. Its test file subclasses ``EngineConformance`` and names the engine."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import ClassVar

import pytest

from tests.conftest import Ran, Trimtab
from tests.engines.driving import (
    SLOW,
    TWO_RANKS,
    Going,
    all_listening_ports,
    environment_of,
    listening_ports,
    processes_of,
    started,
    wait_for,
)
from trimtab.engines import load_engine
from trimtab.engines.launch import Launch
from trimtab.policy import Budget, Limits
from trimtab.terms import OnLoss

OUTER = dict.fromkeys(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT", "OMP_NUM_THREADS",
     "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "SLURM_PROCID", "SLURM_CPU_BIND",
     "TORCHELASTIC_RESTART_COUNT"),
    "4711",
)  # fmt: skip
"""What an outer allocation leaves in the shell."""


def launch(folder: Path = Path("/runs/q-1")) -> Launch:
    """A launch that is only looked at."""
    return Launch(
        run="q-1",
        folder=folder,
        attempt=1,
        devices=4,
        module="trimtab.runtime.worker",
        rank_settings={"job": {"run": "q"}, "resume": False},
        environment={"PATH": "/bin"},
        limits=Limits(budget=Budget(node_losses=7)),
        num_shares=4,
        on_loss=OnLoss.ROLLBACK,
        is_replacing=False,
        grace_s=30.0,
    )


def assert_nothing_is_left(run: Going, ports: set[int], limit_s: float = 5.0) -> None:
    """No process of the run, and nobody listens where it did."""
    wait_for(lambda: not processes_of(run.name), limit_s)
    assert not ports & all_listening_ports()


@pytest.mark.process
class EngineConformance:
    """Few runs, each of which shows many things."""

    engine: ClassVar[str]

    def test_describing_a_request_writes_and_starts_nothing(self, tmp_path: Path) -> None:
        """A dry run that leaves a folder or a process behind would be no dry run."""
        children = Path("/proc/self/task").glob("*/children")
        before = [path.read_text() for path in children]
        request = load_engine(self.engine).request(launch(tmp_path / "run"))
        text = request.describe()
        assert " ".join(request.command()) in text
        assert "PATH=/bin" in text
        assert '"resume": false' in text
        assert not list(tmp_path.iterdir())
        assert [path.read_text() for path in Path("/proc/self/task").glob("*/children")] == before

    def test_a_run_is_done_in_a_clean_environment(
        self, trimtab: Trimtab, workplace: Path, alone: Ran
    ) -> None:
        """The same weights under every engine; what an outer job set stays outside (S-SCH-17); an account that adds up."""
        with started(
            workplace, self.engine,
            "--set", "orchestration.environment.pass=[CLUSTER_CONFIG]",
            "--set", "orchestration.environment.set={CHOSEN: 1b}",
            variables={**OUTER, "CLUSTER_CONFIG": "/etc/c", "KUBECONFIG": "/etc/k", "STRAY": "1"},
        ) as run:  # fmt: skip
            environments = [environment_of(pid) for pid in run.pids(2).values()]
            document = run.end()
        assert len(environments) == 2
        for environment in environments:
            assert environment["TRIMTAB_RUN"] == run.name
            assert not [name for name in OUTER if environment.get(name) == OUTER[name]]
            assert environment["OMP_NUM_THREADS"] == "1"
            assert "STRAY" not in environment
            assert environment["CLUSTER_CONFIG"] == "/etc/c"
            assert environment["KUBECONFIG"] == "/etc/k"
            assert environment["CHOSEN"] == "1b"
        assert run.process.returncode == 0
        assert document["state"] == "done"
        assert document["weights_sha256"] == alone.document["weights_sha256"]
        report = trimtab("report", run.name, "--json").document
        assert report["weights_sha256"] == document["weights_sha256"]
        assert report["state"] == "done"
        ledger = report["ledger"]
        assert sum(ledger["classes"].values()) == ledger["allocated_ns"] > 0
        assert ledger["classes"]["useful"] > 0
        saved = [path for path in (run.folder / "checkpoints").rglob("*") if path.is_file()]
        assert report["storage"]["checkpoints"] == len(list((run.folder / "checkpoints").iterdir())) > 0
        assert report["storage"]["bytes"] == sum(
            path.stat().st_size for path in saved if path.name != "manifest.json"
        )

    def test_a_rank_that_raises_ends_the_run_with_its_own_words(self, workplace: Path) -> None:
        """S-FT-01: what follows on other ranks must not hide the first cause, nor be waited for."""
        with started(workplace, self.engine, "--inject", "raise:rank=1,step=5") as run:
            run.wait_for_step(4)
            before_s = time.monotonic()
            document = run.end()
            took_s = time.monotonic() - before_s
        assert run.process.returncode == 1
        assert document["state"] == "failed"
        assert took_s < 20
        first_line = document["error"].splitlines()[0]
        assert "rank 1" in first_line
        assert "PlantedError: planted by --inject: raise in phase compute of step 5" in first_line
        log = (run.folder / "logs" / "rank-1-0.log").read_text(encoding="utf-8")
        assert "Traceback" in log
        assert "PlantedError" in log
        assert len({event["incarnation"] for event in run.events("spawned")}) == 1, "it is not paid twice"
        assert_nothing_is_left(run, set())

    def test_sigterm_saves_the_last_step_and_leaves_nothing(
        self, workplace: Path, sibling: subprocess.Popen[bytes]
    ) -> None:
        """S-FT-03: 143 promises a checkpoint; what the run did not start is none of its business."""
        with started(workplace, self.engine, *SLOW) as run:
            run.wait_for_step(5)
            ports = listening_ports([run.process.pid, *processes_of(run.name)])
            run.process.send_signal(signal.SIGTERM)
            document = run.end(30)
            assert run.process.returncode == 143
            assert_nothing_is_left(run, ports)
        assert ports, "the engine listened somewhere"
        assert document["state"] == "stopped"
        assert 6 <= document["steps"] < 12
        saved = run.folder / "checkpoints" / f"step-{document['steps']}" / "manifest.json"
        assert json.loads(saved.read_text(encoding="utf-8"))
        assert sibling.poll() is None

    def test_a_second_signal_forces_the_end(self, workplace: Path, sibling: subprocess.Popen[bytes]) -> None:
        """Who presses Ctrl-C twice does not want to wait for a rank that hangs."""
        with started(workplace, self.engine, "--inject", "stop:rank=1,step=5") as run:
            run.wait_for_step(4)
            run.process.send_signal(signal.SIGINT)
            wait_for(lambda: run.events("signal"))
            run.process.send_signal(signal.SIGINT)
            before_s = time.monotonic()
            document = run.end(20)
            assert time.monotonic() - before_s < 5
            assert_nothing_is_left(run, set())
        assert run.process.returncode == 1
        assert document["error"] == "stopped by force: a second signal arrived"
        assert sibling.poll() is None

    def test_ranks_do_not_outlive_whoever_started_them(self, workplace: Path) -> None:
        """After ``kill -9`` of the command nobody would end the ranks, and a resumed run would have rivals."""
        with started(workplace, self.engine, *SLOW) as run:
            run.wait_for_step(5)
            pids = set(run.pids(2).values())
            run.process.kill()
            wait_for(lambda: not pids & set(processes_of(run.name)), 5)
            assert_nothing_is_left(run, set(), limit_s=10)

    def test_a_killed_rank_costs_what_the_engine_says(
        self, trimtab: Trimtab, workplace: Path, alone: Ran
    ) -> None:
        """Survival in the step keeps every other process; without it, all start again and no other rule is accepted."""
        survives = load_engine(self.engine).survives_in_step
        with started(workplace, self.engine, "--inject", "kill:rank=1,step=6,phase=reduce") as run:
            document = run.end()
        assert document["weights_sha256"] == alone.document["weights_sha256"]
        (recovery,) = document["recoveries"]
        assert recovery["rank"] == 1
        spawned = sorted((event["rank"], event["incarnation"]) for event in run.events("spawned"))
        if survives:
            assert spawned == [(0, 0), (1, 0)]
            assert recovery["steps_lost"] == 0
            return
        assert spawned == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert recovery["steps_lost"] in (2, 6), (
            "since step 4, or since the start if that save was cut off too"
        )
        refused = trimtab(
            "run", "tiny.yaml", "--dry-run", *TWO_RANKS, "--set", f"orchestration.engine={self.engine}",
            "--set", "fault_tolerance.on_loss=exact", check=2,
        )  # fmt: skip
        assert "on_loss exact survives inside the step" in refused.stderr
        assert self.engine in refused.stderr
