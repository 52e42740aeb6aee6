"""What is refused, or said, before a run of ranks that hold pieces is started."""

from trimtab.app.compiling import compiled
from trimtab.app.errors import JobReadError
from trimtab.app.output import say
from trimtab.plan import network_of, trains_as_replicas
from trimtab.plan.explanation import obstacle_to_same_bits
from trimtab.plan.physical import Plan
from trimtab.spec import Compile, LoadedJob, Problem, SpikeAnswer, StrategyError
from trimtab.spec.language import (
    unsupported_beside_class,
    unsupported_beside_script,
    unsupported_by_runtime,
)
from trimtab.terms import OnLoss

_SHARES, _ON_LOSS = "fault_tolerance.shares", "fault_tolerance.on_loss"
_PROBE, _ON_SPIKE = "fault_tolerance.detection.probe", "train.on_spike.answer"


def refuse_what_cannot_run(loaded: LoadedJob, *, is_resumed: bool = False) -> None:
    """Refuse what can be explained and not be run.

    Args:
        loaded: Read and checked.
        is_resumed: Whether the job is that of a run that was begun: its number of shares was decided then.

    Raises: StrategyError with every statement that the runtime has not yet, that cannot be given to a script, or that
        the formulas cannot mean;
        JobReadError at the line of a key that asks for more than the layout can give.
    """
    problems = _unsupported(loaded)
    if problems:
        raise StrategyError(problems, loaded.program.documents)
    if loaded.job.script is None:
        _refuse_compile(loaded)
    if loaded.job.script is not None or trains_as_replicas(loaded.job, loaded.program):
        return
    if loaded.job.model.module is None:
        plan = compiled(loaded)
        _refuse_shares(loaded, plan, is_resumed=is_resumed)
    _refuse_on_loss(loaded)
    _refuse_looks(loaded)


def _refuse_looks(loaded: LoadedJob) -> None:
    """Nobody compares what no two ranks hold, and only replicas judge spikes before they are applied."""
    tolerance, answer = loaded.job.fault_tolerance, loaded.job.train.on_spike.answer
    if tolerance.detection.probe:
        raise JobReadError(
            f"{loaded.origins[_PROBE]}  detection.probe computes shares again on another rank; where ranks hold pieces this "
            "release has no other rank that could\n  Set probe: 0."
        )
    if answer in (SpikeAnswer.SKIP, SpikeAnswer.ROLLBACK):
        raise JobReadError(
            f"{loaded.origins[_ON_SPIKE]}  on_spike {answer} needs ranks that hold the same state; where they hold pieces this "
            "release does not look for spikes\n  Use answer: off."
        )


def _unsupported(loaded: LoadedJob) -> list[Problem]:
    if loaded.job.script is not None:
        return unsupported_beside_script(loaded.program)
    if loaded.job.model.module is not None:
        return unsupported_beside_class(loaded.program)
    return unsupported_by_runtime(loaded.program)


def _refuse_compile(loaded: LoadedJob) -> None:
    """Blocks are compiled where a module computes them, and where nothing in them is drawn by key."""
    job, network = loaded.job, network_of(loaded.job)
    if job.train.compile is Compile.OFF or network is None:
        return
    origin = loaded.origins["train.compile"]
    if not trains_as_replicas(job, loaded.program):
        raise JobReadError(
            f"{origin}  train.compile is blocks, and this run is carried out by its plan, operator by operator: there are "
            "no blocks to compile\n  Use compile: off, or formulas that split the batch alone."
        )
    if network.dropout:
        raise JobReadError(
            f"{origin}  train.compile is blocks, and dropout is {network.dropout:g}: its masks are drawn by the run's "
            "keys, which torch's compiler does not know\n  Use compile: off, or model.dropout: 0."
        )


def _refuse_on_loss(loaded: LoadedJob) -> None:
    """A plan redoes the step, or goes back as far as it must; of a class in pieces only checkpoints have all."""
    asked = loaded.job.fault_tolerance.on_loss
    has_plan = loaded.job.model.module is None
    possible = (OnLoss.ROLLBACK, OnLoss.AUTO) + ((OnLoss.REDO, OnLoss.SAME_BATCH) if has_plan else ())
    if asked not in possible:
        raise JobReadError(
            f"{loaded.origins[_ON_LOSS]}  on_loss {asked} needs ranks that hold the same state and differ in their "
            f"samples only; here ranks hold pieces\n  Use one of {', '.join(possible)}."
        )
    if asked is OnLoss.AUTO and not has_plan:
        say(
            "note: ranks hold pieces: when one is lost it is replaced, and all go back to the newest checkpoint"
        )


def _refuse_shares(loaded: LoadedJob, plan: Plan, *, is_resumed: bool) -> None:
    obstacle = obstacle_to_same_bits(plan)
    if obstacle is None or loaded.job.fault_tolerance.shares == "off":
        return
    if is_resumed or loaded.origins[_SHARES].startswith("auto"):
        say(f"note: {obstacle.reason}: gradients are added in the backend's order, not share by share")
        return
    lines = [f"{loaded.origins[_SHARES]}  shares promise the same bits in any layout, and {obstacle.reason}"]
    if obstacle.line is not None:
        lines.append(f"{obstacle.line.source}:{obstacle.line.line}  this is the line that rules them out")
    lines.append("  Use shares: off, or leave shares to auto.")
    raise JobReadError("\n".join(lines))
