"""All ranks of a plan at once: each runs the plan's operators on the pieces that it holds, and sends what they send."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from symbolic_integers import Integers
from symbolic_local import Local, compute
from symbolic_pieces import Array, Extent, MisfitError, Piece, restrict
from symbolic_plan import BYTES_OF, COLLECTIVES, Operator, Plan, Transfer, Value
from symbolic_together import Gang, chunks, in_cutting_order, together
from symbolic_wires import Sent, Wires

Held = dict[int, Piece]
"""What the ranks hold of one value, by rank; a rank that is not there holds nothing of it."""


@dataclass(kw_only=True, slots=True)
class Scope:
    """What operators read and write: the values of one block at work, or of the update.

    Args:
        block: Name of the block; ``update``.
        declared: By name.
        ranks: That run it.
        parameters: The pieces of a parameter, by its name in the block, as operators take it.
        weights: What each token of the microbatch counts, [B, S]; empty in the update.
        phase: Of the step.
        held: By name.
        added_up: The gradients that microbatches before this one have left, by name.
    """

    block: str
    declared: Mapping[str, Value]
    ranks: tuple[int, ...]
    parameters: Callable[[str], Held]
    weights: Array
    phase: str = ""
    held: dict[str, Held] = field(default_factory=dict)
    added_up: dict[str, Held] = field(default_factory=dict)


class Ranks:
    """Runs operators.

    Args:
        plan: Whose ranks they are.
        integers: Arithmetic.

    Attributes:
        plan, mesh, integers: As given.
        wires: What was sent.
        misplaced: The first value that lay otherwise than declared, in a sentence; None if there was none.
    """

    def __init__(self, plan: Plan, integers: Integers) -> None:
        self.wires = Wires()
        self.misplaced: str | None = None
        self.plan = plan
        self.mesh = plan.mesh
        self.integers = integers

    def run(self, operators: Iterable[Operator], scope: Scope) -> None:
        """Operators in order.

        Raises: MisfitError or ValueError if pieces cannot be put together or are missing.
        """
        for operator in operators:
            for name in operator.inputs:
                if name not in scope.held:
                    raise MisfitError(f"{operator.kind} reads {name!r}, which no rank has")
            self._run(operator, scope)
            self._look(operator, scope)

    def hand_over(self, stream: Held, value: Value, phase: str, *, source: int, target: int) -> Held:
        """The residual stream, or its gradient, from a stage to a neighbour; nothing is sent within a rank."""
        axis = self.plan.pipeline_axis
        if axis is None or source == target:
            return stream
        found: Held = {}
        for group in self.mesh.groups([axis]):
            pair = tuple(
                rank for place in (source, target) for rank in group if self.plan.place(rank) == place
            )
            what = Sent("pipeline", phase, "send", ("residual stream",), (axis,), "native")
            line = self.wires.line(what, pair, BYTES_OF[value.dtype], only_first_sends=True)
            piece = stream[pair[0]]
            found[pair[1]] = Piece(piece.extent, line.send(0, 1, piece.array))
        return found

    def _run(self, operator: Operator, scope: Scope) -> None:
        match operator.kind:
            case kind if kind in COLLECTIVES:
                self._collective(operator, scope)
            case "slice":
                self._slice(operator, scope)
            case "accumulate":
                self._accumulate(operator, scope)
            case "norm_square":
                self._norm_square(operator, scope)
            case "set_apart":  # What was a summand is a gradient of its own; the numbers stay.
                scope.held[operator.outputs[0]] = scope.held[operator.inputs[0]]
            case _:
                self._local(operator, scope)

    def _look(self, operator: Operator, scope: Scope) -> None:
        """Note the first output that does not have the elements that its layout says."""
        for name in operator.outputs:
            declared = self.mesh.extents(scope.declared[name])
            for rank, piece in scope.held[name].items():
                if piece.extent != declared[rank] and self.misplaced is None:
                    self.misplaced = (
                        f"{name!r} of {scope.block}: rank {rank} has other elements than its layout says"
                    )

    # Alone.

    def _local(self, operator: Operator, scope: Scope) -> None:
        outputs: list[Held] = [{} for _ in operator.outputs]
        declared = [self.mesh.extents(scope.declared[name]) for name in operator.outputs]
        inputs = [scope.held[name] for name in operator.inputs]
        parameters = (
            [scope.parameters(name) for name in operator.parameters] if scope.block != "update" else []
        )
        for rank in self._holders(operator, scope):
            local = Local(
                operator=operator,
                inputs=[held[rank] for held in inputs if rank in held],
                parameters=[held[rank] for held in parameters],
                declared=[extents[rank] for extents in declared],
                integers=self.integers,
                network=self.plan.network,
                weights=scope.weights,
            )
            for held, piece in zip(outputs, compute(local), strict=True):
                held[rank] = piece
        scope.held.update(zip(operator.outputs, outputs, strict=True))

    def _holders(self, operator: Operator, scope: Scope) -> list[int]:
        """The ranks that have what an operator reads; of a sum of uses one is enough."""
        enough = any if operator.kind == "sum" else all
        held = [scope.held[name] for name in operator.inputs]
        return [rank for rank in scope.ranks if enough(rank in pieces for pieces in held)]

    def _slice(self, operator: Operator, scope: Scope) -> None:
        for name, output in zip(operator.inputs, operator.outputs, strict=True):
            value = scope.declared[output]
            axes = in_cutting_order(operator.cuts, value)
            found: Held = {}
            for rank, piece in scope.held[name].items():
                for axis in axes:
                    index, size = self.mesh.coordinates[rank][axis], self.mesh.sizes[axis]
                    piece = chunks(piece, operator.dim_to, value, size)[index]
                found[rank] = piece
            scope.held[output] = found

    def _accumulate(self, operator: Operator, scope: Scope) -> None:
        """The gradient of this microbatch joins those before it."""
        (name,), (output,) = operator.inputs, operator.outputs
        before = scope.added_up.get(output)
        found = dict(scope.held[name])
        if before is not None:
            for rank, piece in found.items():
                added = restrict(before[rank], piece.extent)
                found[rank] = Piece(piece.extent, self.integers.sum(piece.array, added.array))
        scope.added_up[output] = scope.held[output] = found

    def _norm_square(self, operator: Operator, scope: Scope) -> None:
        """Each rank's part of the sum of squares: of equal elements those of the first rank count."""
        total = dict.fromkeys(scope.ranks, 0)
        modulus = self.integers.modulus
        for name in operator.inputs:
            value, parameter = scope.declared[name], self.plan.parameter_of_gradient(name)
            first_stage = self.plan.ranks_at(parameter.stages[0])
            for rank, piece in scope.held[name].items():
                if rank in first_stage and self._counts(rank, value):
                    total[rank] += int((piece.array * piece.array % modulus).sum())
        pieces = {rank: Piece(Extent(()), np.asarray(number % modulus)) for rank, number in total.items()}
        scope.held[operator.outputs[0]] = pieces

    def _counts(self, rank: int, value: Value) -> bool:
        """Whether a rank is the first of those that hold the same elements."""
        differing = {axis for axis, _, _ in value.placements} | {self.plan.pipeline_axis}
        return all(at == 0 for axis, at in self.mesh.coordinates[rank].items() if axis not in differing)

    # Together.

    def _collective(self, operator: Operator, scope: Scope) -> None:
        assert operator.transfer is not None, "collectives are sent"
        groups = self.mesh.groups(operator.transfer.axes)
        outputs: list[Held] = [{} for _ in operator.outputs]
        if operator.kind in ("all_reduce", "average"):  # Who does not take part goes on with what it has.
            outputs = [dict(scope.held[name]) for name in operator.inputs]
        for group, transfer in zip(groups, operator.ways(len(groups)), strict=True):
            members = self._taking_part(group, transfer, operator, scope)
            if not members:
                continue
            gang = Gang(
                plan=self.plan,
                integers=self.integers,
                wires=self.wires,
                what=Sent(
                    scope.block, scope.phase, operator.kind, operator.inputs, transfer.axes, transfer.route
                ),
                operator=operator,
                transfer=transfer,
                members=members,
                inputs=[[scope.held[name][rank] for rank in members] for name in operator.inputs],
                before=[scope.declared[name] for name in operator.inputs],
                after=[scope.declared[name] for name in operator.outputs],
            )
            for held, pieces in zip(outputs, together(gang), strict=True):
                held.update(zip(members, pieces, strict=True))
        scope.held.update(zip(operator.outputs, outputs, strict=True))

    def _taking_part(
        self, group: Sequence[int], transfer: Transfer, operator: Operator, scope: Scope
    ) -> tuple[int, ...]:
        members = [rank for rank in group if all(rank in scope.held[name] for name in operator.inputs)]
        if transfer.stages:
            wanted = self.plan.ranks_at(*transfer.stages)
            members = [rank for rank in members if rank in wanted]
        return tuple(members)
