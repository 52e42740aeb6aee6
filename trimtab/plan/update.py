"""What happens once a step: gradients are summed over ranks, measured, applied, and parameters put back.

Every gradient is summed over exactly the axes on which it is partial. A REDUCE line that leaves one of them out
would let replicas drift apart; one that names another would count equal gradients several times, or add pieces
that do not belong together. Both are refused at the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from trimtab.plan.block_builder import BlockBuilder, Reasoner
from trimtab.plan.bound import Bound
from trimtab.plan.forward import COMPUTED
from trimtab.plan.physical import HEAD, Pipeline, Update
from trimtab.plan.placements import PARTIAL, REPLICATED, VARYING, Placement, PlacementKind, Placements
from trimtab.plan.program import Because, Block, Operator, OperatorKind, Parameter, Transfer
from trimtab.plan.reductions import SUM_OF_GRADIENTS, apply_reductions
from trimtab.plan.tables import Table
from trimtab.plan.training import Training
from trimtab.plan.transitions import Step
from trimtab.spec import Place, Problem, Program, StrategyError
from trimtab.spec.language import ReduceStatement


def derive_update(
    program: Program,
    training: Training,
    bound: Bound,
    parameters: Mapping[str, Parameter],
    blocks: Sequence[Block],
    pipeline: Pipeline,
) -> Update:
    """The operators after the last microbatch.

    Raises: StrategyError for a sum that is missing or would count twice, at the line.
    """
    gradients = {
        name: _gradient_layouts(parameter, blocks, prefix="grad:param:")
        for name, parameter in parameters.items()
    }
    problems = [*_check_sums(program, bound, gradients), *_check_averages(bound, gradients)]
    if problems:
        raise StrategyError(problems, program.documents)
    return _Updater(training, bound, parameters, blocks, pipeline).derive()


def _gradient_layouts(parameter: Parameter, blocks: Sequence[Block], prefix: str) -> list[Placements]:
    """How the gradient lies when a block gives it: one for each block that uses the parameter."""
    found = []
    for block in blocks:
        is_own = parameter.layer in block.layers if parameter.layer is not None else not block.layers
        relative = parameter.name
        if block.layers:
            relative = relative.removeprefix(f"layers.{parameter.layer}.")
        value = block.values.get(f"{prefix}{relative}") if is_own else None
        if value is not None:
            found.append(value.placements)
    return found


def _check_sums(
    program: Program, bound: Bound, gradients: Mapping[str, Sequence[Placements]]
) -> list[Problem]:
    problems: dict[tuple[object, ...], Problem] = {}
    for name, layouts in gradients.items():
        if name not in bound.reductions:
            continue
        statements = bound.reducing[name]
        summands = {axis for layout in layouts for axis in layout.axes_of(PlacementKind.PARTIAL)}
        averaged = set(bound.averages.get(name, {}))
        named = set(bound.reductions[name])
        for problem in (
            *_missing(bound, name, statements[-1], summands - averaged - named),
            *_twice(bound, name, statements, named - summands, layouts),
            *_averaged(bound, name, statements, named & averaged),
        ):
            problems.setdefault((problem.span, problem.message.partition("'")[0]), problem)
    return list(problems.values())


def _check_averages(bound: Bound, gradients: Mapping[str, Sequence[Placements]]) -> Iterator[Problem]:
    """An axis is averaged over for every parameter whose gradient differs along it, or for none."""
    for axis, line in {
        axis: averaging.line for by_axis in bound.averages.values() for axis, averaging in by_axis.items()
    }.items():
        for name, layouts in gradients.items():
            is_averaged = axis in bound.averages.get(name, {})
            is_partial = any(layout.on(axis) == PARTIAL for layout in layouts)
            if is_averaged == is_partial:
                continue
            if is_partial:
                message = f"'{name}' is not averaged over {axis}, others are: its gradients would be sums of different models"
                hint = f"Add AVERAGE params OVER {axis} EVERY … STEPS for it."
            else:
                message = f"'{name}' does not differ over {axis}: there is nothing to average"
                hint = f"Split batch over {axis}, or leave the row out with WHERE."
            yield Problem(span=line, message=message, hint=hint)
            break


def _missing(bound: Bound, name: str, statement: ReduceStatement, axes: set[str]) -> Iterator[Problem]:
    required = [axis for axis, _ in bound.mesh.axes if axis in axes and _is_data_axis(bound, axis)]
    if not required:
        return
    written = ", ".join(axis.text for axis in statement.axes)
    cut = bound.batch_axes.get(required[0]) or bound.attention.get(required[0])
    others = (Place(span=cut.line, note="its data is split here"),) if cut and cut.line else ()
    yield Problem(
        span=statement.span,
        message=f"gradients of '{name}' stay partial over {', '.join(required)}: this line sums them over {written} only",
        hint=f"Write REDUCE grads OVER {', '.join(dict.fromkeys([*(a.text for a in statement.axes), *required]))}, or a "
        "second REDUCE for the other axis.",
        others=others,
    )


def _is_data_axis(bound: Bound, axis: str) -> bool:
    """Whether a line splits samples or the whole sequence over it; other sums follow from the layout by themselves."""
    return axis in bound.batch_axes or axis in bound.attention


def _twice(
    bound: Bound,
    name: str,
    statements: Sequence[ReduceStatement],
    axes: set[str],
    layouts: Sequence[Placements],
) -> Iterator[Problem]:
    for axis in axes:
        statement = next(
            found for found in reversed(statements) if axis in {named.text for named in found.axes}
        )
        span = next(named.span for named in statement.axes if named.text == axis)
        placement = layouts[0].on(axis)
        if placement.kind is PlacementKind.SPLIT:
            what = f"are pieces, split along {placement.dim} over '{axis}': a sum would mix different ones"
        else:
            what = f"are equal over '{axis}' already: a sum would count them {bound.mesh.size(axis)} times"
        summed_over = [
            found
            for found, _ in bound.mesh.axes
            if any(layout.on(found).kind is PlacementKind.PARTIAL for layout in layouts)
        ]
        yield Problem(
            span=span,
            message=f"gradients of '{name}' {what}",
            hint=f"They are partial over {', '.join(summed_over) or 'no axis'}.  Leave {axis} out, or exclude the row with WHERE.",
        )


def _averaged(
    bound: Bound, name: str, statements: Sequence[ReduceStatement], axes: set[str]
) -> Iterator[Problem]:
    for axis in axes:
        line = bound.averages[name][axis].line
        yield Problem(
            span=statements[-1].span,
            message=f"'{name}' is averaged over {axis}, and its gradients would be summed over it in every step too",
            hint="Keep one of the two.",
            others=(Place(span=line, note="it is averaged here"),),
        )


class _Updater:
    def __init__(
        self,
        training: Training,
        bound: Bound,
        parameters: Mapping[str, Parameter],
        blocks: Sequence[Block],
        pipeline: Pipeline,
    ) -> None:
        self._training = training
        self._bound = bound
        self._parameters = parameters
        self._blocks = blocks
        self._pipeline = pipeline
        self._builder = BlockBuilder("fp32")
        differing = {
            axis
            for by_axis in bound.reductions.values()
            for axis, by_groups in by_axis.items()
            if len(by_groups) > 1
        }
        names = [axis for axis, _ in bound.mesh.axes]
        self._axes_of_sums = sorted(names, key=lambda axis: axis not in differing)
        self._results: dict[str, str] = {}
        self._averaged = {axis for by_axis in bound.averages.values() for axis in by_axis}

    def derive(self) -> Update:
        builder = self._builder
        self._count_tokens()
        summed = {name: self._summed(parameter) for name, parameter in self._parameters.items()}
        if self._training.clips:
            self._norm(summed)
        for name, gradient in summed.items():
            self._apply(self._parameters[name], gradient)
        return Update(values=builder.values, operators=tuple(builder.operators), results=self._results)

    def _count_tokens(self) -> None:
        """The denominator and the loss, over all axes that cut data."""
        head = next(block for block in self._blocks if block.name == HEAD)
        counted = head.values["loss"].placements
        for axis in self._averaged:
            counted = counted.put(axis, VARYING)  # Whoever trains apart counts apart.
        for name in ("num_tokens", "loss"):
            self._builder.value(name, (), (), counted)
            whole = _only(counted, VARYING)
            self._builder.laid_out(name, whole, partial(_because_counted, name))

    def _summed(self, parameter: Parameter) -> str:
        """The gradient as the optimizer wants it."""
        builder = self._builder
        uses = [
            (block.name, placements)
            for block in self._blocks
            for placements in _gradient_layouts(parameter, [block], prefix="acc:")
        ]
        is_apart = len(parameter.stages) > 1 and self._pipeline.axis is not None
        names = []
        for block, placements in uses:
            name = f"acc:{parameter.name}" + (f"#{block}" if len(uses) > 1 else "")
            if is_apart and self._pipeline.axis is not None:
                placements = placements.put(self._pipeline.axis, PARTIAL)  # Each stage has its own use.
            dtype = parameter.dtypes[Table.GRADS.value]
            placements = self._in_order_of_sums(placements)
            names.append(builder.value(name, parameter.dims, parameter.shape, placements, dtype))
        if len(names) > 1 and uses[0][1].is_same(uses[1][1]):
            # Both uses of a share first, then shares: the order that the bits are defined by.
            names = [self._tied(parameter, names)]
            if is_apart:
                names, is_apart = [self._over_stages(parameter, names[0])], False
        names = [self._over_data(parameter, name) for name in names]
        if len(names) > 1:
            names = [self._tied(parameter, names)]
        if is_apart:
            names = [self._over_stages(parameter, names[0])]
        # What is averaged instead of summed differs on purpose from here on.
        target = parameter.stored[Table.STATES.value]
        name = names[0]
        for axis in self._averaged:
            name = self._set_apart(name, axis, parameter.name)
        return builder.laid_out(name, target, _because_states(parameter))

    def _in_order_of_sums(self, placements: Placements) -> Placements:
        """Sums last and in one order, so that all gradients are summed over one axis before another.

        Mesh order, but axes first whose groups sum differently: what they make differs from group to group, and a sum
        after it over another axis gives all of them the same.
        """
        for axis in self._axes_of_sums:
            if placements.on(axis) == PARTIAL:
                placements = placements.put(axis, REPLICATED).put(axis, PARTIAL)
        return placements

    def _set_apart(self, name: str, axis: str, parameter: str) -> str:
        """The gradient of a parameter that is averaged over an axis: no summand of anything there."""
        placements = self._builder.values[name].placements
        if placements.on(axis) != PARTIAL:
            return name
        own = self._builder.like(f"own {axis}:{parameter}", name, placements.put(axis, VARYING))
        self._builder.add(OperatorKind.SET_APART, [name], [own], COMPUTED)
        return own

    def _over_data(self, parameter: Parameter, name: str) -> str:
        """Summed over every axis on which it is partial, but those that are averaged instead."""
        builder = self._builder
        placements = builder.values[name].placements
        averaged = self._bound.averages.get(parameter.name, {})
        target = placements
        for axis in placements.axes_of(PlacementKind.PARTIAL):
            if axis not in averaged and axis != self._pipeline.axis:
                target = target.put(axis, Placements().on(axis))
        start = len(builder.operators)
        summed = builder.laid_out(name, target, self._why)
        builder.operators[start:] = apply_reductions(
            builder.operators[start:], parameter, self._bound, builder
        )
        return summed

    def _why(self, step: Step) -> Because:
        return Because(reason=SUM_OF_GRADIENTS, line=self._bound.data_line(step.axes[0]))

    def _tied(self, parameter: Parameter, names: Sequence[str]) -> str:
        """Both uses of a tied matrix, added."""
        builder = self._builder
        total = builder.like(f"tied:{parameter.name}", names[0], builder.values[names[0]].placements)
        builder.add(OperatorKind.SUM, names, [total], Because(reason="tied weights"))
        return total

    def _over_stages(self, parameter: Parameter, total: str) -> str:
        """Summed over the two stages that use a tied matrix."""
        builder, axis = self._builder, self._pipeline.axis
        assert axis is not None, "stages lie on an axis"
        placements = builder.values[total].placements.put(axis, REPLICATED)
        summed = builder.like(f"both:{parameter.name}", total, placements)
        transfer = Transfer(axes=(axis,), wire=parameter.dtypes[Table.GRADS.value], stages=parameter.stages)
        builder.add(
            OperatorKind.ALL_REDUCE,
            [total],
            [summed],
            Because(reason="tied weights on two stages", line=self._pipeline.line),
            transfer=transfer,
        )
        return summed

    def _norm(self, summed: Mapping[str, str]) -> None:
        """The norm over all ranks, each logical element counted once."""
        builder = self._builder
        everywhere = Placements(
            tuple((axis, VARYING if axis in self._averaged else PARTIAL) for axis, _ in self._bound.mesh.axes)
        )
        builder.value("norm_square", (), (), everywhere)
        builder.operators.append(
            Operator(
                kind=OperatorKind.NORM_SQUARE,
                inputs=tuple(summed.values()),
                outputs=("norm_square",),
                because=COMPUTED,
            )
        )
        whole = _only(everywhere, VARYING)
        builder.laid_out("norm_square", whole, lambda _: Because(reason="gradient norm"))

    def _apply(self, parameter: Parameter, gradient: str) -> None:
        builder, name = self._builder, parameter.name
        kept, applied = parameter.stored[Table.PARAMS.value], parameter.stored[Table.STATES.value]
        old = builder.value(
            f"param:{name}", parameter.dims, parameter.shape, kept, parameter.dtypes[Table.PARAMS.value]
        )
        piece = builder.laid_out(old, applied, _because_states(parameter))
        new = builder.like(f"new:{name}", old, applied)
        builder.add(OperatorKind.UPDATE, [gradient, piece], [new], COMPUTED, parameters=[name])
        done = builder.laid_out(new, kept, _because_states(parameter))
        averages = self._bound.averages.get(name, {})
        for axis, averaging in (
            (axis, averages[axis]) for axis, _ in self._bound.mesh.axes if axis in averages
        ):
            averaged = builder.like(f"average {axis}:{name}", old, kept)
            builder.operators.append(
                Operator(
                    kind=OperatorKind.AVERAGE,
                    inputs=(done,),
                    outputs=(averaged,),
                    parameters=(name,),
                    because=Because(reason=f"averaged every {averaging.every} steps", line=averaging.line),
                    transfer=Transfer(
                        axes=(axis,),
                        wire=averaging.wire or builder.values[done].dtype,
                        compress=averaging.compress,
                        compress_argument=averaging.compress_argument,
                        is_sealed=self._bound.is_sealed(Table.PARAMS, name, [axis]),
                    ),
                    every=averaging.every,
                )
            )
            done = averaged
        self._results[name] = done


def _because_counted(name: str, _: Step) -> Because:
    return Because(reason=_SCALARS[name])


_SCALARS = {"num_tokens": "one denominator for all tokens", "loss": "loss of the whole batch"}


def _because_states(parameter: Parameter) -> Reasoner:
    def why(step: Step) -> Because:
        line = parameter.lines.get(f"store states {step.axes[0]}")
        return Because(reason="states stored in pieces", line=line)

    return why


def _only(placements: Placements, wanted: Placement) -> Placements:
    return Placements(tuple(item for item in placements if item[1] == wanted))
