"""What one rank holds of tensors, in bytes: the largest piece where pieces differ."""

from collections.abc import Iterable, Mapping

from trimtab.plan.block_builder import base_name
from trimtab.plan.physical import EMBEDDING, HEAD, Plan
from trimtab.plan.pipelines import actions_of, peak_bytes
from trimtab.plan.placements import Placements, local_elements, split
from trimtab.plan.program import Block, Parameter, Value
from trimtab.plan.tables import BYTES_OF, Row, Table

_BYTES_OF = {**BYTES_OF, "int64": 8}
"""With tokens and targets, which no table has."""

_MADE_AS = {
    "embedding": "looked_up",
    "attention.out": "attention.core",
    "experts.in": "experts.picked",
    "experts.out": "experts.down.product",
}
"""Rows of activations whose value has another name while it is not yet laid out as the row."""


class Pieces:
    """Bytes of pieces on one rank, worked out once for tensors that lie alike.

    Args:
        plan: Whose tensors they are.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sizes = plan.axis_sizes
        self._elements: dict[tuple[object, ...], int] = {}
        self._activations: dict[tuple[str, str], tuple[Value, int]] = {}
        self._blocks = {layer: block for block in plan.blocks for layer in block.layers}
        self._ends = {block.name: block for block in plan.blocks if not block.layers}

    def elements(self, dims: tuple[str, ...], shape: tuple[int, ...], placements: Placements) -> int:
        """Elements of the largest piece of a tensor."""
        key = dims, shape, placements
        if key not in self._elements:
            self._elements[key] = local_elements(dims, shape, placements, self._sizes)
        return self._elements[key]

    def used_bytes(self, parameter: Parameter, table: Table) -> int:
        """Of a parameter, or of its gradient, while it is used."""
        elements = self.elements(parameter.dims, parameter.shape, parameter.computed)
        return elements * _BYTES_OF[parameter.dtypes[table.value]]

    def stored_bytes(self, parameter: Parameter, table: Table) -> int:
        """Of a parameter, its gradient or its optimizer states, between uses."""
        elements = self.elements(parameter.dims, parameter.shape, parameter.stored[table.value])
        copies = parameter.num_states if table is Table.STATES else 1
        return elements * copies * _BYTES_OF[parameter.dtypes[table.value]]

    def value_bytes(self, value: Value) -> int:
        """Of a value of a block, for one microbatch."""
        return self.elements(value.dims, value.shape, value.placements) * _BYTES_OF[value.dtype]

    def kept_bytes(self, block: Block, names: Iterable[str]) -> int:
        """Of those values of a block that stay from the forward to the backward pass, for one microbatch."""
        return sum(self.value_bytes(block.values[name]) for name in names if name in block.kept)

    def activation(self, row: Row) -> tuple[Value, int]:
        """The value that an activation is, and the bytes of it that stay for the backward pass, in all copies."""
        block = self._block_of(row)
        key = block.name, _relative(row)
        if key not in self._activations:
            self._activations[key] = self._value_of(row), self.kept_bytes(block, self._copies_of(row))
        return self._activations[key]

    def activation_bytes(self, *, is_offloaded: bool) -> Mapping[int, int]:
        """By place on the pipeline's axis, the most bytes of activations that a rank keeps at once.

        Microbatches of one share follow each other; the order of passes says how many are under way at once.

        Args:
            is_offloaded: Whether to count what waits in host memory, or what stays on the device.
        """
        plan, pipeline = self._plan, self._plan.pipeline
        by_block = {}
        for block in plan.blocks:
            names = [name for name in block.kept if (name in block.offloaded) is is_offloaded]
            by_block[block.name] = self.kept_bytes(block, names)
        by_stage = [
            sum(plan.num_instances(block, stage) * by_block[block.name] for block in plan.blocks)
            for stage in range(pipeline.num_stages)
        ]
        if pipeline.axis is None:
            return {0: by_stage[0]}
        actions = actions_of(
            pipeline.schedule,
            ranks=plan.mesh.size(pipeline.axis),
            stages_per_rank=pipeline.stages_per_rank,
            microbatches=plan.work.microbatches_per_part,
        )
        return dict(enumerate(peak_bytes(actions, stage_bytes=by_stage)))

    def _block_of(self, row: Row) -> Block:
        """The block that makes an activation."""
        if row.layer is not None:
            return self._blocks[row.layer]
        return self._ends[EMBEDDING if row.kind == "residual" else HEAD]

    def _value_of(self, row: Row) -> Value:
        """The value that an activation is, lying as its row shall, in the shape that all ranks together compute."""
        values = self._block_of(row).values
        copies = [values[name] for name in self._copies_of(row)]
        decided = self._decided(row)
        as_decided = (value for value in copies if value.placements.is_same(decided))
        return values.get(_relative(row)) or next(as_decided, copies[-1])

    def _copies_of(self, row: Row) -> tuple[str, ...]:
        """Names of all values that hold an activation, whichever way they lie."""
        name = _relative(row)
        names = {name, _MADE_AS.get(name, name)}
        return tuple(value for value in self._block_of(row).values if base_name(value) in names)

    def _decided(self, row: Row) -> Placements:
        """How the statements let an activation lie; what experts receive is cut where the router's tokens are."""
        splits = self._plan.bound.splits[Table.ACTIVATIONS]
        cuts, found = splits.get(row.name, {}), Placements()
        if "slots" in row.dims:
            for axis in splits.get(f"layers.{row.layer}.router", {}):
                if axis not in cuts:
                    found = found.put(axis, split("slots"))
        for axis, decision in cuts.items():
            found = found.put(axis, split(decision.value))
        return found


def _relative(row: Row) -> str:
    """The name of an activation inside its block."""
    return row.name.removeprefix(f"layers.{row.layer}.")
