"""What is divided over which axis: the mesh, and one SPLIT for each kind of parallelism."""

from itertools import groupby

from trimtab.spec.migration.megatron.degrees import CONTEXT, TENSOR, Degrees
from trimtab.spec.migration.megatron.draft import Draft

ONE = "one way: nothing is divided"

_SEQUENCE_WAYS = {"p2p": "ring", "a2a": "ulysses", "allgather": "allgather", "all_gather": "allgather"}
"""How Megatron exchanges keys and values between the parts of a sequence, and how that is called here."""


def state_splits(draft: Draft, degrees: Degrees) -> None:
    """State the mesh and everything that is divided over it, but the layers."""
    mesh = draft.state(degrees.mesh())
    batch = draft.state(f"SPLIT batch OVER {', '.join(degrees.batch_axes)}")
    draft.carry(
        "--num-distributed-optimizer-instances", *((mesh, batch) if degrees.replicas > 1 else (mesh,))
    )
    draft.carry("--use-tp-pp-dp-mapping", mesh)
    _context(draft, degrees, mesh)
    _tensor(draft, degrees, mesh)
    _experts(draft, degrees, mesh)
    if degrees.stages == 1:
        draft.drop("--pipeline-model-parallel-size", ONE)


def _tensor(draft: Draft, degrees: Degrees, mesh: str) -> None:
    size, sequence = "--tensor-model-parallel-size", "--sequence-parallel"
    if degrees.tensor == 1:
        draft.drop(size, ONE)
        draft.drop(sequence, "Megatron-LM turns it off where there is no tensor parallelism")
        return
    draft.carry(size, mesh, draft.state(f"SPLIT heads, mlp, vocab OVER {TENSOR}"))
    if sequence in draft.flags:
        kinds = "kind IN ('norm', 'residual')"
        draft.carry(sequence, draft.state(f"SPLIT sequence OF activations WHERE {kinds} OVER {TENSOR}"))


def _context(draft: Draft, degrees: Degrees, mesh: str) -> None:
    names = ("--context-parallel-size", "--ds-sequence-parallel-size")
    ways, levels = "--cp-comm-type", "--hierarchical-context-parallel-sizes"
    if degrees.context == 1:
        for name in names:
            draft.drop(name, ONE)
        for name in (ways, levels):
            draft.drop(name, "sequences are not divided")
        return
    given = draft.flags.texts(ways) or ("a2a" if names[1] in draft.flags else "p2p",)
    found = [_SEQUENCE_WAYS.get(way, "ring") for way in given]
    split = draft.state(f"SPLIT sequence OVER {CONTEXT} USING {found[0]}")
    others = [draft.state(statement) for statement in _ways_by_layer(found)]
    for name in names:
        draft.carry(name, mesh, split)
    if set(given) <= _SEQUENCE_WAYS.keys():
        draft.carry(ways, split, *others)
    else:
        draft.change(
            ways,
            split,
            *others,
            reason="exchanges in two levels are none of ours: a ring goes over the whole axis",
        )
    draft.refuse(levels, "exchanges in two levels are none of ours: a ring goes over the whole axis")


def _ways_by_layer(ways: list[str]) -> list[str]:
    """Statements for the layers whose way is not that of the first."""
    statements, layer = [], 0
    for way, members in groupby(ways):
        count = len(list(members))
        if way != ways[0]:
            where = f"layer BETWEEN {layer} AND {layer + count - 1}"
            statements.append(f"SPLIT sequence OF activations WHERE {where} OVER {CONTEXT} USING {way}")
        layer += count
    return statements


def _experts(draft: Draft, degrees: Degrees, mesh: str) -> None:
    names = ("--expert-model-parallel-size", "--moe-expert-parallel-size")
    given = next((count for name in names if (count := draft.flags.positive(name))), 1)
    split = [draft.state(f"SPLIT experts OVER {degrees.expert_axis}")] if degrees.expert_axis else []
    for name in names:
        if given == 1:
            draft.drop(name, ONE)
        elif given != degrees.experts:
            reason = (
                f"{degrees.experts} ways, and each expert's matrices over tp: as many bytes on each device"
            )
            draft.change(name, mesh, *split, reason=reason)
        elif degrees.context > 1 and not degrees.has_experts_over_context:
            reason = (
                "the expert axis is cut out of the data axis alone: its groups are other devices than before"
            )
            draft.change(name, mesh, *split, reason=reason)
        else:
            draft.carry(name, mesh, *split)
