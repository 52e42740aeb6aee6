"""What is stored in pieces, how gradients travel, in which type tables are kept, what goes to the host."""

from collections.abc import Iterator, Sequence

from trimtab.spec.migration.megatron.degrees import REPLICA, Degrees
from trimtab.spec.migration.megatron.draft import Draft

_DISTRIBUTED = "--use-distributed-optimizer"
_FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")
_STRATEGY, _OUTER_STRATEGY = "--data-parallel-sharding-strategy", "--outer-dp-sharding-strategy"
_TORCH_FSDP, _TORCH_KEEP = "--use-torch-fsdp2", "--torch-fsdp2-no-reshard-after-forward"
_ZERO = "--zero-stage"

_STORED = {
    "no_shard": (),
    "optim": ("states",),
    "optim_grads": ("grads", "states"),
    "optim_grads_params": ("params", "grads", "states"),
}
"""What each strategy of Megatron-FSDP stores in pieces."""

_ZERO_STAGES = (*_STORED.values(),)
"""What each stage of ZeRO stores in pieces, by its number."""

BYTES_OF_FP32 = 4


def state_storage(draft: Draft, degrees: Degrees) -> None:
    """State what is stored in pieces and over which axes; where experts lie over one of them, theirs differ anyway."""
    axes = degrees.gradient_axes
    inner = tuple(axis for axis in axes if axis != REPLICA)
    stored = _stored(draft)
    statements = [draft.state(f"STORE {', '.join(stored)} OVER {', '.join(inner)}")] if stored else []
    if draft.flags.text(_OUTER_STRATEGY) == "optim" and statements and degrees.replicas > 1:
        draft.carry(_OUTER_STRATEGY, draft.state(f"STORE states OVER {', '.join(axes)}"))
    else:
        draft.drop(_OUTER_STRATEGY, "replicas hold whole copies, which is the default")
    _tell_storage(draft, statements)


def _stored(draft: Draft) -> tuple[str, ...]:
    """The tables that are stored in pieces, by the strongest rule that is switched on."""
    flags = draft.flags
    if any(name in flags for name in _FSDP):
        return _STORED.get(flags.text(_STRATEGY) or "optim_grads_params", _STORED["optim_grads_params"])
    if _TORCH_FSDP in flags:
        return _STORED["optim_grads" if _TORCH_KEEP in flags else "optim_grads_params"]
    stage = _zero_stage(draft)
    if stage:
        return _ZERO_STAGES[stage]
    return ("states",) if _DISTRIBUTED in flags or _divides_bf16_states(draft) else ()


def _zero_stage(draft: Draft) -> int:
    stage = draft.flags.whole(_ZERO)
    return stage if stage is not None and 0 <= stage < len(_ZERO_STAGES) else 0


def _divides_bf16_states(draft: Draft) -> bool:
    """DeepSpeed's bf16 optimizer divides its states whatever the stage.

    Source: bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm, on its ZeRO stage of 0.
    """
    return "--bf16" in draft.flags and "--deepspeed" in draft.flags and _ZERO in draft.flags


def _tell_storage(draft: Draft, statements: Sequence[str]) -> None:
    for name in (*_FSDP, _TORCH_FSDP, _DISTRIBUTED, _STRATEGY):
        if statements:
            draft.carry(name, *statements)
        else:
            draft.drop(name, "nothing is stored in pieces")
    if statements and _zero_stage(draft):
        draft.carry(_ZERO, *statements)
    elif statements and _divides_bf16_states(draft):
        draft.change(
            _ZERO, *statements, reason="DeepSpeed's bf16 optimizer divides its states at stage 0 too"
        )
    else:
        draft.drop(_ZERO, "nothing is stored in pieces")
    if statements and _TORCH_FSDP in draft.flags:
        draft.carry(_TORCH_KEEP, *statements)
    else:
        draft.drop(_TORCH_KEEP, "PyTorch's FSDP is not used")


def state_reductions(draft: Draft, degrees: Degrees) -> None:
    """State the type on the wire and the size of buckets, where the flags give them."""
    in_bf16, bucket = _wire_flags(draft), _bucket(draft)
    clauses = f"{f' BUCKET {bucket[1]}' if bucket else ''}{' IN bf16' if in_bf16 else ''}"
    if not clauses:
        return
    statements = [draft.state(f"{line}{clauses}") for line in _sums(degrees)]
    for name in in_bf16:
        draft.carry(name, *statements)
    if bucket:
        draft.carry(bucket[0], *statements)


def _wire_flags(draft: Draft) -> list[str]:
    """The flags that put gradients on the wire in bf16."""
    by_type = "--megatron-fsdp-grad-comm-dtype"
    switch, whole = "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"
    draft.drop(whole, "gradients are fp32 and travel so, unless REDUCE … IN says otherwise")
    if draft.flags.text(by_type) == "bf16":
        return [name for name in (switch, by_type) if name in draft.flags]
    draft.drop(by_type, "gradients are fp32 and travel so, unless REDUCE … IN says otherwise")
    return [switch] if switch in draft.flags else []


def _bucket(draft: Draft) -> tuple[str, str] | None:
    """The flag that sizes buckets, and the size as a formula has it."""
    elements, megabytes = "--ddp-bucket-size", "--bucket-cap-mb"
    if count := draft.flags.positive(elements):
        return elements, _size(count * BYTES_OF_FP32)
    if count := draft.flags.positive(megabytes):
        return megabytes, f"{count}MB"
    return None


def _size(count_bytes: int) -> str:
    """A size as a formula has it, in the largest unit that it is whole in."""
    units = (("GB", 10**9), ("MB", 10**6), ("MiB", 2**20), ("KB", 10**3), ("KiB", 2**10))
    return next(
        (f"{count_bytes // size}{unit}" for unit, size in units if count_bytes % size == 0), f"{count_bytes}B"
    )


def state_kept_types(draft: Draft) -> None:
    """State the types of gradients and moments, where they are not fp32."""
    moments = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
    types = [draft.flags.text(name) or "fp32" for name in moments]
    for name, kept in zip(moments, types, strict=True):
        if kept == "fp32":
            draft.drop(name, "the default of both")
        elif kept in ("bf16", "fp16") and types[0] == types[1]:
            draft.carry(name, draft.state(f"KEEP states IN {kept}"))
        else:
            draft.refuse(name, "KEEP states IN names one type for both moments, fp32, bf16 or fp16")
    for name in ("--main-grads-dtype", "--megatron-fsdp-main-grads-dtype"):
        if draft.flags.text(name) in ("bf16", "fp16"):
            draft.carry(name, draft.state(f"KEEP grads IN {draft.flags.text(name)}"))
        else:
            draft.drop(name, "gradients are kept in fp32, the default of both")


def state_offloads(draft: Draft) -> None:
    """State what goes to the host while it is not in use."""
    fraction = "--optimizer-offload-fraction"
    for name in ("--optimizer-cpu-offload", "--cpu-optimizer"):
        if name in draft.flags:
            draft.carry(name, draft.state("OFFLOAD states TO host"))
    if draft.flags.number(fraction) in (None, 1.0):
        draft.drop(fraction, "all of it, as without the flag")
    else:
        draft.refuse(fraction, "OFFLOAD names rows of a table; a fraction of all rows cannot be said")
    _offload_layers(draft)
    _offload_modules(draft)


def _offload_layers(draft: Draft) -> None:
    count, switch, off = "--cpu-offloading-num-layers", "--cpu-offloading", "--no-cpu-offloading"
    layers = 0 if off in draft.flags else draft.flags.whole(count) or 0
    statement = draft.state(f"OFFLOAD activations WHERE layer < {layers} TO host") if layers > 0 else ""
    for name in (count, switch, off):
        if statement:
            draft.carry(name, statement)
        else:
            draft.drop(name, "no layer's activations go to the host")


OFFLOADED_KINDS = {
    "attn_norm": "norm",
    "mlp_norm": "norm",
    "qkv_linear": "attention",
    "core_attn": "attention",
    "attn_proj": "attention",
    "expert_fc1": "expert",
    "moe_act": "expert",
}
"""The kind of activation that each module of ``--offload-modules`` keeps for its backward pass."""


def _offload_modules(draft: Draft) -> None:
    switch, modules = "--fine-grained-activation-offloading", "--offload-modules"
    kinds = sorted({OFFLOADED_KINDS[name] for name in draft.flags.texts(modules) if name in OFFLOADED_KINDS})
    if switch not in draft.flags or not kinds:
        draft.drop(modules, "no module's activations go to the host")
        draft.drop(switch, "no module is named")
        return
    names = ", ".join(f"'{kind}'" for kind in kinds)
    statement = draft.state(f"OFFLOAD activations WHERE kind IN ({names}) TO host")
    draft.carry(switch, statement)
    draft.change(modules, statement, reason="whole kinds of activations go, in all layers")


def _sums(degrees: Degrees) -> Iterator[str]:
    """REDUCE over the axes on which gradients are partial: those of experts over fewer, where experts lie on one."""
    axes = degrees.gradient_axes
    of_experts = tuple(axis for axis in axes if axis != degrees.expert_axis)
    if of_experts == axes:
        yield f"REDUCE grads OVER {', '.join(axes)}"
        return
    yield f"REDUCE grads WHERE kind <> 'expert' OVER {', '.join(axes)}"
    yield f"REDUCE grads WHERE kind = 'expert' OVER {', '.join(of_experts)}"
