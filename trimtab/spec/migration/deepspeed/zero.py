"""ZeRO: what is stored in pieces, over which devices, and what is kept in the host's memory.

Source: DeepSpeed 0.19, deepspeed/runtime/zero/config.py and offload_config.py. MiCS stores everything inside a
group of devices and sums over the groups (Zhang et al. 2022). The secondary partition of ZeRO++ (hpZ) holds the
parameters once per group, while gradients and states stay spread over all devices (Wang et al. 2023).
"""

from collections.abc import Sequence

from trimtab.spec.migration.deepspeed.devices import HPZ, MICS
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, over
from trimtab.spec.migration.settings import MigrationError

SECTION = "zero_optimization"
STAGE = f"{SECTION}.stage"
THRESHOLD = f"{SECTION}.stage3_param_persistence_threshold"

_STORED = {1: "states", 2: "grads, states", 3: "params, grads, states"}
_ON_HOST = {
    f"{SECTION}.offload_optimizer": "states",
    f"{SECTION}.offload_param": "params",
}
_ON_HOST_DEPRECATED = {
    f"{SECTION}.cpu_offload": "states",
    f"{SECTION}.cpu_offload_param": "params",
}


def read_stage(draft: Draft) -> int:
    """The stage, 0 to 3; the old ``"zero_optimization": true`` is stage 1.

    Raises: MigrationError for any other.
    """
    if isinstance(draft.value(SECTION), bool):
        return int(draft.value(SECTION))
    stage = draft.integer(STAGE) or 0
    if stage not in (0, *_STORED):
        raise MigrationError(f"{STAGE} is {stage}; DeepSpeed has the stages 0, 1, 2 and 3")
    return stage


def answer_zero(draft: Draft, layout: Layout) -> None:
    """Write what is stored in pieces, and where."""
    stage = read_stage(draft)
    _answer_stage(draft, layout, stage)
    _answer_groups(draft, layout, stage)
    for flag, table in _ON_HOST.items():
        _answer_offload(draft, flag, table, stage)
    for flag, table in _ON_HOST_DEPRECATED.items():
        if draft.switch(flag):
            _offload(draft, flag, table, stage)
        else:
            draft.irrelevant(flag, "off")
    _answer_quantized_weights(draft)


def _answer_stage(draft: Draft, layout: Layout, stage: int) -> None:
    written = SECTION if SECTION in draft else STAGE
    smallest = draft.integer(THRESHOLD) if stage == 3 else None
    if draft.is_auto(THRESHOLD):
        reason = "auto is 10 times the width of Hugging Face's model; STORE params WHERE numel > N says it"
        draft.irrelevant(THRESHOLD, reason)
    else:
        draft.irrelevant(THRESHOLD, "0: every parameter is stored in pieces" if stage == 3 else "of stage 3")
    if stage == 0 and draft.switch("bf16.enabled"):
        _answer_bf16(draft, layout, written)
    elif stage == 0:
        draft.irrelevant(written, "nothing is stored in pieces, as here unless told")
    elif stage < 3:
        draft.carried(written, _store(_STORED[stage], layout.shard_axes))
    elif not smallest and not _is_hpz(draft, layout):
        draft.carried(written, _store(_STORED[3], layout.shard_axes))
    else:
        params = _store("params", layout.shard_axes, f"numel > {smallest}" if smallest else "")
        draft.carried(written, params, _store("grads, states", _state_axes(draft, layout)))
        if smallest:
            draft.carried(THRESHOLD, params)


def _answer_bf16(draft: Draft, layout: Layout, written: str) -> None:
    """The optimizer that DeepSpeed takes for bf16 in a pipeline divides its states without being told."""
    formula = _store("states", layout.shard_axes)
    if layout.pp > 1:
        reason = "in a pipeline DeepSpeed's bf16 optimizer divides its states whatever the stage"
        draft.changed(written, formula, reason=reason)
        return
    draft.irrelevant(written, "nothing is stored in pieces, as here unless told")
    draft.warnings.append(
        "With bf16 and stage 0 DeepSpeed divides the optimizer's states all the same in pipelines, and some releases in "
        f"other runs too. If yours does, add: {formula}"
    )


def _store(tables: str, axes: Sequence[str], where: str = "") -> str:
    """A STORE statement; experts over one of the axes differ there, and are not cut again."""
    return f"STORE {tables} {f'WHERE {where} ' if where else ''}{over(axes)}"


def _state_axes(draft: Draft, layout: Layout) -> tuple[str, ...]:
    return layout.sum_axes if _is_hpz(draft, layout) else layout.shard_axes


def _is_hpz(draft: Draft, layout: Layout) -> bool:
    return layout.replica > 1 and (draft.integer(MICS) or 1) <= 1


def _answer_groups(draft: Draft, layout: Layout, stage: int) -> None:
    for flag in (MICS, HPZ):
        if stage < 3:
            draft.irrelevant(flag, "of stage 3")
        elif (draft.integer(flag) or 1) <= 1:
            draft.irrelevant(flag, "off")
        elif layout.replica == 1:
            draft.irrelevant(flag, "one group holds all devices")
        elif flag == MICS:
            draft.carried(flag, layout.mesh)
        else:
            reason = (
                "the group's copy is the only one: both passes gather inside the group, and what the step has "
                "changed travels between groups once"
            )
            draft.changed(flag, layout.mesh, _store("params", layout.shard_axes), reason=reason)
    gather = f"{SECTION}.mics_hierarchical_params_gather"
    if draft.switch(gather):
        draft.impossible(gather, "STORE has no USING: the runtime chooses how a gather travels")
    else:
        draft.irrelevant(gather, "off")


def _answer_offload(draft: Draft, section: str, table: str, stage: int) -> None:
    device = draft.word(f"{section}.device")
    if device == "cpu":
        _offload(draft, f"{section}.device", table, stage)
    elif device == "nvme":
        reason = f"nothing is kept on disk in a step; OFFLOAD {table} TO host if the host's memory holds them"
        draft.impossible(f"{section}.device", reason)
    else:
        draft.irrelevant(f"{section}.device", "none: kept on the device, as here unless told")
    if draft.number(f"{section}.ratio") not in (None, 1):
        reason = f"a share by number of bytes; name the tensors: OFFLOAD {table} WHERE layer < N TO host"
        draft.impossible(f"{section}.ratio", reason)
    draft.irrelevant(section, "empty: kept on the device, as here unless told")
    for key in _OFFLOAD_KEYS:
        if f"{section}.{key}" in draft.unanswered(section):
            draft.irrelevant(f"{section}.{key}", "how the copies are buffered is the runtime's affair")


_OFFLOAD_KEYS = (
    "pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "nvme_path", "pipeline_read", "pipeline_write", "fast_init",
    "ratio", "super_offload", "cpuadam_cores_perc",
)  # fmt: skip


def _offload(draft: Draft, flag: str, table: str, stage: int) -> None:
    needed = 3 if table == "params" else 1
    if stage < needed:
        draft.irrelevant(flag, f"DeepSpeed offloads {table} from stage {needed} on")
    else:
        draft.carried(flag, f"OFFLOAD {table} TO host")


def _answer_quantized_weights(draft: Draft) -> None:
    for key in ("zero_quantized_weights", "zero_quantized_nontrainable_weights"):
        flag = f"{SECTION}.{key}"
        if draft.switch(flag):
            draft.impossible(
                flag, "STORE has no COMPRESS: parameters are gathered in the type that they are kept in"
            )
        else:
            draft.irrelevant(flag, "off")
