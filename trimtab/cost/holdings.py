"""What ranks keep between steps: parameters, gradients, optimizer states, by where they are kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.physical import HEAD, Plan
from trimtab.plan.placements import local_elements
from trimtab.plan.program import Block, Parameter
from trimtab.plan.tables import BYTES_OF, Table

_TABLES = (Table.PARAMS, Table.GRADS, Table.STATES)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldTable:
    """What a rank keeps of one table between steps.

    Args:
        table: params, grads or states.
        device_bytes: On the device.
        host_bytes: In host memory.
    """

    table: Table
    device_bytes: int
    host_bytes: int

    @property
    def total_bytes(self) -> int:
        """Wherever it is."""
        return self.device_bytes + self.host_bytes


class Holdings:
    """Counts what the holders of stages keep; what a parameter takes is worked out once for all equal layers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.parameters: Mapping[str, tuple[Parameter, ...]] = {
            block.name: _parameters_of(plan, block) for block in plan.blocks
        }
        """By block, those of one layer of it."""
        self._bytes = {
            parameter.name: _parameter_bytes(plan, parameter)
            for parameters in self.parameters.values()
            for parameter in parameters
        }
        self._factors = _factor_bytes(plan)

    def of(self, stages: Sequence[int]) -> tuple[HeldTable, ...]:
        """What one rank keeps that holds some stages: params, grads, states."""
        totals = {table: [0, 0] for table in _TABLES}
        for parameter, count in self.held_by(stages):
            found = self._bytes[parameter.name]
            for table, size in found.kept.items():
                held = count * (self._num_sums(parameter, stages) if table is Table.GRADS else 1)
                totals[table][False] += (size - found.waiting[table]) * held
                totals[table][True] += found.waiting[table] * held
            totals[Table.STATES][False] += count * self._factors.get(parameter.name, 0)
        return tuple(
            HeldTable(table=table, device_bytes=device, host_bytes=host)
            for table, (device, host) in totals.items()
        )

    def _num_sums(self, parameter: Parameter, stages: Sequence[int]) -> int:
        """Sums of a parameter's gradient: two of a tied matrix where both uses stand on one rank and are sent apart."""
        plan = self._plan
        is_tied = f"acc:{parameter.name}#{HEAD}" in plan.update.values
        both = {0, plan.pipeline.num_stages - 1} <= set(stages)
        return 2 if is_tied and both and not plan.update.is_tied_at_once else 1

    def update_bytes(self, stages: Sequence[int]) -> int:
        """What the optimizer needs besides.

        Pieces of gradients and parameters where it works on others than are kept; the states of one parameter where they
        wait in host memory.
        """
        held = [(self._bytes[parameter.name], count) for parameter, count in self.held_by(stages)]
        fetched = max((found.waiting[Table.STATES] for found, _ in held), default=0)
        return fetched + sum(found.update * count for found, count in held)

    def held_by(self, stages: Sequence[int]) -> Iterator[tuple[Parameter, int]]:
        """The parameters of some stages; those of equal layers stand for each other, with their number."""
        held = set(stages)
        for block in self._plan.blocks:
            if block.layers:
                count = sum(self._plan.num_instances(block, stage) for stage in stages)
                yield from ((parameter, count) for parameter in self.parameters[block.name] if count)
            else:
                yield from ((found, 1) for found in self.parameters[block.name] if held & set(found.stages))


def _factor_bytes(plan: Plan) -> Mapping[str, int]:
    """By parameter, the thin matrix that PowerSGD goes on with in the next step; vectors and small matrices have none."""
    found = {}
    for operator in plan.update.operators:
        transfer = operator.transfer
        if transfer is None or transfer.compress != "powersgd":
            continue
        value = plan.update.values[operator.inputs[0]]
        if len(value.shape) < 2:
            continue
        elements = local_elements(value.dims, value.shape, value.placements, plan.axis_sizes)
        columns = local_elements(value.dims[-1:], value.shape[-1:], value.placements, plan.axis_sizes)
        rank = int(transfer.compress_argument or 1)
        if rank * (elements // columns + columns) < elements:
            name = operator.inputs[0].partition(":")[2].partition("#")[0].partition("~")[0].partition("@")[0]
            found[name] = BYTES_OF["fp32"] * columns * rank
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _ParameterBytes:
    """Of one parameter on one rank: what is kept by table, how much of it on the host, and what its update needs besides."""

    kept: Mapping[Table, int]
    waiting: Mapping[Table, int]
    update: int


def _parameters_of(plan: Plan, block: Block) -> tuple[Parameter, ...]:
    """The parameters of one layer of a block; of embedding and head those that belong there."""
    layer = block.layers[0] if block.layers else None
    return tuple(
        parameter
        for parameter in plan.parameters.values()
        if parameter.layer == layer and (layer is not None or parameter.block == block.name)
    )


def _parameter_bytes(plan: Plan, parameter: Parameter) -> _ParameterBytes:
    sizes = plan.axis_sizes
    applied = parameter.stored[Table.STATES.value]
    elements = local_elements(parameter.dims, parameter.shape, applied, sizes)
    return _ParameterBytes(
        kept={table: parameter.held_bytes(table, sizes) for table in _TABLES},
        waiting={table: parameter.waiting_bytes(table, sizes) for table in _TABLES},
        update=sum(
            elements * BYTES_OF[parameter.dtypes[table.value]]
            for table in (Table.GRADS, Table.PARAMS)
            if not parameter.stored[table.value].is_same(applied)
        ),
    )
