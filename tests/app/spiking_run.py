"""A run on disk as agent and ranks would have left it: a slow step, then a loss that jumps and is rolled back."""

import json
from pathlib import Path

from trimtab.ledger import CLOCK_FILE_BYTES, ClockFile, encode_event
from trimtab.spec import load_job
from trimtab.terms import Clock

JOB = """\
run: spiking
model: {preset: gpt-3m, layers: 2}
data: {text: python-stdlib}
train: {steps: 8, batch: 8}
orchestration: {devices: 2, cluster: 64xA100, price_usd_per_device_hour: 2.0}
fault_tolerance: {shares: 4, checkpoint: {every: 4}}
"""

RANKS = (0, 1)
SLOW_STEP, SPIKE_STEP, KEPT_STEP = 3, 6, 4
_NS_PER_S = 10**9


class SpikingRun:
    """Writes the run; one second of compute a step, half a second of communication on the rank that waits.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ns = 50 * _NS_PER_S
        self._clocks: dict[int, ClockFile] = {}
        for part in ("journal", "clocks", "checkpoints"):
            (folder / part).mkdir(parents=True)
        loaded = load_job(JOB, source="spiking.yaml", read=lambda path: "")
        (folder / "resolved.yaml").write_text(loaded.resolved_yaml(), encoding="utf-8")
        (folder / "run.json").write_text(json.dumps({"working_folder": "."}), encoding="utf-8")

    def write(self) -> None:
        """All of it."""
        buffers = {rank: bytearray(CLOCK_FILE_BYTES) for rank in RANKS}
        self._begin(buffers)
        for step in range(1, SPIKE_STEP + 1):
            self._step(step, loss=9.5 if step == SPIKE_STEP else 4.0 - step / 8)
        self.now_ns += _NS_PER_S // 4
        self._agent("fault", rank=None, step=SPIKE_STEP, cause="loss spike", **self._just_declared())
        self._agent("rollback", to_step=KEPT_STEP)
        for step in range(KEPT_STEP + 1, 9):
            self._step(step, loss=4.0 - step / 8)
        self._end()
        for rank, buffer in buffers.items():
            (self.folder / "clocks" / f"rank-{rank}-0.clock").write_bytes(bytes(buffer))

    def _begin(self, buffers: dict[int, bytearray]) -> None:
        self._agent("run", run="spiking-1", attempt=1, devices=list(RANKS), price_usd_per_hour=2.0, pid=1)
        for rank in RANKS:
            self._agent("allocated", device=rank)
            self._agent("spawned", device=rank, rank=rank, incarnation=0, pid=100 + rank)
            self._clocks[rank] = ClockFile(buffers[rank], clock=Clock.RESTART, now_ns=self.now_ns)
            self._rank(rank, "peak", flops_per_s=1e12)
        self.now_ns += 2 * _NS_PER_S

    def _step(self, step: int, *, loss: float) -> None:
        """Rank 1 loads its batch late in the slow step; rank 0 waits for it, as it does a little in every step."""
        start_ns = self.now_ns
        late_ns = 3 * _NS_PER_S if step == SLOW_STEP else 0
        self._switch(0, Clock.COMPUTE)
        self._switch(1, Clock.INPUT_WAIT if late_ns else Clock.COMPUTE)
        self.now_ns += late_ns
        self._switch(1, Clock.COMPUTE)
        self.now_ns += _NS_PER_S
        self._switch(0, Clock.COMM)
        self.now_ns += _NS_PER_S // 2
        for rank in RANKS:
            clocks = self._clocks[rank].lap(self.now_ns)
            times = {"start_ns": start_ns, "end_ns": self.now_ns, "clocks": clocks}
            work = {"shares": [rank], "tokens": 512, "targets": 512, "flops": 10**11}
            self._rank(rank, "step", step=step - 1, epoch=1, **times, **work)
        self._rank(0, "commit", step=step - 1, loss=loss, grad_norm=1.0, lr=1e-3, tokens=1024, targets=1024)
        if step == KEPT_STEP:
            self._rank(0, "checkpoint", step=step, state="saved")

    def _end(self) -> None:
        for rank in RANKS:
            self._agent("exited", rank=rank, incarnation=0, device=rank, code=0, signal=0)
            self._agent("released", device=rank)
        self._agent("finished", state="done", error=None, weights_sha256=None)

    def _just_declared(self) -> dict[str, int]:
        return {"t_fault_ns": self.now_ns - _NS_PER_S // 4, "t_declared_ns": self.now_ns}

    def _switch(self, rank: int, clock: Clock) -> None:
        self._clocks[rank].switch(clock, self.now_ns)

    def _agent(self, kind: str, **fields: object) -> None:
        self._say("agent-1", kind, fields)

    def _rank(self, rank: int, kind: str, **fields: object) -> None:
        self._say(f"rank-{rank}-0", kind, fields)

    def _say(self, journal: str, kind: str, fields: dict[str, object]) -> None:
        with open(self.folder / "journal" / f"{journal}.jsonl", "ab") as file:
            file.write(encode_event(kind, self.now_ns, **fields))
