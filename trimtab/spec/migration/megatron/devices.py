"""How many devices there are, and who starts their ranks."""

from trimtab.spec.migration.megatron.draft import Draft

_DEVICES = "orchestration.devices"
_ENGINE = "orchestration.engine"


def count_devices(draft: Draft, least: int) -> int:
    """The devices of the training: nodes times devices a node, as a launcher or Slurm has them.

    Args:
        draft: Gets the devices and the engine.
        least: Devices that the degrees of parallelism need; the count is made a multiple of it.
    """
    nodes_flag = "--nnodes" if "--nnodes" in draft.flags else "--num-nodes"
    device_flag = "--nproc-per-node" if "--nproc-per-node" in draft.flags else "--num-gpus"
    nodes, per_node = _count(draft, nodes_flag), _count(draft, device_flag)
    if nodes is None and nodes_flag not in draft.flags:
        nodes = 1  # what torchrun and the DeepSpeed launcher take where nothing is said
    counted = nodes * per_node if nodes and per_node else draft.devices
    devices = -(-(counted or least) // least) * least
    draft.set(_ENGINE, "torchrun" if nodes != 1 or per_node != devices else "local")
    draft.set(_DEVICES, devices)
    _tell(draft, (nodes_flag, device_flag), counted, devices, least)
    return devices


def _count(draft: Draft, flag: str) -> int | None:
    text = draft.flags.text(flag)
    return int(text) if text and text.isdecimal() and 0 < int(text) < 10**7 else None


def _tell(draft: Draft, names: tuple[str, str], counted: int | None, devices: int, least: int) -> None:
    if counted == devices and counted != draft.devices:
        for name in names:
            draft.carry(name, _DEVICES)
        return
    if counted is None:
        draft.warnings.append(
            f"nothing says how many devices there are; {devices} are the fewest that the degrees need"
        )
        reason = "its value is open; the devices are the fewest that the degrees need"
    elif counted != devices:
        draft.warnings.append(
            f"{counted} devices do not hold the degrees, which need a multiple of {least}; written for {devices}"
        )
        reason = f"{counted} devices do not hold the degrees, which need a multiple of {least}"
    else:
        reason = "its value is open; the devices are those that were given"
    for name in names:
        draft.change(name, _DEVICES, reason=reason)
