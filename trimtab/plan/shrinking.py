"""A job made small with its structure kept: what is true of its plan is true of the large one's program.

Every axis keeps at most two ranks, every width becomes small, and the layers become few where all of them are decided
alike. Ratios that decide layouts stay: heads that share keys, a vocabulary that does not divide, several experts.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from trimtab.catalog import Network
from trimtab.plan.training import Training
from trimtab.spec import Mesh, Program
from trimtab.spec.language import (
    AverageStatement,
    MeshStatement,
    PlaceStatement,
    SplitStatement,
    Statement,
)

SEQUENCE = 16
"""Tokens of a sample."""

_HEAD_SIZE = 8
_VOCAB = 64
_WINDOW = 6


def shrunk_mesh(mesh: Mesh, most_devices: int) -> Mesh:
    """Two ranks on every axis that has several, as long as they are not more than ``most_devices`` together.

    >>> shrunk_mesh(Mesh(axes=(("pp", 4), ("dp", 8), ("tp", 1))), 16).axes
    (('pp', 2), ('dp', 2), ('tp', 1))
    """
    axes, room = [], most_devices
    for axis, size in mesh.axes:
        kept = 2 if size > 1 and room >= 2 else 1
        room //= kept
        axes.append((axis, kept))
    return Mesh(axes=tuple(axes))


def shrunk_program(program: Program, mesh: Mesh) -> Program:
    """The statements on a smaller mesh; what matches nothing any more is no mistake."""
    sizes = dict(mesh.axes)
    statements = tuple(
        _shrunk(statement, sizes) for statement in program.statements if _still_holds(statement, sizes)
    )
    return replace(program, statements=statements)


def shrunk_training(training: Training, mesh: Mesh, *, replicas: int, layers: int) -> Training:
    """A small network, and one sample for each microbatch.

    Args:
        training: Of the job.
        mesh: The small one.
        replicas: Ranks along the axes that split the batch.
        layers: That the network keeps.
    """
    return replace(
        training,
        network=_shrunk_network(training.network, math.prod(size for _, size in mesh.axes), layers),
        batch=replicas * _num_microbatches(mesh),
        microbatch=1,
        sequence=SEQUENCE,
        shares=None,
    )


def _num_microbatches(mesh: Mesh) -> int:
    """Enough for every stage schedule on the largest axis."""
    return 2 * max(size for _, size in mesh.axes)


def _still_holds(statement: Statement, sizes: Mapping[str, int]) -> bool:
    return not isinstance(statement, PlaceStatement) or statement.index < sizes[statement.axis.text]


def _shrunk(statement: Statement, sizes: Mapping[str, int]) -> Statement:
    match statement:
        case MeshStatement():
            axes = tuple(replace(axis, size=sizes[axis.axis.text]) for axis in statement.axes)
            return replace(statement, axes=axes)
        case SplitStatement(microbatches=int()):
            return replace(statement, microbatches=2 * max(sizes.values()), if_any=True)
        case AverageStatement():
            return replace(statement, every=min(statement.every, 2), if_any=True)
    return replace(statement, if_any=True) if hasattr(statement, "if_any") else statement


def _shrunk_network(network: Network, devices: int, layers: int) -> Network:
    """Heads for every device, and other widths that a few axes cut evenly."""
    shared = min(network.heads // network.kv_heads, 2)
    kv_heads = max(min(network.kv_heads, devices), 1)
    heads = kv_heads * shared
    is_square = network.embed == network.heads * network.head_size
    embed = heads * _HEAD_SIZE if is_square else heads * _HEAD_SIZE * 2
    experts = min(network.experts, 4)
    return replace(
        network,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=_HEAD_SIZE,
        embed=embed,
        mlp=2 * embed,
        # An odd vocabulary stays odd: padding is part of the structure.
        vocab=_VOCAB if network.vocab % 2 == 0 else _VOCAB + 3,
        context=2 * SEQUENCE,
        window=_WINDOW if network.window else 0,
        full_layers=min(network.full_layers, layers - 1),
        experts=experts,
        top_k=min(network.top_k, 2, experts),
        rope_scaling=None,
    )
