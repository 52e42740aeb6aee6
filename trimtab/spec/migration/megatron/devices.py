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
    counted = nodes * per_node if nodes and per_node else None
    given = counted or draft.devices
    devices = -(-(given or least) // least) * least
    draft.set(_ENGINE, "torchrun" if nodes != 1 or per_node != devices else "local")
    draft.set(_DEVICES, devices)
    if given != devices:
        draft.warnings.append(_shortage(given, devices, least))
    for name in (nodes_flag, device_flag):
        if counted == devices:
            draft.carry(name, _DEVICES)
        else:
            draft.change(name, _DEVICES, reason=_reason(counted, given, least))
    return devices


def _count(draft: Draft, flag: str) -> int | None:
    text = draft.flags.text(flag)
    return int(text) if text and text.isdecimal() and 0 < int(text) < 10**7 else None


def _shortage(given: int | None, devices: int, least: int) -> str:
    if given is None:
        return f"nothing says how many devices there are; {devices} are the fewest that the degrees need"
    return f"{given} devices do not hold the degrees, which need a multiple of {least}; written for {devices}"


def _reason(counted: int | None, given: int | None, least: int) -> str:
    """Why the devices are not what the launcher's flags give."""
    if counted is not None:
        return f"{counted} devices do not hold the degrees, which need a multiple of {least}"
    written = "the fewest that the degrees need" if given is None else "those that were given"
    return f"nodes and devices a node are not both known; the devices are {written}"
