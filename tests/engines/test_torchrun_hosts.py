"""Two torchruns that find each other, as on two hosts: the same job file, the same bits."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Trimtab

pytestmark = pytest.mark.process


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param("replicas", "MESH dp 2", marks=pytest.mark.slow),
        pytest.param("pieces", "MESH dp 2; STORE params, grads, states OVER dp", marks=pytest.mark.slow),
    ],
)
def test_two_torchruns_train_one_run(name: str, strategy: str, trimtab: Trimtab, workplace: Path) -> None:
    """Ranks of different launchers must meet in one folder and one group, and end with the weights of one agent."""
    job = (workplace / "tiny.yaml").read_text(encoding="utf-8").replace("dropout: 0.1", "dropout: 0.0")
    (workplace / f"{name}.yaml").write_text(f"{job}parallelism: {strategy}\n", encoding="utf-8")
    alone = trimtab("run", f"{name}.yaml", "--json", "--set", "orchestration.devices=2")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
        "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", name, "-m", "trimtab.runtime.elastic_worker",
        f"{name}.yaml",
    ]  # fmt: skip
    hosts = [
        subprocess.Popen(command, cwd=workplace, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        assert [host.wait(timeout=90) for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    report = json.loads((workplace / "runs" / f"tiny-{name}" / "report.json").read_text(encoding="utf-8"))
    assert report["weights_sha256"] == alone.document["weights_sha256"]
