"""What the strategy language speaks of, as rows: parameters, gradients, states, activations, layers, experts.

A row of ``params``, ``grads``, ``states`` or ``activations`` is one logical tensor, before anything is split.
``grads`` and ``states`` have the names of the parameters that they belong to. A row of ``layers`` or
``experts`` is one position along the dim ``layers`` or ``experts``, with the elements of its parameters.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from trimtab.catalog import Activation, Network, Tensor, TensorKind


class Table(StrEnum):
    """What a statement is about."""

    PARAMS = "params"
    GRADS = "grads"
    STATES = "states"  # of the optimizer
    ACTIVATIONS = "activations"  # of one microbatch
    LAYERS = "layers"
    EXPERTS = "experts"


COLUMNS = ("name", "layer", "kind", "dims", "shape", "numel", "bytes", "dtype", "stage", "expert")
"""What a ``WHERE`` may name."""

BYTES_OF = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one element, by type."""

_MASTER = "fp32"
"""The type that weights, gradients and optimizer states have unless a ``KEEP`` says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a table.

    Args:
        table: Where it stands.
        name: ``layers.0.attention.wq.weight``; one of a kind within its table.
        layer: Counted from 0; None for embedding, positions, final norm, head and logits.
        kind: ``embedding``, ``norm``, ``linear``, ``expert``, ``router``, ``head`` for a parameter and what
            belongs to it; ``residual``, ``norm``, ``attention``, ``linear``, ``expert``, ``router``, ``head``
            for an activation; ``dense``, ``moe`` for a layer; ``expert`` for an expert.
        dims: The named dim of each axis, outermost first.
        shape: Elements along each dim.
        dtype: Type of an element: a key of BYTES_OF.
        stage: The pipeline stage that holds it; None before stages are cut.
        expert: Number of the expert, in the table ``experts`` only.
    """

    table: Table
    name: str
    layer: int | None
    kind: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    stage: int | None = None
    expert: int | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * BYTES_OF[self.dtype]

    def value(self, column: str) -> int | float | str | None:
        """What a ``WHERE`` compares; ``dims`` and ``shape`` are text such as ``vocab,embed`` and ``256,128``.

        Raises: KeyError if there is no such column.
        """
        if column not in COLUMNS:
            raise KeyError(column)
        if column == "dims":
            return ",".join(self.dims)
        if column == "shape":
            return ",".join(map(str, self.shape))
        value: int | str | None = getattr(self, column)
        return value


def rows_of(network: Network, *, batch: int, sequence: int, num_states: int, compute: str) -> tuple[Row, ...]:
    """Every row of every table for a network, table by table, each in the order of computation.

    Experts are taken as evenly used: each gets ``ceil(batch * sequence * top_k / experts)`` slots.

    Args:
        network: What is trained.
        batch: Samples of one microbatch.
        sequence: Tokens of a sample.
        num_states: Elements that the optimizer keeps for one of a parameter; without any there are no
            rows of states.
        compute: Type of the activations: a key of BYTES_OF.
    """
    tensors = network.tensors()
    return (
        *_parameters(Table.PARAMS, tensors),
        *_parameters(Table.GRADS, tensors),
        *(_parameters(Table.STATES, tensors, ("state",), (num_states,)) if num_states else ()),
        *_activations(network, batch, sequence, compute),
        *_layers(network, tensors),
        *_experts(network, tensors),
    )


def _parameters(
    table: Table, tensors: Iterable[Tensor], dims: tuple[str, ...] = (), shape: tuple[int, ...] = ()
) -> Iterator[Row]:
    """One row for each parameter, with further dims and sizes before its own."""
    for tensor in tensors:
        yield Row(
            table=table,
            name=tensor.name,
            layer=tensor.layer,
            kind=tensor.kind.value,
            dims=dims + tensor.dims,
            shape=shape + tensor.shape,
            dtype=_MASTER,
        )


_RESIDUAL = ("batch", "sequence", "embed")
_SLOTTED, _SLOTTED_INNER = ("experts", "slots", "embed"), ("experts", "slots", "mlp")
_INNER = ("batch", "sequence", "mlp")
_ATTENTION = (
    ("attention_norm", "norm", _RESIDUAL),
    ("attention.q", "attention", ("batch", "sequence", "heads")),
    ("attention.k", "attention", ("batch", "sequence", "kv_heads")),
    ("attention.v", "attention", ("batch", "sequence", "kv_heads")),
    ("attention.out", "attention", ("batch", "sequence", "heads")),
    ("attention_residual", "residual", _RESIDUAL),
    ("mlp_norm", "norm", _RESIDUAL),
)
_MLP = (
    ("mlp.up", "linear", _INNER),
    ("mlp.gate", "linear", _INNER),
    ("mlp.hidden", "linear", _INNER),
)
_EXPERTS = (
    ("router", "router", ("batch", "sequence", "routes")),
    ("experts.in", "expert", _SLOTTED),
    ("experts.up", "expert", _SLOTTED_INNER),
    ("experts.gate", "expert", _SLOTTED_INNER),
    ("experts.hidden", "expert", _SLOTTED_INNER),
    ("experts.out", "expert", _SLOTTED),
)
_END_OF_LAYER = (("mlp_residual", "residual", _RESIDUAL),)


def _activations(network: Network, batch: int, sequence: int, compute: str) -> Iterator[Row]:
    """What the forward pass of one microbatch makes, in order."""
    sizes = _sizes(network, batch, sequence)

    def row(name: str, layer: int | None, kind: str, dims: tuple[str, ...]) -> Row:
        shape = tuple(sizes[dim] for dim in dims)
        return Row(
            table=Table.ACTIVATIONS, name=name, layer=layer, kind=kind, dims=dims, shape=shape, dtype=compute
        )

    yield row("embedding", None, "residual", _RESIDUAL)
    # Layers are alike: what one makes is worked out once.
    of_a_layer = [row(name, None, kind, dims) for name, kind, dims in _activations_of_a_layer(network)]
    for layer in range(network.layers):
        for like in of_a_layer:
            yield Row(
                table=Table.ACTIVATIONS,
                name=f"layers.{layer}.{like.name}",
                layer=layer,
                kind=like.kind,
                dims=like.dims,
                shape=like.shape,
                dtype=compute,
            )
    yield row("final_norm", None, "norm", _RESIDUAL)
    yield row("logits", None, "head", ("batch", "sequence", "vocab"))


def _activations_of_a_layer(network: Network) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name within the layer, kind and dims; queries and keys that are normalised have one row all the same."""
    for activation in (*_ATTENTION, *(_EXPERTS if network.experts else _MLP), *_END_OF_LAYER):
        if network.activation is Activation.SWIGLU or not activation[0].endswith(".gate"):
            yield activation


def _sizes(network: Network, batch: int, sequence: int) -> dict[str, int]:
    """Elements along each dim of an activation."""
    sizes = {dim: network.size_of(dim) for dim in ("embed", "heads", "kv_heads", "mlp", "vocab")}
    sizes |= {"batch": batch, "sequence": sequence}
    if network.experts:
        slots = -(-batch * sequence * network.top_k // network.experts)
        sizes |= {"experts": network.experts, "routes": network.experts, "slots": slots}
    return sizes


def _layers(network: Network, tensors: Iterable[Tensor]) -> Iterator[Row]:
    """One row for each layer, with the elements of its parameters."""
    kind = "moe" if network.experts else "dense"
    for layer, numel in _elements_by_layer(tensors).items():
        yield Row(
            table=Table.LAYERS,
            name=f"layers.{layer}",
            layer=layer,
            kind=kind,
            dims=("layers", "elements"),
            shape=(1, numel),
            dtype=_MASTER,
        )


def _experts(network: Network, tensors: Iterable[Tensor]) -> Iterator[Row]:
    """One row for each expert of each layer, with the elements of its parameters."""
    of_experts = (tensor for tensor in tensors if tensor.kind is TensorKind.EXPERT)
    for layer, numel in _elements_by_layer(of_experts).items():
        for expert in range(network.experts):
            yield Row(
                table=Table.EXPERTS,
                name=f"layers.{layer}.experts.{expert}",
                layer=layer,
                kind="expert",
                dims=("experts", "elements"),
                shape=(1, numel // network.experts),
                dtype=_MASTER,
                expert=expert,
            )


def _elements_by_layer(tensors: Iterable[Tensor]) -> Counter[int]:
    numels: Counter[int] = Counter()
    for tensor in tensors:
        if tensor.layer is not None:
            numels[tensor.layer] += tensor.numel
    return numels
