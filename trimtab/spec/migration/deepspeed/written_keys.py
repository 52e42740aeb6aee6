"""Keys of a job as settings of DeepSpeed.

Its file says how a step is computed. What is trained on what, for how long and when it is saved stays with the script
that calls ``deepspeed.initialize``.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trimtab.spec.migration.deepspeed.batch import ACCUMULATION, MICRO, TOTAL
from trimtab.spec.migration.deepspeed.facts import Facts
from trimtab.spec.migration.deepspeed.optimizers import PARAMS, TYPE
from trimtab.spec.migration.deepspeed.reductions import CLIPPING, WIRE
from trimtab.spec.migration.deepspeed.written import Written
from trimtab.spec.migration.deepspeed.written_schedules import write_schedule, write_steps
from trimtab.spec.migration.deepspeed.written_types import ACCUMULATED
from trimtab.spec.migration.keys import Key, keys_of
from trimtab.spec.migration.settings import Fate
from trimtab.spec.migration.targets import Exportable
from trimtab.spec.migration.torchrun import launcher_words

CHECKED = "bf16.check_grad_overflow"
UNTESTED = "zero_allow_untested_optimizer"

_Found = TypeVar("_Found")

_LEFT: Mapping[str, tuple[Fate, str]] = {
    "run": (Fate.IRRELEVANT, "a run has no name there"),
    "model": (Fate.IMPOSSIBLE, "your script builds the network and hands it to deepspeed.initialize"),
    "data": (Fate.IMPOSSIBLE, "your script reads the text and cuts it into samples"),
    "train.epochs": (Fate.IMPOSSIBLE, "your script says how long to train"),
    "train.seed": (Fate.IMPOSSIBLE, "your script sets it"),
    "train.on_spike": (Fate.IMPOSSIBLE, "spikes are not answered there"),
    "train.evaluate": (Fate.IMPOSSIBLE, "your script scores held-out text"),
    "orchestration.engine": (Fate.IRRELEVANT, "torchrun or the deepspeed launcher starts the ranks"),
    "orchestration.threads": (Fate.IRRELEVANT, "set OMP_NUM_THREADS"),
    "orchestration.price_usd_per_device_hour": (Fate.IMPOSSIBLE, "there is no account of time and money"),
    "orchestration.storage_usd_per_gb_month": (Fate.IMPOSSIBLE, "there is no account of time and money"),
    "orchestration.hosts": (Fate.IRRELEVANT, "name the hosts in the launcher's host file"),
    "orchestration.listen": (Fate.IRRELEVANT, "the launcher's --master_addr and --master_port"),
    "orchestration.interface": (Fate.IRRELEVANT, "set NCCL_SOCKET_IFNAME"),
    "orchestration.token_file": (Fate.IMPOSSIBLE, "hosts are joined over ssh there"),
    "orchestration.unreachable": (Fate.IMPOSSIBLE, "a host that is lost ends all there"),
    "fault_tolerance.digest_every": (Fate.IMPOSSIBLE, "weights are not hashed there"),
    "orchestration.cluster": (Fate.IMPOSSIBLE, "nothing there looks at a cluster before a run"),
    "orchestration.environment": (
        Fate.IRRELEVANT,
        "ranks get the launcher's environment, and .deepspeed_env on other machines",
    ),
    "orchestration.runs": (Fate.IMPOSSIBLE, "your script names the folder that it saves to"),
    "orchestration.grace": (Fate.IMPOSSIBLE, "a signal ends the ranks there"),
    "fault_tolerance.shares": (Fate.IMPOSSIBLE, "gradients are added in the order of the devices there"),
    "fault_tolerance.balance": (Fate.IMPOSSIBLE, "all ranks compute equal parts there"),
    "fault_tolerance.checkpoint": (Fate.IMPOSSIBLE, "your script calls save_checkpoint"),
    "fault_tolerance.detection": (
        Fate.IMPOSSIBLE,
        "one time-out of torch.distributed holds for every wait there",
    ),
    "fault_tolerance": (Fate.IMPOSSIBLE, "when a rank dies the launcher ends the others there"),
}
"""Keys without a setting, or sections of them, and why; the longest that fits counts."""


def write_keys(written: Written, exportable: Exportable, facts: Facts) -> None:
    """Every key that was written, or that a setting says, with its settings or why there are none."""
    for key in keys_of(exportable.loaded):
        writer = _fitting(_WRITERS, key.path)
        if key.path == "orchestration.devices":
            _write_devices(written, exportable, key)
        elif writer is not None:
            writer(written, key, facts)
        elif not key.is_default:
            _leave(written, key)


def _fitting(table: Mapping[str, _Found], path: str) -> _Found | None:
    """The entry of a path, or else of the smallest section around it."""
    while path not in table and path:
        path = path.rpartition(".")[0]
    return table.get(path)


def _leave(written: Written, key: Key) -> None:
    found = _fitting(_LEFT, key.path)
    assert found is not None, f"no word on {key.path}"
    fate, reason = found
    if fate is Fate.IMPOSSIBLE:
        written.refuse(key.path, key.text, reason)
    else:
        written.drop(key.path, key.text, reason)


def _write_devices(written: Written, exportable: Exportable, key: Key) -> None:
    words, warning = launcher_words(exportable)
    written.drop(key.path, key.text, f"the launcher starts them: torchrun {' '.join(words)}")
    written.sheet.warnings += [warning] if warning else []


def _write_batch(written: Written, key: Key, facts: Facts) -> None:
    settings = {TOTAL: facts.batch, ACCUMULATION: facts.accumulation}
    lost = f"each of the {facts.replicas} data-parallel devices gets as many samples there"
    written.tell(key.path, key.text, settings, [lost] if facts.batch != key.value else [])


def _write_microbatch(written: Written, key: Key, facts: Facts) -> None:
    lost = f"a device has {facts.microbatch * facts.accumulation} samples a step, in equal microbatches there"
    written.tell(
        key.path, key.text, {MICRO: facts.microbatch}, [lost] if facts.microbatch != key.value else []
    )


def _write_adamw(written: Written, key: Key, facts: Facts) -> None:
    kind = {TYPE: "AdamW"} if key.name == "lr" else {}
    written.carry(key.path, key.text, {**kind, f"{PARAMS}{key.name}": key.value})


def _write_sgd(written: Written, key: Key, facts: Facts) -> None:
    kind: dict[str, Any] = {TYPE: "SGD"} if key.name == "lr" else {}
    if kind and facts.zero.stage:
        kind |= {UNTESTED: True}
    written.carry(key.path, key.text, {**kind, f"{PARAMS}{key.name}": key.value})


def _write_clip(written: Written, key: Key, facts: Facts) -> None:
    written.carry(key.path, key.text, {CLIPPING: 0 if key.value == "off" else key.value})


def _write_compute(written: Written, key: Key, facts: Facts) -> None:
    if not facts.is_bf16:
        if not key.is_default:
            written.drop(key.path, key.text, "fp32, as without a setting")
        return
    settings: dict[str, Any] = {"bf16.enabled": True}
    lost = []
    if not facts.is_wire_said:
        settings |= {WIRE: "fp32"}
    if "grads" not in facts.kept_in_bf16:
        if facts.zero.stage:
            settings |= {ACCUMULATED: "fp32"}
        else:
            lost.append("without ZeRO gradients of microbatches are added in bf16 there")
    written.tell(key.path, key.text, settings, lost)


def _write_nonfinite(written: Written, key: Key, facts: Facts) -> None:
    if key.is_default:
        return
    if key.value != "skip":
        written.refuse(key.path, key.text, "a step that is not finite is skipped there")
    elif not facts.is_bf16:
        written.refuse(key.path, key.text, "steps in fp32 are not checked there")
    else:
        written.carry(key.path, key.text, {CHECKED: True})


_WRITERS: Mapping[str, Callable[[Written, Key, Facts], None]] = {
    "train.batch": _write_batch,
    "train.microbatch": _write_microbatch,
    "train.steps": write_steps,
    "train.optimizer.adamw": _write_adamw,
    "train.optimizer.sgd": _write_sgd,
    "train.lr_schedule": write_schedule,
    "train.clip": _write_clip,
    "train.compute": _write_compute,
    "train.on_nonfinite": _write_nonfinite,
}
"""Keys, or sections of them, that become settings."""
