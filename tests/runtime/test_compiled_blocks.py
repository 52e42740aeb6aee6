"""Do blocks that torch's compiler has made train the same network, with the same bits in every process?"""

import pytest

from tests.conftest import Ran, Trimtab

PATIENT = ("--set", "fault_tolerance.detection={first_step: 500s, heartbeat: 60s, evaluation: 500s}")
"""A compiler takes its time, and on a busy machine hardly lets another thread say that it lives."""
COMPILED = ("--set", "train.compile=blocks", *PATIENT)
NETWORKS = {
    "gpt": "model={preset: gpt-3m, layers: 2, embed: 64, heads: 4, mlp: 128, dropout: 0.0}",
    "llama": "model={preset: llama-3m, layers: 2, embed: 64, heads: 4, kv_heads: 2, mlp: 128, dropout: 0.0}",
}


def _run(trimtab: Trimtab, network: str, devices: int, *more: str) -> Ran:
    return trimtab(
        "run", "tiny.yaml", "--json", "--set", NETWORKS[network], "--set", f"orchestration.devices={devices}", *more,
        timeout=560,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("network", NETWORKS)
def test_compiled_blocks_train_the_same_network(trimtab: Trimtab, network: str) -> None:
    """Nearly the numbers of uncompiled ones; and on any number of ranks, one of which dies, bit for bit their own."""
    plain = _run(trimtab, network, 1)
    alone = _run(trimtab, network, 1, *COMPILED)
    assert alone.document["loss"] == pytest.approx(plain.document["loss"], rel=1e-4)
    assert alone.document["weights_sha256"] != plain.document["weights_sha256"], "nothing was compiled"
    together = _run(trimtab, network, 2, *COMPILED, "--inject", "kill:rank=1,step=6,phase=compute")
    assert len(together.document["recoveries"]) == 1
    for key in ("weights_sha256", "loss", "eval_loss"):
        assert together.document[key] == alone.document[key], key


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("--set", "parallelism=STORE states OVER dp"), "there are no blocks to compile"),
        (("--set", "model.dropout=0.1"), "masks are drawn by the run's keys"),
    ],
)
def test_what_cannot_be_compiled_is_refused(trimtab: Trimtab, settings: tuple[str, ...], reason: str) -> None:
    """A key without effect would be believed; a mask that is drawn otherwise would be another run."""
    ran = trimtab("run", "tiny.yaml", *COMPILED, *settings, check=2)
    assert reason in ran.stderr
    assert "train.compile is blocks" in ran.stderr
