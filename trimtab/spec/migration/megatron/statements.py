"""Formulas as flags of Megatron-LM."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.language import (
    AverageStatement,
    Column,
    Comparison,
    ComputeStatement,
    InList,
    KeepStatement,
    Literal,
    MeshStatement,
    Name,
    OffloadStatement,
    PlaceStatement,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    Statement,
    StoreStatement,
    compile_predicate,
    print_statement,
)
from trimtab.spec.migration.conditions import where
from trimtab.spec.migration.megatron.recomputed import recompute_flags
from trimtab.spec.migration.megatron.storage import OFFLOADED_KINDS
from trimtab.spec.migration.megatron.written_stages import layers_of_stages, layout_string
from trimtab.spec.migration.roles import Roles, find_roles, has_levels, role_of
from trimtab.spec.migration.sheets import Sheet

_SEQUENCE_FLAGS = {"ring": "p2p", "ulysses": "a2a", "allgather": "allgather"}
_BYTES_OF_FP32 = 4
_NO_ON = "a flag holds for all devices alike"
_NO_WHERE = "a flag holds for all tensors alike"


def write_statements(sheet: Sheet, loaded: LoadedJob, layers: int) -> None:
    """Every formula with its flags, or why there is none.

    Args:
        sheet: Gets the flags and the fates.
        loaded: The job.
        layers: Of its network; 0 if nobody knows.
    """
    roles = find_roles(loaded)
    stages = layers_of_stages(loaded, roles, layers)
    is_placed = any(isinstance(found, PlaceStatement) for found in loaded.program.statements)
    layout = layout_string(stages) if stages and is_placed else None
    writer = _Writer(sheet=sheet, roles=roles, layers=layers, stages=stages, layout=layout)
    writer.degrees()
    for statement in loaded.program.statements:
        writer.statement(statement, has_levels=has_levels(loaded))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Writer:
    """Writes statements of one job, one after the other."""

    sheet: Sheet
    roles: Roles
    layers: int
    stages: tuple[int, ...]
    layout: str | None

    def degrees(self) -> None:
        """The degrees, whatever statement they come from; those of one are left to their default."""
        roles = self.roles
        sizes = {
            "--tensor-model-parallel-size": roles.size(roles.tensor),
            "--pipeline-model-parallel-size": roles.size(roles.stages),
            "--context-parallel-size": roles.size(roles.context),
            "--expert-model-parallel-size": roles.size(roles.experts),
        }
        self.sheet.flags |= dict.fromkeys(f"{flag} {size}" for flag, size in sizes.items() if size > 1)
        shared = roles.size([axis for axis in roles.experts if axis in roles.tensor])
        if shared > 1:
            self.sheet.flags[
                f"--expert-tensor-parallel-size {sizes['--tensor-model-parallel-size'] // shared}"
            ] = None
        for axis in roles.unused:
            self.sheet.warnings.append(
                f"nothing that Megatron-LM divides lies over {axis}: its devices become data parallel"
            )

    def statement(self, statement: Statement, *, has_levels: bool) -> None:
        text = print_statement(statement)
        match statement:
            case MeshStatement():
                self._mesh(text, has_levels=has_levels)
            case AverageStatement():
                self.sheet.refuse(text, "", "replicas there take every step together")
            case SealStatement():
                self.sheet.refuse(text, "", "nothing is encrypted on the wire there")
            case PlaceStatement():
                self._place(text)
            case KeepStatement():
                self._keep(text, statement)
            case ComputeStatement():
                self._compute(text, statement)
            case _ if statement.on is not None:
                self.sheet.refuse(text, "", _NO_ON)
            case SplitStatement():
                self._split(text, statement)
            case StoreStatement():
                self._store(text, statement)
            case ReduceStatement():
                self._reduce(text, statement)
            case RecomputeStatement():
                self._recompute(text, statement)
            case OffloadStatement():
                self._offload(text, statement)

    def _mesh(self, text: str, *, has_levels: bool) -> None:
        flags = [flag for flag in self.sheet.flags if "parallel-size" in flag]
        is_as_there, has_stages_inside = self.roles.has_order(), self.roles.has_order(stages_inside=True)
        if not is_as_there and has_stages_inside:
            flags.append("--use-tp-pp-dp-mapping")
        if not is_as_there and not has_stages_inside:
            reason = "ranks are numbered with tensor fastest, then context, data and stages: neighbours are other devices"
            self._change_or_drop(text, flags, reason)
        elif has_levels:
            self._change_or_drop(text, flags, "nothing there demands that an axis stays inside a level")
        elif flags:
            self.sheet.carry(text, "", *flags)
        else:
            self.sheet.drop(text, "", "data parallelism takes the devices that are left, as here")

    def _change_or_drop(self, text: str, flags: Sequence[str], reason: str) -> None:
        if flags:
            self.sheet.change(text, "", *flags, reason=reason)
        else:
            self.sheet.drop(text, "", reason)

    def _split(self, text: str, statement: SplitStatement) -> None:
        roles = self.roles
        match role_of(statement):
            case "batch":
                self.sheet.drop(text, "", "the batch is divided over the devices that are left, as here")
            case "tensor":
                self._tensor(text)
            case "context":
                way = statement.using.name.text if statement.using else "ring"
                size = f"--context-parallel-size {roles.size(roles.context)}"
                self.sheet.carry(text, "", size, f"--cp-comm-type {_SEQUENCE_FLAGS[way]}")
            case "sequence" if statement.where == where("kind IN ('norm', 'residual')"):
                self.sheet.carry(text, "", "--sequence-parallel")
            case "experts":
                self.sheet.carry(text, "", f"--expert-model-parallel-size {roles.size(roles.experts)}")
            case "stages":
                self._stages(text, statement)
            case _:
                self.sheet.refuse(
                    text, "", _NO_WHERE if statement.where else "no flag divides such a tensor along this dim"
                )

    def _tensor(self, text: str) -> None:
        size = f"--tensor-model-parallel-size {self.roles.size(self.roles.tensor)}"
        if all(dim in text.partition(" OVER ")[0] for dim in ("heads", "mlp", "vocab")):
            self.sheet.carry(text, "", size)
        else:
            self.sheet.change(text, "", size, reason="heads, mlp and vocab are divided together there")

    def _stages(self, text: str, statement: SplitStatement) -> None:
        size = f"--pipeline-model-parallel-size {self.roles.size(self.roles.stages)}"
        schedule = statement.using.name.text if statement.using else "1f1b"
        chunks = (
            int(statement.using.arguments[0].value) if statement.using and statement.using.arguments else 1
        )
        flags = [size]
        if chunks > 1 and self.layout is None:
            flags.append(f"--num-virtual-stages-per-pipeline-rank {chunks}")
        if schedule not in ("1f1b", "interleaved_1f1b"):
            self.sheet.change(
                text, "", *flags, reason=f"schedules there are 1f1b and interleaved 1f1b, not {schedule}"
            )
        elif statement.balance is not None and self.layout is None:
            self.sheet.change(
                text, "", *flags, reason="stages there hold equally many layers, or what a layout names"
            )
        else:
            self.sheet.carry(text, "", *flags)

    def _place(self, text: str) -> None:
        if self.layout is None:
            self.sheet.refuse(text, "", "how many layers each stage holds cannot be told without the network")
        else:
            self.sheet.carry(text, "", f"--pipeline-model-parallel-layout '{self.layout}'")

    def _store(self, text: str, statement: StoreStatement) -> None:
        tables = {table.text for table in statement.tables}
        axes = {axis.text for axis in statement.axes}
        outside = [axis for axis in self.roles.batch if axis not in axes and self.roles.sizes[axis] > 1]
        copies = [f"--num-distributed-optimizer-instances {self.roles.size(outside)}"] if outside else []
        strategy = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}[len(tables)]
        if statement.where is not None:
            self.sheet.refuse(text, "", _NO_WHERE)
        elif not axes <= set(self.roles.sums) or outside != list(self.roles.batch[: len(outside)]):
            self.sheet.refuse(
                text, "", "state is divided over the whole data axis there, or over its inner part"
            )
        elif tables == {"states"} and any("sharding-strategy" in flag for flag in self.sheet.flags):
            self.sheet.carry(text, "", "--outer-dp-sharding-strategy optim")
        elif tables == {"states"}:
            self.sheet.carry(text, "", "--use-distributed-optimizer", *copies)
        elif "states" in tables and "grads" in tables:
            fsdp = (
                "--use-megatron-fsdp",
                f"--data-parallel-sharding-strategy {strategy}",
                "--ckpt-format fsdp_dtensor",
            )
            self.sheet.carry(text, "", "--use-distributed-optimizer", *fsdp, *copies)
        else:
            self.sheet.refuse(text, "", "what is divided there is states, then grads too, then params too")

    def _reduce(self, text: str, statement: ReduceStatement) -> None:
        flags, lost = list(_reduction_flags(statement)), list(_lost_of_reduction(statement))
        if lost:
            self._change_or_refuse(text, flags, "; ".join(lost))
        elif flags:
            self.sheet.carry(text, "", *flags)
        else:
            self.sheet.drop(text, "", "gradients are summed over the data and context axes, as here")

    def _change_or_refuse(self, text: str, flags: Sequence[str], reason: str) -> None:
        if flags:
            self.sheet.change(text, "", *flags, reason=reason)
        else:
            self.sheet.refuse(text, "", reason)

    def _recompute(self, text: str, statement: RecomputeStatement) -> None:
        flags = recompute_flags(statement, self.stages)
        if flags:
            self.sheet.carry(text, "", *flags)
        else:
            self.sheet.refuse(
                text, "", "whole layers by number, or certain modules of all layers, are computed again there"
            )

    def _offload(self, text: str, statement: OffloadStatement) -> None:
        tables = {table.text for table in statement.tables}
        count = next((n for n in range(1, self.layers + 1) if statement.where == where(f"layer < {n}")), 0)
        if tables == {"states"} and statement.where is None:
            self.sheet.carry(text, "", "--optimizer-cpu-offload", "--use-precision-aware-optimizer")
        elif tables == {"activations"} and count:
            self.sheet.carry(text, "", f"--cpu-offloading-num-layers {count}")
        elif tables == {"activations"} and (modules := _offloaded_modules(statement)):
            flags = ("--fine-grained-activation-offloading", f"--offload-modules {' '.join(modules)}")
            self.sheet.carry(text, "", *flags)
        else:
            self.sheet.refuse(
                text,
                "",
                "all states, the activations of the first layers, or those of kinds, go to the host there",
            )

    def _keep(self, text: str, statement: KeepStatement) -> None:
        tables, kept = {table.text for table in statement.tables}, statement.dtype.text
        if statement.where is not None:
            self.sheet.refuse(text, "", _NO_WHERE)
        elif kept == "fp32":
            self.sheet.drop(text, "", "master weights, gradients and moments are fp32 there too")
        elif tables <= {"states", "grads"} and kept in ("bf16", "fp16"):
            moments = (f"--exp-avg-dtype {kept}", f"--exp-avg-sq-dtype {kept}") if "states" in tables else ()
            gradients = (f"--main-grads-dtype {kept}",) if "grads" in tables else ()
            self.sheet.carry(text, "", "--use-precision-aware-optimizer", *moments, *gradients)
        else:
            self.sheet.refuse(text, "", "moments and gradients can be bf16 or fp16 there, nothing else")

    def _compute(self, text: str, statement: ComputeStatement) -> None:
        ends = _ends_in_bf16(statement, self.layers)
        if statement.where is None and statement.dtype.text == "fp8":
            self.sheet.change(
                text, "", "--fp8-format hybrid", reason="one of the two formats of fp8 must be named there"
            )
        elif statement.where is None and statement.dtype.text in ("bf16", "fp16"):
            self.sheet.carry(text, "", f"--{statement.dtype.text}")
        elif ends:
            self.sheet.carry(text, "", *ends)
        else:
            self.sheet.refuse(
                text, "", "all layers compute in one type there, but for the first and last beside fp8"
            )


def _offloaded_modules(statement: OffloadStatement) -> list[str]:
    """The modules whose kinds of activations a statement names; none where Megatron-LM has no such module."""
    match statement.where:
        case InList(operand=Column(name=Name(text="kind")), items=items, is_negated=False):
            kinds = {str(item.value) for item in items}
        case Comparison(operator="=", left=Column(name=Name(text="kind")), right=Literal(value=str(kind))):
            kinds = {kind}
        case _:
            return []
    if not kinds <= set(OFFLOADED_KINDS.values()):
        return []
    return [module for module, kind in OFFLOADED_KINDS.items() if kind in kinds]


def _reduction_flags(statement: ReduceStatement) -> Iterator[str]:
    if statement.wire is not None and statement.wire.text == "bf16":
        yield "--grad-reduce-in-bf16"
    if statement.bucket_bytes is not None:
        yield f"--ddp-bucket-size {max(1, statement.bucket_bytes // _BYTES_OF_FP32)}"


def _lost_of_reduction(statement: ReduceStatement) -> Iterator[str]:
    if statement.where not in (None, where("kind <> 'expert'"), where("kind = 'expert'")):
        yield _NO_WHERE
    if statement.using is not None and statement.using.name.text not in ("native", "default"):
        yield f"sums travel as NCCL has it, not by {statement.using.name.text}"
    if statement.compress is not None and statement.compress.name.text != "none":
        yield "gradients are not compressed there"
    if statement.wire is not None and statement.wire.text not in ("bf16", "fp32"):
        yield "gradients travel in fp32 or bf16 there"


def _ends_in_bf16(statement: ComputeStatement, layers: int) -> tuple[str, ...]:
    """The flags for first and last layers in bf16, where that is what a statement says."""
    if statement.dtype.text != "bf16" or statement.where is None or not layers:
        return ()
    holds = compile_predicate(statement.where)
    chosen = [holds({"layer": layer}.get) is True for layer in range(layers)]
    start = len(list(itertools.takewhile(bool, chosen)))
    end = len(list(itertools.takewhile(bool, reversed(chosen))))
    if start == layers or start + end != sum(chosen):
        return ()
    return (
        "--first-last-layers-bf16",
        f"--num-layers-at-start-in-bf16 {start}",
        f"--num-layers-at-end-in-bf16 {end}",
    )
