"""Is a physical plan the same computation as one device? Every operator is checked on every axis.

The rules say what each operator does to placements, axis by axis, independently of how the plan was derived: a
sum that is missing, made twice or made over another axis gives an operand a type that its operator does not take.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trimtab.plan.block_builder import base_name
from trimtab.plan.operator_types import RULES, Operands
from trimtab.plan.physical import SCALARS, Plan
from trimtab.plan.placements import (
    PARTIAL,
    REPLICATED,
    Placement,
    PlacementKind,
    Placements,
)
from trimtab.plan.program import Block, Operator, OperatorKind, Value
from trimtab.spec import Problem, Program, StrategyError
from trimtab.terms import Span


class Verifier:
    """Checks the plans that a program goes through, each after the rule that made it.

    What is the same object as in the plan before was checked then, and is not checked again.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._good: dict[int, object] = {}

    def verify(self, plan: Plan) -> None:
        """Refuse a plan that does not compute what one device computes.

        Raises: StrategyError naming the tensor, the axis and the statement behind the operator.
        """
        problems = list(find_wrong(plan, self._good))
        if problems:
            found = [
                Problem(span=problem.line or _first_span(self._program), message=problem.message)
                for problem in problems[:MAX_PROBLEMS]
            ]
            raise StrategyError(found, self._program.documents)


MAX_PROBLEMS = 5
"""More would say the same of further tensors."""


class Wrong:
    """One operator that does not fit.

    Args:
        message: The tensor, the axis, what was found and what was required.
        line: The statement that it came from; None if a default did.
    """

    __slots__ = ("line", "message")

    def __init__(self, message: str, line: Span | None) -> None:
        self.message = message
        self.line = line


def find_wrong(plan: Plan, good: dict[int, object] | None = None) -> Iterator[Wrong]:
    """Everything in a plan that is not what one device computes; nothing for a good plan.

    Args:
        plan: To check.
        good: Operators and blocks by identity that were found good before; gains those that are now.
    """
    good = {} if good is None else good
    axes = [axis for axis, _ in plan.mesh.axes]
    for block in plan.blocks:
        if id(block) in good:
            continue
        good[id(block)] = block
        prefix = f"layers.{block.layers[0]}." if block.layers else ""
        parameters = {
            name.removeprefix(prefix): parameter.computed
            for name, parameter in plan.parameters.items()
            if name.startswith(prefix) and (bool(prefix) or parameter.layer is None)
        }
        dims = {
            name.removeprefix(prefix): parameter.dims
            for name, parameter in plan.parameters.items()
            if name.startswith(prefix) and (bool(prefix) or parameter.layer is None)
        }
        yield from _Checker(block.values, parameters, dims, axes, {}).check_block(block)
    yield from _between_blocks(plan)
    yield from _UpdateChecker(plan, axes, good).check()


class _Checker:
    """Operators of one block against the types of their values."""

    def __init__(
        self,
        values: Mapping[str, Value],
        parameters: Mapping[str, Placements],
        dims: Mapping[str, tuple[str, ...]],
        axes: Sequence[str],
        good: dict[int, object],
    ) -> None:
        self._good = good
        self._values = values
        self._parameters = parameters
        self._dims = dims
        self._axes = axes
        self._made: set[str] = set()

    def check_block(self, block: Block) -> Iterator[Wrong]:
        self._made = {name for name in block.values if name in _GIVEN or name.startswith("stored:")}
        for operator in (*block.gathers, *block.forward):
            yield from self.check(operator)
        forward = set(self._made)
        self._made = set(block.kept) | {name for name in self._made if name.startswith(("stored:", "param:"))}
        self._made |= {"grad:out"} | set(_GIVEN) & forward & set(block.kept)
        for operator in (*block.recompute, *block.backward):
            yield from self.check(operator)
        yield from self._every_gradient(block)

    def made(self) -> frozenset[str]:
        """Values that are there by now."""
        return frozenset(self._made)

    def give(self, names: Iterable[str]) -> None:
        """Values that are there before the first operator."""
        self._made |= set(names)

    def check(self, operator: Operator) -> Iterator[Wrong]:
        """What is wrong with one operator; its outputs count as made afterwards."""
        for name in operator.inputs:
            if name not in self._made:
                yield Wrong(
                    f"{operator.kind.value} reads {name!r}, which nothing has made", operator.because.line
                )
                return
        self._made.update(operator.outputs)
        if id(operator) in self._good:
            return
        self._good[id(operator)] = operator
        for axis in self._axes:
            yield from self._check_axis(operator, axis)

    def _check_axis(self, operator: Operator, axis: str) -> Iterator[Wrong]:
        inputs = [self._values[name].placements.on(axis) for name in operator.inputs]
        parameters = [self._cut(name, axis) for name in operator.parameters]
        found = [self._values[name].placements.on(axis) for name in operator.outputs]
        rule = RULES[operator.kind]
        required = rule(Operands(operator, axis, inputs, parameters, self._dims, found))
        if required is None:
            shown = ", ".join(
                f"{name!r} {placement}" for name, placement in zip(operator.inputs, inputs, strict=True)
            )
            shown += "".join(
                f", {name!r} {placement}"
                for name, placement in zip(operator.parameters, parameters, strict=True)
            )
            yield Wrong(
                f"{operator.kind.value} cannot take what it is given over {axis!r}: {shown}",
                operator.because.line,
            )
        elif required != found:
            for name, one, other in zip(operator.outputs, found, required, strict=True):
                if one != other:
                    yield Wrong(
                        f"{name!r} is {other} over {axis!r} after {operator.kind.value}; the plan takes it for {one}",
                        operator.because.line,
                    )

    def _cut(self, parameter: str, axis: str) -> Placement:
        found = self._parameters[parameter].on(axis)
        return found if found.kind is PlacementKind.SPLIT else REPLICATED

    def _every_gradient(self, block: Block) -> Iterator[Wrong]:
        """Each parameter that the block uses is added up exactly once."""
        used = {parameter for operator in block.forward for parameter in operator.parameters}
        added = [
            parameter
            for operator in block.backward
            if operator.kind is OperatorKind.ACCUMULATE
            for parameter in operator.parameters
        ]
        for parameter in sorted(used):
            if added.count(parameter) != 1:
                yield Wrong(f"the gradient of {parameter!r} is added up {added.count(parameter)} times", None)


_GIVEN = ("in", "tokens", "targets")
"""Values that a block is given."""


def _between_blocks(plan: Plan) -> Iterator[Wrong]:
    """The residual stream leaves every block as it enters the next, and its gradient the other way round."""
    embedding, *_, head = plan.blocks
    for layer in range(plan.network.layers + 1):
        block = plan.block_of(layer) if layer < plan.network.layers else head
        before = plan.block_of(layer - 1) if layer else embedding
        leaves, enters = before.values[before.result].placements, block.values["in"].placements
        if not leaves.is_same(enters):
            yield Wrong(
                f"the residual stream leaves {before.name} {leaves} and enters {block.name} {enters}", None
            )
        back = block.values[block.gradient].placements
        wanted = before.values["grad:out"].placements
        if not back.is_same(wanted):
            yield Wrong(f"the gradient leaves {block.name} {back} and enters {before.name} {wanted}", None)


class _UpdateChecker:
    """Once a step: every gradient whole, every parameter updated once and put back where it is kept."""

    def __init__(self, plan: Plan, axes: Sequence[str], good: dict[int, object]) -> None:
        self._plan = plan
        self._axes = axes
        parameters = {name: parameter.computed for name, parameter in plan.parameters.items()}
        dims = {name: parameter.dims for name, parameter in plan.parameters.items()}
        self._checker = _Checker(plan.update.values, parameters, dims, axes, good)

    def check(self) -> Iterator[Wrong]:
        """What is wrong after the last microbatch."""
        update = self._plan.update
        self._checker.give(
            name
            for name in update.values
            if (name.startswith(("acc:", "param:")) and "@" not in name) or name in ("num_tokens", "loss")
        )
        for operator in update.operators:
            yield from self._checker.check(operator)
        yield from self._accumulated()
        yield from self._updated()
        yield from self._counted()

    def _counted(self) -> Iterator[Wrong]:
        """What every rank must know of the whole step ends as a sum over all that have a part of it."""
        for name in SCALARS:
            if name not in self._plan.update.values:
                continue
            layouts = [
                self._plan.update.values[value].placements
                for value in self._checker.made()
                if value.startswith(name) and base_name(value) == name
            ]
            if not any(not layout.axes_of(PlacementKind.PARTIAL) for layout in layouts):
                yield Wrong(f"{name!r} is never summed: every rank would go on with its own part", None)

    def _accumulated(self) -> Iterator[Wrong]:
        """What blocks add up is what the update starts from."""
        axis = self._plan.pipeline.axis
        for name, total, value in accumulations(self._plan):
            left = value.placements
            if axis is not None and len(self._plan.parameters[name].stages) > 1:
                left = left.put(axis, PARTIAL)
            taken = self._plan.update.values[total].placements
            if not left.is_same(taken):
                yield Wrong(f"the gradient of {name!r} is left {left} and taken for {taken}", None)

    def _updated(self) -> Iterator[Wrong]:
        update = self._plan.update
        times = Counter(
            name
            for operator in update.operators
            if operator.kind is OperatorKind.UPDATE
            for name in operator.parameters
        )
        for name, parameter in self._plan.parameters.items():
            if times[name] != 1:
                yield Wrong(f"{name!r} is updated {times[name]} times in a step", None)
            elif not update.values[update.results[name]].placements.is_same(parameter.stored["params"]):
                yield Wrong(f"{name!r} is not put back where it is kept", None)


def accumulations(plan: Plan) -> Iterator[tuple[str, str, Value]]:
    """Where blocks add gradients up: parameter, value of the update, value of the block; two for a tied matrix."""
    uses: dict[str, list[tuple[Block, Value]]] = {}
    for block in plan.blocks:
        added = [name for name in block.values if name.startswith("acc:")]
        prefixes = [f"layers.{layer}." for layer in block.layers] or [""]
        for prefix in prefixes:
            for name in added:
                uses.setdefault(prefix + name.removeprefix("acc:"), []).append((block, block.values[name]))
    for parameter, found in uses.items():
        for block, value in found:
            suffix = f"#{block.name}" if len(found) > 1 else ""
            yield parameter, f"acc:{parameter}{suffix}", value


def _first_span(program: Program) -> Span:
    if program.statements:
        return program.statements[0].span
    return Span(source=next(iter(program.documents), "the strategy"), line=1, column=1)
