"""The verb ``verify``: is the parallel run the same computation as one device?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.app.compiling import cluster_of, compiled, training_of
from trimtab.app.deciding import read_decided_job
from trimtab.app.job_reading import refuse_script, say_warnings
from trimtab.app.output import print_document, say
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.shrinking import shrunk_mesh, shrunk_program, shrunk_training
from trimtab.spec import LoadedJob
from trimtab.terms import ExitCode, InputError

if TYPE_CHECKING:
    from trimtab.runtime.lowering import Divergence, Verdict

MOST_RANKS = 16
"""Processes that ``verify`` starts on one machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line says.

    Args:
        steps: To take.
        is_quick: Whether network and mesh are shrunk.
        is_json: Whether the answer is one JSON document.
    """

    steps: int
    is_quick: bool
    is_json: bool


def verify(path: str, overrides: Sequence[str], asked: Asked) -> int:
    """Run a job's plan and one device on the same batch, and say the first tensor that differs.

    Returns: The exit code, 1 if one does.
    Raises: InputError for a mesh of more ranks than one machine shall run.
    """
    loaded = read_decided_job(path, overrides)
    refuse_script(loaded, verb="verify")
    say_warnings(loaded)
    plan = quick_plan(loaded) if asked.is_quick else compiled(loaded)
    num_ranks = plan.mesh.num_devices
    if num_ranks > MOST_RANKS:
        raise InputError(
            f"{path}: the mesh has {num_ranks} ranks, and verify starts at most {MOST_RANKS} processes on this machine; "
            "use --quick, which keeps the structure, or a smaller mesh"
        )
    # Only here, so that a job with a mistake is refused before torch is loaded.
    from trimtab.runtime.lowering import Crew, question_of
    from trimtab.runtime.lowering import verify as verify_plan

    say(f"verify: {num_ranks} ranks against one device, {asked.steps} steps of {plan.network.name}")
    with Crew(num_ranks) as crew:
        verdict = verify_plan(question_of(loaded.job, plan, steps=asked.steps), crew)
    if asked.is_json:
        print_document(document_of(plan, verdict))
    else:
        print("\n".join(lines_of(plan, verdict)), flush=True)
    return ExitCode.DONE if verdict.divergence is None else ExitCode.RUN_FAILED


def quick_plan(loaded: LoadedJob) -> Plan:
    """The plan of a job made small.

    The depth is kept where formulas tell layers apart; otherwise two layers a stage are enough.
    """
    mesh = shrunk_mesh(loaded.layout.mesh, MOST_RANKS)
    program = shrunk_program(loaded.program, mesh)
    training, cluster = training_of(loaded), cluster_of(loaded)
    replicas = _num_replicas(loaded, dict(mesh.axes))

    def compile_with(layers: int) -> Plan:
        small = shrunk_training(training, mesh, replicas=replicas, layers=layers)
        return compile_program(program, small, mesh=mesh, cluster=cluster)

    plan = compile_with(training.network.layers)
    num_stages = plan.pipeline.num_stages
    if len(plan.blocks) == _BLOCKS_IF_ALIKE and plan.network.layers > 2 * num_stages:
        plan = compile_with(2 * num_stages)
    return plan


_BLOCKS_IF_ALIKE = 3
"""Embedding, one class of layers, head."""


def _num_replicas(loaded: LoadedJob, sizes: dict[str, int]) -> int:
    """Ranks along the axes that split the batch, on the small mesh."""
    replicas = 1
    for axis in compiled(loaded).bound.batch_axes:
        replicas *= sizes[axis]
    return replicas


def lines_of(plan: Plan, verdict: "Verdict") -> Iterator[str]:
    """The answer for people."""
    found = verdict.divergence
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.axes)
    if found is None:
        yield f"equal: the {plan.mesh.num_devices} ranks of the mesh {mesh} compute what one device computes"
        yield (
            f"  {verdict.num_tensors} tensors compared over {verdict.steps} steps: activations, gradients, norm, loss, "
            "weights"
        )
        yield f"  largest difference {verdict.largest_error:.1e} of a tensor's size; 1e-5 is allowed"
    else:
        yield from _difference(found)
        yield f"  {verdict.num_diverged} of {verdict.num_tensors} tensors differ; the first in order is told"
    for step, (loss, norm) in enumerate(zip(verdict.losses, verdict.norms, strict=True)):
        yield f"  step {step + 1}: loss {_number(loss)}, gradient norm {_number(norm)}"
    yield f"  {verdict.sent_bytes} bytes sent, {_AS_PLANNED[not verdict.unplanned]}"
    yield from (f"    {difference}" for difference in verdict.unplanned)
    if verdict.is_checked_by_decoder:
        yield "  the one device is itself compared with the decoder, which knows no plan"
    if verdict.set_aside:
        yield f"  compared in fp32; set aside: {', '.join(verdict.set_aside)}"


_AS_PLANNED = {True: "as the plan says", False: "and the plan says otherwise:"}


def _difference(found: "Divergence") -> Iterator[str]:
    where = f"step {found.step + 1}"
    if found.microbatch is not None:
        where += f", microbatch {found.microbatch + 1}"
    yield f"different: {found.tensor}, {where}"
    if found.ratio is not None and found.is_of_movement:
        yield f"  it moves {found.ratio:.6g} times as far in the step as on one device"
    elif found.ratio is not None:
        yield f"  it is {found.ratio:.6g} times what one device has"
    elif found.ratios is not None:
        least, most = found.ratios
        yield f"  it is {least:.6g} to {most:.6g} times what one device has, on each rank another number"
    else:
        yield f"  it differs by {found.error:.1e} of its size"
    if found.ranks:
        yield f"  on ranks {', '.join(map(str, found.ranks))}"
    if found.axis is not None:
        yield f"  axis {found.axis}"
    if found.cause:
        yield f"  {found.cause}"
    if found.line is not None:
        yield f"  {found.line.source}:{found.line.line}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def document_of(plan: Plan, verdict: "Verdict") -> dict[str, Any]:
    """The answer for programs."""
    found = verdict.divergence
    return {
        "is_equal": found is None,
        "ranks": plan.mesh.num_devices,
        "mesh": dict(plan.mesh.axes),
        "network": plan.network.name,
        "steps": verdict.steps,
        "tensors": verdict.num_tensors,
        "diverged": verdict.num_diverged,
        "largest_error": verdict.largest_error,
        "losses": list(verdict.losses),
        "norms": list(verdict.norms),
        "sent_bytes": verdict.sent_bytes,
        "unplanned": list(verdict.unplanned),
        "set_aside": list(verdict.set_aside),
        "is_checked_by_decoder": verdict.is_checked_by_decoder,
        "first": None if found is None else _divergence_document(found),
    }


def _divergence_document(found: "Divergence") -> dict[str, Any]:
    return {
        "tensor": found.tensor,
        "step": found.step,
        "microbatch": found.microbatch,
        "error": found.error,
        "ratio": found.ratio,
        "ratios": None if found.ratios is None else list(found.ratios),
        "is_of_movement": found.is_of_movement,
        "axis": found.axis,
        "ranks": list(found.ranks),
        "cause": found.cause,
        "line": None if found.line is None else f"{found.line.source}:{found.line.line}",
    }
