"""From a program to a physical plan: bind, lay out, derive, rewrite, verify."""

from dataclasses import replace

from trimtab.catalog import Cluster, ClusterError
from trimtab.plan.binding import bind
from trimtab.plan.blocks import derive_blocks
from trimtab.plan.bound import Bound
from trimtab.plan.devices import devices_of
from trimtab.plan.limits import limit_problems
from trimtab.plan.parameters import lay_out_parameters
from trimtab.plan.physical import Pipeline, Plan, Work
from trimtab.plan.pipelines import refusal_of
from trimtab.plan.rules import RULES
from trimtab.plan.stages import pipeline_of
from trimtab.plan.tables import Row, Table, rows_of
from trimtab.plan.traffic import UncarriedError, traffic_of
from trimtab.plan.training import Training
from trimtab.plan.update import derive_update
from trimtab.plan.verifier import Verifier
from trimtab.spec import Mesh, Problem, Program, StrategyError
from trimtab.spec.language import SplitStatement, num_replicas
from trimtab.terms import Span


def compile_program(program: Program, training: Training, *, mesh: Mesh, cluster: Cluster) -> Plan:
    """The physical plan of a program, rewritten and verified.

    Args:
        program: Its names are known to exist.
        training: What is trained, in which pieces.
        mesh: Resolved; its places are the devices of the run.
        cluster: Where the devices stand.

    Raises: StrategyError with what cannot hold, at the line.
    """
    try:
        devices = devices_of(cluster, mesh.num_devices)
    except ClusterError as error:
        raise StrategyError(
            [Problem(span=_first_span(program), message=str(error))], program.documents
        ) from error
    pipeline = pipeline_of(program, mesh=mesh, network=training.network, sequence=training.sequence)
    rows = _rows(training, pipeline, _microbatch(program, training, mesh))
    bound = bind(program, mesh=mesh, rows=rows, devices=devices)
    problems = list(limit_problems(program, bound))
    if problems:
        raise StrategyError(problems, program.documents)
    work = _work(program, training, bound, pipeline)
    parameters = lay_out_parameters(program, training, bound, pipeline)
    blocks, stream = derive_blocks(program, training, bound, parameters, work)
    plan = Plan(
        network=training.network,
        mesh=mesh,
        work=work,
        pipeline=pipeline,
        parameters=parameters,
        blocks=blocks,
        stream=stream,
        update=derive_update(program, training, bound, parameters, blocks, pipeline),
        bound=bound,
        warnings=bound.warnings,
    )
    plan = _rewritten(plan, program)
    try:
        return replace(plan, traffic=traffic_of(plan))
    except UncarriedError as error:
        span = error.because.line or _first_span(program)
        raise StrategyError([Problem(span=span, message=str(error))], program.documents) from error


def _rewritten(plan: Plan, program: Program) -> Plan:
    """After all rules. What they made is verified; if it is wrong, again after each, for the first that is at fault."""
    found = plan
    try:
        for rule in RULES:
            found = rule(found)
        Verifier(program).verify(found)
    except Exception:  # a rule may stumble over what is wrong before it is looked for
        verifier = Verifier(program)
        verifier.verify(plan)
        for rule in RULES:
            plan = rule(plan)
            verifier.verify(plan)
        raise
    return found


def _microbatch(program: Program, training: Training, mesh: Mesh) -> int:
    """Samples of a microbatch, as far as the program says; what does not divide is refused when the work is cut."""
    split = _layers_statement(program)
    if split is None or split.microbatches is None:
        return training.microbatch
    parts = training.shares or num_replicas(program, mesh.num_devices)
    return max(1, training.batch // parts // split.microbatches)


def _rows(training: Training, pipeline: Pipeline, microbatch: int) -> tuple[Row, ...]:
    rows = rows_of(
        training.network,
        batch=microbatch,
        sequence=training.sequence,
        num_states=training.num_states,
        compute=training.compute,
    )
    last = pipeline.num_stages - 1
    return tuple(replace(row, stage=_stage(row, pipeline, last)) for row in rows)


def _stage(row: Row, pipeline: Pipeline, last: int) -> int | None:
    if row.table is Table.EXPERTS and row.layer is None:
        return None
    if row.layer is not None:
        return pipeline.stage_of_layer[row.layer]
    return 0 if row.kind in ("embedding", "residual") else last


def _work(program: Program, training: Training, bound: Bound, pipeline: Pipeline) -> Work:
    """How the batch is cut.

    Raises: StrategyError with the numbers and the nearest valid ones, if it cannot be.
    """
    replicas = 1
    for axis in bound.batch_axes:
        replicas *= bound.mesh.size(axis)
    parts = training.shares or replicas
    batch, span = training.batch, _batch_span(program, bound)
    problems = []
    if batch % parts or parts < replicas:
        valid = [count for count in _divisors(batch) if count >= replicas]
        nearest = f"Nearest shares: {', '.join(map(str, _around(parts, valid)))}." if valid else ""
        problems.append(
            Problem(
                span=span,
                message=f"a batch of {batch} samples in {parts} shares for {replicas} replicas: every replica needs "
                "a share, and shares must divide the batch",
                hint=nearest or f"Set train.batch to {replicas} or more.",
            )
        )
        raise StrategyError(problems, program.documents)
    samples = batch // parts
    split = _layers_statement(program)
    if split is not None and split.microbatches is not None:
        count = split.microbatches
        if samples % count:
            nearest = ", ".join(map(str, _around(count, _divisors(samples))))
            message = (
                f"{count} microbatches cannot cut the {samples} samples of a {_PART[training.shares is None]} "
                f"(batch {batch}, {parts} of them)"
            )
            problems.append(Problem(span=split.span, message=message, hint=f"Nearest: {nearest}."))
            raise StrategyError(problems, program.documents)
        microbatch = samples // count
    else:
        microbatch = training.microbatch
        if samples % microbatch:
            nearest = ", ".join(map(str, _around(microbatch, _divisors(samples))))
            message = (
                f"microbatches of {microbatch} samples cannot cut the {samples} samples of a "
                f"{_PART[training.shares is None]}"
            )
            problems.append(Problem(span=span, message=message, hint=f"Nearest: {nearest}."))
            raise StrategyError(problems, program.documents)
    work = Work(
        batch=batch,
        sequence=training.sequence,
        replicas=replicas,
        num_parts=parts,
        has_fixed_order=training.shares is not None,
        microbatch=microbatch,
        microbatches_per_part=samples // microbatch,
    )
    _check_schedule(program, pipeline, bound.mesh, work)
    return work


_PART = {False: "share", True: "replica"}
"""What a replica computes as one: a share, or with shares off all that it has."""


def _check_schedule(program: Program, pipeline: Pipeline, mesh: Mesh, work: Work) -> None:
    if pipeline.axis is None or pipeline.line is None:
        return
    refusal = refusal_of(
        pipeline.schedule,
        ranks=mesh.size(pipeline.axis),
        stages_per_rank=pipeline.stages_per_rank,
        microbatches=work.microbatches_per_part,
    )
    if refusal is not None:
        message = (
            f"{refusal} (batch {work.batch}, {work.microbatches_per_part} microbatches of {work.microbatch} samples for "
            f"each {_PART[not work.has_fixed_order]}, {pipeline.num_stages} stages)"
        )
        hint = "Change MICROBATCHES, train.microbatch, or the schedule."
        raise StrategyError([Problem(span=pipeline.line, message=message, hint=hint)], program.documents)


def _first_span(program: Program) -> Span:
    if program.statements:
        return program.statements[0].span
    return Span(source=next(iter(program.documents), "the strategy"), line=1, column=1)


def _batch_span(program: Program, bound: Bound) -> Span:
    """The line that splits the batch, else the first one."""
    lines = [decision.line for decision in bound.batch_axes.values() if decision.line is not None]
    return lines[0] if lines else _first_span(program)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _around(value: int, valid: list[int]) -> list[int]:
    """The valid numbers on both sides of a value."""
    return [
        *[number for number in valid if number < value][-1:],
        *[number for number in valid if number >= value][:1],
    ]


def _layers_statement(program: Program) -> SplitStatement | None:
    for statement in program.statements:
        if isinstance(statement, SplitStatement) and any(dim.text == "layers" for dim in statement.dims):
            return statement
    return None
