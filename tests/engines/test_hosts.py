"""Several hosts: a host dies, is cut off, comes back; the weights stay those of one rank, and there is one history."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran, Trimtab
from tests.engines.driving import Going, processes_of, wait_for
from tests.engines.namespaces import Network, needs_namespaces, network

pytestmark = [pytest.mark.process, needs_namespaces]

SLOW_STEPS = ("--inject", "slow:rank=0,step=3,factor=60")
"""Makes a step take about a second, so that there is time to do something to it."""
LONG_STEPS = 60
HISTORIES = Path(__file__).parents[2] / "referee" / "histories.py"


@dataclass(kw_only=True)
class Cluster:
    """A run on several hosts, and the agents of those that joined."""

    run: Going
    network: Network
    token_file: Path
    address: str
    agents: dict[int, "subprocess.Popen[bytes]"]

    def join(self, host: int, clocks: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        """Start the agent of a host, with what makes its clocks other clocks."""
        with open(self.said_in(host), "ab") as said:
            self.agents[host] = subprocess.Popen(
                [
                    *self.network.inside(host),
                    *clocks,
                    *(sys.executable, "-m", "trimtab", "agent", "--join", self.address),
                    *("--token-file", str(self.token_file)),
                ],
                cwd=self.run.folder.parents[1],
                env={**os.environ, **(variables or {})},
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )

    def kill_host(self, host: int) -> None:
        """End every process of a host at once, with kill -9."""
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agents[host].wait(10)

    def pids(self, host: int) -> list[int]:
        """The processes that run on a host."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.network.name(host)], capture_output=True, text=True, check=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        """Until a rank has committed this step, counted from 0, in any of its processes."""

        def has_committed() -> bool:
            journals = (self.run.folder / "journal").glob(f"rank-{rank}-*.jsonl")
            events = [event for path in journals for event in self.run.events("step", path.stem)]
            return any(event["step"] >= step for event in events)

        wait_for(has_committed, 120)

    def rank_of(self, host: int) -> int:
        """The rank of a host: hosts are numbered as they join."""
        address = self.network.address(host)
        numbers = {event["address"]: event["host"] for event in self.run.events("host")}
        return int(numbers[address])

    def wait_for_members(self, *hosts: int) -> None:
        """Until an epoch of just these hosts has been formed."""
        members = sorted(self.rank_of(host) for host in hosts)
        wait_for(lambda: self.formed() and self.formed()[-1]["members"] == members, 120)

    def said_in(self, host: int) -> Path:
        """Where a host's agents say what they do."""
        return self.token_file.with_suffix(f".host-{host}")

    def said(self, host: int) -> str:
        """What the agents of a host have said."""
        return self.said_in(host).read_text(encoding="utf-8")

    def formed(self) -> list[dict[str, Any]]:
        """Every epoch so far."""
        return self.run.events("formed")

    def end(self, limit_s: float = 120.0) -> dict[str, Any]:
        """Wait for the run, then for the agents that are left; the run's document."""
        document = self.run.end(limit_s)
        for agent in self.agents.values():
            agent.wait(20)
        return document


@contextlib.contextmanager
def cluster(
    workplace: Path, count: int, *arguments: str, sets: Sequence[str] = (), is_joined: bool = True
) -> Iterator[Cluster]:
    """The tiny job on so many hosts, one rank each; whatever is left of it is killed at the end."""
    name = f"hosts-{os.urandom(5).hex()}"
    token_file = workplace / f"{name}.token"
    with network(count) as net:
        address = f"{net.address(0)}:29400"
        keys = [
            f"run={name}", f"orchestration.hosts={count}", f"orchestration.devices={count}",
            f"orchestration.listen={address}", f"orchestration.token_file={token_file}",
            "fault_tolerance.checkpoint.every=4", "fault_tolerance.digest_every=1", *sets,
        ]  # fmt: skip
        process = subprocess.Popen(
            [
                *net.inside(0),
                *(sys.executable, "-m", "trimtab", "run", "tiny.yaml", "--json"),
                *(word for key in keys for word in ("--set", key)),
                *arguments,
            ],
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        run = Going(process=process, name=f"{name}-1", folder=workplace / "runs" / f"{name}-1")
        made = Cluster(run=run, network=net, token_file=token_file, address=address, agents={})
        try:
            for host in range(1, count if is_joined else 1):
                made.join(host)
            yield made
        finally:
            process.kill()
            process.communicate()
            for agent in made.agents.values():
                agent.kill()
                agent.wait()
            for pid in processes_of(run.name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def histories(run: Going) -> dict[int, set[tuple[float, float]]]:
    """What leads have committed as each step: loss and norm, which follow from the weights."""
    found: dict[int, set[tuple[float, float]]] = {}
    for path in (run.folder / "journal").glob("rank-*.jsonl"):
        for event in run.events("commit", path.stem):
            found.setdefault(event["step"], set()).add((event["loss"], event["grad_norm"]))
    return found


def assert_one_history(run: Going) -> None:
    """As the referee sees it, from every rank's records: no step has two outcomes, no epoch goes back."""
    said = subprocess.run(
        [sys.executable, str(HISTORIES), str(run.folder)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert " 0 hashes" not in said.stdout


def test_a_whole_host_is_killed(workplace: Path, alone: Ran) -> None:
    """All processes of a host at once: the other two finish the step in which it dies, and no bit changes."""
    with cluster(workplace, 3, *SLOW_STEPS) as hosts:
        hosts.wait_for_step(4)
        hosts.kill_host(1)
        document = hosts.end()
        codes = {host: agent.returncode for host, agent in hosts.agents.items()}
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert codes == {1: -signal.SIGKILL, 2: 0}
    (recovery,) = document["recoveries"]
    lost = hosts.rank_of(1)
    assert (recovery["rank"], recovery["cause"], recovery["steps_lost"]) == (lost, "host_lost", 0)
    assert [event["members"] for event in hosts.formed()] == [[0, 1, 2], [0, 3 - lost]]
    assert_one_history(hosts.run)
    ledger = document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]


@pytest.fixture(scope="module")
def long_alone(trimtab: Trimtab) -> str:
    """The weights of the long job on one rank."""
    ran = trimtab(
        "run", "tiny.yaml", "--json", "--set", f"train.steps={LONG_STEPS}", "--set", "orchestration.devices=1"
    )
    return str(ran.document["weights_sha256"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_is_killed_another_is_cut_off_and_both_come_back(workplace: Path, long_alone: str) -> None:
    """S-FT-05: three hosts; whoever is left finishes the step, and who returns takes its state from a peer."""
    with cluster(workplace, 3, *SLOW_STEPS, sets=(f"train.steps={LONG_STEPS}",)) as hosts:
        hosts.wait_for_step(4)
        hosts.kill_host(1)
        hosts.wait_for_members(0, 2)
        hosts.join(1)
        hosts.wait_for_members(0, 1, 2)
        hosts.network.cut(2)
        hosts.wait_for_members(0, 1)
        hosts.network.heal(2)
        hosts.wait_for_members(0, 1, 2)
        document = hosts.end(300)
        codes = {host: agent.returncode for host, agent in hosts.agents.items()}
    assert document["state"] == "done"
    assert document["weights_sha256"] == long_alone
    assert codes == {1: 0, 2: 0}
    assert [(each["cause"], each["steps_lost"]) for each in document["recoveries"]] == [("host_lost", 0)] * 2
    assert_one_history(hosts.run)
    ledger = document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_that_stays_cut_off_ends_within_its_bound(workplace: Path, alone: Ran) -> None:
    """S-FT-04: an agent that cannot reach the coordinator must not try for ever; the majority goes on."""
    bound = ("orchestration.unreachable=8s",)
    with cluster(workplace, 3, *SLOW_STEPS, sets=bound) as hosts:
        hosts.wait_for_step(4)
        hosts.network.cut(2)
        cut_s = time.monotonic()
        assert hosts.agents[2].wait(30) == 75
        assert time.monotonic() - cut_s < 20
        assert "could not be reached for 8 s" in hosts.said(2)
        assert hosts.pids(2) == []
        document = hosts.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert_one_history(hosts.run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_host_cut_off_for_a_while_costs_nothing(workplace: Path, long_alone: str) -> None:
    """The coordinator has no majority and the majority no coordinator: nobody commits until they meet again."""
    with cluster(workplace, 3, *SLOW_STEPS, sets=(f"train.steps={LONG_STEPS}",)) as hosts:
        hosts.wait_for_step(4)
        hosts.network.cut(0)
        wait_for(lambda: any("no majority" in event["reason"] for event in hosts.run.events("decision")))
        time.sleep(3)  # long enough for a step, if anybody dared
        committed = max(histories(hosts.run))
        time.sleep(3)
        assert max(histories(hosts.run)) == committed
        hosts.network.heal(0)
        hosts.wait_for_members(0, 1, 2)
        document = hosts.end(300)
    assert document["weights_sha256"] == long_alone
    assert_one_history(hosts.run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_host_cut_off_for_good_ends_all_and_is_resumed_elsewhere(
    workplace: Path, trimtab: Trimtab, long_alone: str
) -> None:
    """S-FT-04: every host ends within the bound and says so; the run goes on from its checkpoint."""
    sets = (f"train.steps={LONG_STEPS}", "orchestration.unreachable=8s")
    with cluster(workplace, 3, *SLOW_STEPS, sets=sets) as hosts:
        hosts.wait_for_step(6)
        hosts.network.cut(0)
        assert [hosts.agents[host].wait(40) for host in (1, 2)] == [75, 75]
        document = hosts.end(60)
        assert hosts.run.process.returncode == 75
        assert "no majority" in document["error"]
        assert_one_history(hosts.run)
    resumed = trimtab(
        "resume", hosts.run.name, "--json", "--set", "orchestration.hosts=1", "--set", "orchestration.listen=null",
        "--set", "orchestration.token_file=null",
    )  # fmt: skip
    assert resumed.document["weights_sha256"] == long_alone


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("delay_s", [0, 1, 3, 10])
def test_a_host_leaves_and_comes_back(delay_s: float, workplace: Path, long_alone: str) -> None:
    """S-FT-05: SIGTERM to an agent takes its host out, whenever it returns; it is no loss that a budget counts."""
    sets = (f"train.steps={LONG_STEPS}", "fault_tolerance.restarts.node_loss=0")
    with cluster(workplace, 2, *SLOW_STEPS, sets=sets) as hosts:
        hosts.wait_for_step(4)
        hosts.agents[1].send_signal(signal.SIGTERM)
        assert hosts.agents[1].wait(30) == 143
        hosts.wait_for_members(0)
        time.sleep(delay_s)
        hosts.join(1)
        hosts.wait_for_members(0, 1)
        document = hosts.end(300)
    assert document["weights_sha256"] == long_alone
    assert [(each["cause"], each["steps_lost"]) for each in document["recoveries"]] == [("host_left", 0)]
    assert_one_history(hosts.run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clocks_that_differ_blame_nobody(workplace: Path, tmp_path: Path, alone: Ran) -> None:
    """S-FT-16: one host an hour ahead, started an hour earlier, one half a minute behind: no false death, no minus."""
    with cluster(workplace, 3, *SLOW_STEPS, "--inject", "kill:rank=2,step=6", is_joined=False) as hosts:
        for host, wall_s, monotonic_s in ((1, 3600, 3600), (2, -30, -1000)):
            folder = tmp_path / f"clock-{host}"
            folder.mkdir()
            wrapped = f"import time\nreal = time.time\ntime.time = lambda: real() + {wall_s}\n"
            (folder / "sitecustomize.py").write_text(wrapped, encoding="utf-8")
            shifted = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", str(monotonic_s))
            hosts.join(host, shifted, {"PYTHONPATH": str(folder)})
        document = hosts.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    (recovery,) = document["recoveries"]
    assert (recovery["rank"], recovery["cause"], recovery["steps_lost"]) == (2, "exited", 0)
    assert 0 <= recovery["detect_s"] <= recovery["resumed_s"] < 60
    offsets = {event["address"]: round(event["offset_ns"] / 1e9) for event in hosts.run.events("host")}
    assert offsets == {
        hosts.network.address(0): 0,
        hosts.network.address(1): -3600,
        hosts.network.address(2): 1000,
    }
    reasons = "; ".join(event["reason"] for event in hosts.run.events("decision"))
    assert "its wall clock is 3600 s ahead" in reasons
    assert "its wall clock is 30 s behind" in reasons
    ledger = document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"] < 3 * 300 * 10**9
    assert min(ledger["classes"].values()) >= 0
    assert ledger["classes"]["useful"] > 0
