"""What a program has decided for every row and property, each with the line that did."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trimtab.plan.devices import Device
from trimtab.plan.tables import Row, Table
from trimtab.spec import Mesh, Problem
from trimtab.spec.language import ReduceStatement
from trimtab.terms import Span

_T = TypeVar("_T")

Name = str
Axis = str


@dataclass(frozen=True, slots=True)
class Decision(Generic[_T]):
    """A value and the statement that set it; no line where the prelude did."""

    value: _T
    line: Span | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """How the gradient of one row is summed over one axis, by one set of groups."""

    route: Decision[str] = Decision("native")
    levels: tuple[str, ...] = ()
    bucket_bytes: Decision[int | None] = Decision(None)
    compress: Decision[str] = Decision("none")
    compress_argument: float | None = None
    wire: Decision[str | None] = Decision(None)
    over: Decision[bool] = Decision(True)

    @property
    def line(self) -> Span | None:
        """The last statement that speaks of it."""
        return self.over.line


@dataclass(frozen=True, kw_only=True, slots=True)
class Averaging:
    """How a parameter is averaged over one axis."""

    every: int
    outer: str
    momentum: float
    wire: str | None
    compress: str
    compress_argument: float | None
    line: Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A program bound to rows and devices.

    Args:
        mesh: Sizes of the axes.
        devices: In order of rank.
        rows: By table and name.
        batch_axes: Over which the batch is split, in cutting order, with the deciding line.
        splits: For params and activations, by table and name: the dim cut on each axis, in cutting order.
        attention: Per axis that splits the sequence of attention: ulysses, allgather, ring.
        stored: By table and name: axes over which the row is stored in pieces; absent where no line says so.
        reductions: By parameter and axis: by signature of ON, the groups and how they sum.
        reducing: By parameter, the REDUCE statements that match it.
        averages: By parameter and axis.
        recomputed: Activations that the backward pass computes again.
        offloaded: By table and name.
        kept: Storage types by table and name.
        computed: Compute types by layer.
        sealed: By table and name, the axes on which what is sent of a row is encrypted.
        sequence_axes: Axes over which some activation's sequence is cut, with the first deciding line.
        warnings: Statements without effect.
    """

    mesh: Mesh
    devices: tuple[Device, ...]
    rows: Mapping[Table, Mapping[Name, Row]]
    batch_axes: Mapping[Axis, Decision[str]]
    splits: Mapping[Table, Mapping[Name, Mapping[Axis, Decision[str]]]]
    attention: Mapping[Axis, Decision[str]]
    stored: Mapping[Table, Mapping[Name, Mapping[Axis, Decision[bool]]]]
    reductions: Mapping[Name, Mapping[Axis, Mapping[tuple[int, ...], Reduction]]]
    reducing: Mapping[Name, Sequence[ReduceStatement]]
    averages: Mapping[Name, Mapping[Axis, Averaging]]
    recomputed: Mapping[Name, Span]
    offloaded: Mapping[Table, Mapping[Name, Span]]
    kept: Mapping[Table, Mapping[Name, Decision[str]]]
    computed: Mapping[int, Decision[str]]
    sealed: Mapping[Table, Mapping[Name, Mapping[Axis, Span]]]
    sequence_axes: Mapping[Axis, Span]
    warnings: tuple[Problem, ...] = field(default=())

    def data_line(self, axis: Axis) -> Span | None:
        """The statement that cuts samples or tokens over an axis: why gradients are summands there."""
        cut = self.batch_axes.get(axis)
        return cut.line if cut else self.sequence_axes.get(axis)

    def is_sealed(self, table: Table, name: Name, axes: Iterable[Axis]) -> bool:
        """Whether anything that is sent of a row over these axes is encrypted."""
        sealed = self.sealed[table].get(name, {})
        return any(axis in sealed for axis in axes)
