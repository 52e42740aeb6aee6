"""The local engine: conformance, and what is its own: strangers, stale ranks, fingerprints, hangs, many runs at once."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran, Trimtab
from tests.engines.conformance import EngineConformance, assert_nothing_is_left, launch
from tests.engines.driving import SLOW, listening_ports, started, wait_for
from trimtab.engines import Outcome, load_engine
from trimtab.policy.host_wire import FROM_COORDINATOR, Challenge
from trimtab.policy.wire import Decoder, Dismiss, Hello, Message, Stop, encode, prove
from trimtab.terms import RunState

pytestmark = pytest.mark.process


class TestLocalEngine(EngineConformance):
    engine = "local"


def test_strangers_are_refused_and_the_run_goes_on(workplace: Path, alone: Ran) -> None:
    """Anybody on the machine can connect to the agent and to the coordinator; nothing that they say may end the run."""
    forged = Hello(rank=0, incarnation=0, pid=1, proof="0" * 64, fingerprint={})
    body = encode(forged)[4:]
    attacks = [
        os.urandom(4096),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">I", 1 << 31) + b"x" * 1024,
        encode(forged),
        encode(Stop()),
        _frame(body.replace(b'"proof":"' + b"0" * 64 + b'"', b'"proof":7')),
        _frame(body.replace(b'"rank":0', b'"rank":[0]')),
        _frame(body.replace(b"0" * 64, "\u00e9".encode())),
        _frame(b"[" * 200_000),
        b"",
    ]
    with started(workplace, "local", *SLOW) as run:
        run.wait_for_step(4)
        ports = listening_ports([run.process.pid])
        assert len(ports) == 2
        for port, attack in product(ports, attacks):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                stranger.sendall(attack)
                stranger.shutdown(socket.SHUT_WR)
                told = list(Decoder(FROM_COORDINATOR).feed(_read_all(stranger)))
                assert [type(each) for each in told] in ([], [Challenge]), "a stranger is told nothing"
        document = run.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert document["recoveries"] == []
    assert len(run.events("refused")) >= 14


def test_a_stale_incarnation_is_dismissed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-FT-18: a process of before that comes back must leave, and must not be taken for the rank of now."""
    answers: list[Message] = []

    def come_back(ticket: dict[str, Any]) -> None:
        hello = _hello(ticket, incarnation=ticket["incarnation"] - 1, fingerprint={})
        with socket.create_connection((ticket["agent_host"], ticket["agent_port"]), timeout=5) as stale:
            stale.sendall(encode(hello))
            answers.extend(Decoder().feed(stale.recv(1 << 16)))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)

    outcome, events = _run_with(come_back, tmp_path, monkeypatch)
    assert answers == [Dismiss(reason="this process is no longer a member of the run")]
    assert not [event for event in events if event["event"] == "hello"]
    assert outcome.error == "stopped by force: a second signal arrived"


def test_a_rank_with_another_fingerprint_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-FT-13: a rank on other libraries would change the bits; it is refused before the first collective."""

    def join(ticket: dict[str, Any]) -> None:
        hello = _hello(ticket, incarnation=ticket["incarnation"], fingerprint={"torch": "2.0"})
        with socket.create_connection((ticket["agent_host"], ticket["agent_port"]), timeout=5) as rank:
            rank.sendall(encode(hello))
            _read_all(rank)

    (tmp_path / "fingerprint.json").write_text('{"torch": "2.13"}')
    outcome, _ = _run_with(join, tmp_path, monkeypatch)
    assert outcome.state is RunState.FAILED
    assert outcome.error == "rank 0 may not join an exact run: torch is '2.0', the run began with '2.13'"


def test_a_resumed_run_refuses_another_fingerprint(trimtab: Trimtab, workplace: Path, alone: Ran) -> None:
    """S-FT-13: the fingerprint of the first attempt holds for all that follow."""
    folder = workplace / "runs" / "elsewhere-1"
    shutil.copytree(alone.folder, folder)
    path = folder / "fingerprint.json"
    fingerprint = json.loads(path.read_text(encoding="utf-8"))
    key = min(fingerprint)
    path.write_text(json.dumps({**fingerprint, key: "planted"}), encoding="utf-8")
    refused = trimtab("resume", "elsewhere-1", "--json", check=1)
    assert "may not join an exact run" in refused.document["error"]
    assert f"{key} is {fingerprint[key]!r}, the run began with 'planted'" in refused.document["error"]


def test_a_hang_leaves_the_stacks_of_all_who_live(workplace: Path, alone: Ran) -> None:
    """S-FT-02: what the others were waiting for is half of why one hangs."""
    faults = ("--inject", "stop:rank=1,step=5,phase=reduce", "--set", "orchestration.devices=3")
    quick = ("--set", "fault_tolerance.detection.heartbeat=3s")
    with started(workplace, "local", *faults, *quick) as run:
        document = run.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    (recovery,) = document["recoveries"]
    assert (recovery["rank"], recovery["cause"]) == (1, "stopped")
    assert recovery["detect_s"] < 20
    for rank in (0, 2):
        log = (run.folder / "logs" / f"rank-{rank}-0.log").read_text(encoding="utf-8")
        assert "most recent call first" in log
        assert "trainer.py" in log


@pytest.mark.slow
def test_interrupts_at_random_times_leave_nothing(workplace: Path, sibling: subprocess.Popen[bytes]) -> None:
    """S-FT-03: in any phase of a run, Ctrl-C and SIGTERM end all of it, and only it."""
    seed = 20261129
    random_times = random.Random(seed)
    for number in range(10):
        wait_s = random_times.uniform(0.3, 5.0)
        with started(workplace, "local", *SLOW) as run:
            wait_for(lambda run=run: run.events("spawned"))
            time.sleep(wait_s)  # the point is a time that nothing in the run announces
            run.process.send_signal(signal.SIGINT if number % 2 else signal.SIGTERM)
            run.process.wait(60)
            assert_nothing_is_left(run, set())
        asked = 130 if number % 2 else 143
        assert run.process.returncode in (asked, 0), f"seed {seed}, interrupt {number} after {wait_s:.2f} s"
        assert sibling.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_runs_at_once_do_not_meet(workplace: Path, alone: Ran) -> None:
    """S-FT-10: no fixed port, no shared rendezvous: five times eight runs, and all succeed."""
    for _ in range(5):
        answers: list[dict[str, Any]] = []

        def run_one(answers: list[dict[str, Any]] = answers) -> None:
            with started(workplace, "local") as run:
                answers.append(run.end(150))

        threads = [threading.Thread(target=run_one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer["state"] for answer in answers] == ["done"] * 8
        assert {answer["weights_sha256"] for answer in answers} == {alone.document["weights_sha256"]}


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _read_all(connection: socket.socket) -> bytes:
    """What comes until the other end closes."""
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


def _hello(ticket: dict[str, Any], *, incarnation: int, fingerprint: dict[str, str]) -> Hello:
    """The hello of whoever holds this ticket."""
    proof = prove(ticket["token"], rank=ticket["rank"], incarnation=incarnation)
    return Hello(
        rank=ticket["rank"], incarnation=incarnation, pid=os.getpid(), proof=proof, fingerprint=fingerprint
    )


def _run_with(
    act: Callable[[dict[str, Any]], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Run one rank without tensors under the engine, in this process, while a thread acts with the rank's ticket."""
    monkeypatch.chdir(folder)
    root = str(Path(__file__).parents[2])
    request = replace(
        launch(folder),
        devices=1,
        num_shares=1,
        module="tests.engines.patient_rank",
        environment={"PATH": "/bin", "PYTHONPATH": root},
        first_incarnation=3,
    )

    def find_ticket_and_act() -> None:
        path = folder / "ticket.json"
        wait_for(path.exists)
        act(json.loads(path.read_text(encoding="utf-8")))

    thread = threading.Thread(target=find_ticket_and_act)
    thread.start()
    outcome = load_engine("local").run(request, lambda kind, t_ns, fields: None)
    thread.join()
    lines = (folder / "journal" / "agent-1.jsonl").read_text(encoding="utf-8").splitlines()
    return outcome, [json.loads(line) for line in lines]
