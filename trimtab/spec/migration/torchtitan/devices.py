"""How torchtitan groups devices: pipeline, replicas, shards, context, tensor, the last varying fastest.

Expert parallelism takes its devices there from the context axis and from the shards, and from the tensor axis if the
matrices of experts are not cut by it. Here experts lie over one axis, and their matrices are always cut over tp.

Source: torchtitan 0.1.0 to 0.2.2, torchtitan/distributed/parallel_dims.py.
"""

from dataclasses import replace

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, over
from trimtab.spec.migration.settings import MigrationError

SECTION = "parallelism."
REPLICATE, SHARD = f"{SECTION}data_parallel_replicate_degree", f"{SECTION}data_parallel_shard_degree"
TENSOR, CONTEXT = f"{SECTION}tensor_parallel_degree", f"{SECTION}context_parallel_degree"
PIPELINE = f"{SECTION}pipeline_parallel_degree"
EXPERT, EXPERT_TENSOR = f"{SECTION}expert_parallel_degree", f"{SECTION}expert_tensor_parallel_degree"
ROTATE = f"{SECTION}context_parallel_rotate_method"
TORCHFT, GROUPS = "fault_tolerance.enable", "fault_tolerance.group_size"


def read_layout(draft: Draft, devices: int | None) -> Layout:
    """The groups that the file makes of so many devices; None: of as many as it needs.

    Raises: MigrationError if the devices cannot be grouped so.
    """
    pp, cp, tp = (_degree(draft, flag) for flag in (PIPELINE, CONTEXT, TENSOR))
    replicate = _degree(draft, REPLICATE) * _groups(draft)
    shard = -1 if draft.integer(SHARD) in (None, -1) else _degree(draft, SHARD)
    ways = _expert_ways(draft, tp)
    if shard < 0:
        shard = _rest(draft, devices, taken=pp * replicate * cp * tp, fewest=max(1, ways // cp))
    needed = pp * replicate * shard * cp * tp
    if devices not in (None, needed):
        raise MigrationError(
            f"the degrees pp {pp} x dp_replicate {replicate} x dp_shard {shard} x cp {cp} x tp {tp} need "
            f"{needed} devices, not {devices}; torchtitan refuses that"
        )
    layout = Layout(pp=pp, replica=replicate, dp=shard, cp=cp, tp=tp)
    if shard == 1 and draft.integer(SHARD) == 1:
        # Without shards the replicas are plain data parallelism.
        layout = replace(layout, replica=1, dp=replicate)
    return _with_experts(layout, ways, shards=shard)


def is_sharded(draft: Draft, layout: Layout) -> bool:
    """Whether FSDP stores the state in pieces: over shards, parts of sequences or both."""
    return draft.integer(SHARD) != 1 or layout.cp > 1


def answer_devices(draft: Draft, layout: Layout) -> None:
    """Write the mesh, and what is split over each axis but that of stages."""
    draft.put({"orchestration.devices": layout.devices}, layout.mesh)
    if layout.has_experts_beside_sequences:
        _answer_context(draft, layout)
    draft.put(f"SPLIT batch {over(layout.batch_axes)}")
    for flag in (REPLICATE, SHARD):
        if draft.integer(flag) == 1:
            draft.irrelevant(flag, "1: not used")
        else:
            draft.carried(flag, layout.mesh)
    # Of two statements that cut sequences, the first cuts outermost.
    if not layout.has_experts_beside_sequences:
        _answer_context(draft, layout)
    _answer_tensor(draft, layout)
    _answer_experts(draft, layout)


def _degree(draft: Draft, flag: str) -> int:
    degree = draft.integer(flag)
    if degree is not None and degree < 1:
        raise MigrationError(f"{draft.written(flag)} is {degree}; torchtitan takes at least 1")
    return degree or 1


def _groups(draft: Draft) -> int:
    """Replica groups of TorchFT, each with all the degrees of the file; two if their number is left open."""
    if not draft.switch(TORCHFT):
        return 1
    if not draft.integer(GROUPS):
        draft.warnings.append(
            "How many replica groups TorchFT starts, the file leaves open: two stand in, out of all devices together."
        )
    return draft.integer(GROUPS) or 2


def _expert_ways(draft: Draft, tp: int) -> int:
    """Parts that experts are dealt out to, where their matrices are cut over the tensor axis in any case."""
    degree = _degree(draft, EXPERT)
    return degree if _degree(draft, EXPERT_TENSOR) > 1 else max(1, degree // tp)


def _with_experts(layout: Layout, ways: int, *, shards: int) -> Layout:
    """The layout with the axis that experts lie over: the context axis if it is as long, else one cut out of the shards.

    Raises: MigrationError if the shards cannot be cut so.
    """
    if ways == 1:
        return layout
    if ways == layout.cp:
        return replace(layout, experts_over=("cp",))
    inside = ways if shards % ways == 0 else ways // layout.cp
    if not inside or ways % inside or shards % inside:
        raise MigrationError(
            f"{ways} parts of experts do not divide {shards} shards; torchtitan refuses that"
        )
    return replace(layout, ep=inside, experts_over=("ep",) if inside > 1 else ())


def _expert_reason(draft: Draft, layout: Layout) -> str:
    """What is another way here; empty if nothing is."""
    ways, held = _expert_ways(draft, layout.tp), layout.expert_parts
    if held < ways:
        return f"{held} parts: experts lie over one axis, so each device holds {ways // held} times as many"
    if ways < _degree(draft, EXPERT):
        return f"{ways} parts, and each expert's matrices over tp: as many bytes on each device"
    if layout.cp > 1 and layout.experts_over == ("ep",):
        return "the axis is cut out of the shards alone: its groups are other devices than there"
    return ""


def _rest(draft: Draft, devices: int | None, *, taken: int, fewest: int) -> int:
    if devices is None:
        draft.warnings.append(
            f"A torchtitan file does not say how many devices train; {taken * fewest} stand in, the fewest that it can "
            "mean. Import it with --devices N, or set orchestration.devices."
        )
        return fewest
    if devices < taken or devices % taken:
        raise MigrationError(
            f"{devices} devices cannot be cut into groups of {taken}, the product of all degrees but that "
            "of shards"
        )
    return devices // taken


def _answer_tensor(draft: Draft, layout: Layout) -> None:
    loss, flash = f"{SECTION}disable_loss_parallel", f"{SECTION}enable_async_tensor_parallel"
    if layout.tp > 1:
        matrices = "SPLIT heads, mlp, vocab OVER tp"
        between = "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"
        draft.carried(TENSOR, layout.mesh, matrices, between)
    else:
        draft.irrelevant(TENSOR, "1: not used")
    if draft.switch(loss):
        draft.impossible(loss, "logits stay split over the vocabulary, as the head that makes them")
    else:
        draft.irrelevant(loss, "logits stay split over the vocabulary, as here")
    draft.irrelevant("training.enable_loss_parallel", "logits stay split over the vocabulary, as here")
    if draft.switch(flash):
        draft.impossible(
            flash, "products and their collectives overlap where the runtime can, not tile by tile"
        )
    else:
        draft.irrelevant(flash, "off")


def _answer_context(draft: Draft, layout: Layout) -> None:
    if layout.cp == 1:
        draft.irrelevant(CONTEXT, "1: not used")
        draft.irrelevant(ROTATE, "sequences are not split")
    else:
        # Torch's alltoall hands keys and values on from rank to rank: a ring.
        method = "ring" if draft.word(ROTATE) == "alltoall" else "allgather"
        split = f"SPLIT sequence OVER cp USING {method}"
        draft.carried(CONTEXT, layout.mesh, split)
        draft.carried(ROTATE, split)
    draft.irrelevant(
        f"{SECTION}context_parallel_load_balancer", "how tokens are dealt out is the runtime's choice"
    )


def _answer_experts(draft: Draft, layout: Layout) -> None:
    degree = _degree(draft, EXPERT)
    if degree == 1:
        draft.irrelevant(EXPERT, "1: not used")
        draft.irrelevant(EXPERT_TENSOR, "experts are cut as the other matrices are")
    else:
        formulas = (
            (layout.mesh, f"SPLIT experts {over(layout.experts_over)}")
            if layout.experts_over
            else (layout.mesh,)
        )
        if reason := _expert_reason(draft, layout):
            draft.changed(EXPERT, *formulas, reason=reason)
        else:
            draft.carried(EXPERT, *formulas)
        draft.irrelevant(EXPERT_TENSOR, "experts are cut as the other matrices are")
    draft.irrelevant(
        f"{SECTION}expert_parallel_comm_backend", "how tokens reach experts is the runtime's choice"
    )
    draft.irrelevant(f"{SECTION}enable_compiled_autograd", "how the backward pass is compiled")
    draft.irrelevant("debug.moe_force_load_balance", "a switch for debugging")
