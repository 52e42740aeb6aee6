"""What does the strategy language see of a user's own class? Its tables, without a single value.

The class is built, and its forward pass run once, on torch's ``meta`` device: shapes without memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.plan import Row, Table
from trimtab.runtime.dim_inference import Dims, is_attention, is_expert, is_norm, layer_stacks
from trimtab.runtime.models import build_class, takes_targets
from trimtab.runtime.module_dims import ModuleParameter, Provenance, module_parameters
from trimtab.terms import InputError

_MASTER = "fp32"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcedRow:
    """A row, and how the names of its axes are known.

    Args:
        row: As of a network of the catalog.
        provenance: Whether the user's class said them.
        reason: What they follow from, in a few words.
    """

    row: Row
    provenance: Provenance
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTables:
    """The tables of a user's class.

    Args:
        rows: Table by table, in the module's own order.
        notes: What the tables leave out, in sentences for people.
    """

    rows: tuple[SourcedRow, ...]
    notes: tuple[str, ...]


def rows_of_module(
    name: str,
    *,
    arguments: Mapping[str, Any],
    batch: int,
    sequence: int,
    num_states: int,
    compute: str,
) -> ModuleTables:
    """The tables of the class ``module:Class``.

    Gradients and states are those of the parameters that are trained. Activations are what the submodules
    without parts of their own give back, and each layer; what ``forward`` computes by functions is not seen.

    Args:
        name: Module and class.
        arguments: Keyword arguments of the class.
        batch: Samples of one microbatch.
        sequence: Tokens of a sample.
        num_states: Elements that the optimizer keeps for one of a parameter.
        compute: Type of the activations.

    Raises: InputError if the class cannot be found or built without values, or its annotations are wrong.
    """
    with torch.device("meta"):
        module = _built(name, arguments)
        parameters = module_parameters(module, name)
        try:
            activations = _Trace(module, parameters, batch=batch, sequence=sequence, compute=compute).run(
                name
            )
            notes = ("activations: what forward computes by functions, not by submodules, is not seen",)
        except Exception as error:  # noqa: BLE001 - forward is the user's: what it raises without values is told
            activations = ()
            notes = (f"activations: forward does not run without values: {_first_line(error)}",)
    trained = [parameter for parameter in parameters if parameter.is_trained]
    rows = (
        *(_parameter_row(Table.PARAMS, parameter) for parameter in parameters),
        *(_parameter_row(Table.GRADS, parameter) for parameter in trained),
        *(_parameter_row(Table.STATES, p, ("state",), (num_states,)) for p in trained if num_states),
        *activations,
        *_layers(parameters),
        *_experts(parameters),
    )
    return ModuleTables(rows=rows, notes=notes)


def _built(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return build_class(name, arguments=arguments, seed=0)
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(
            f"model {name!r} cannot be built without values, on torch's meta device: {_first_line(error)}\n"
            "  Its shapes are needed before a run: let __init__ make tensors, and read none."
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _parameter_row(
    table: Table, parameter: ModuleParameter, dims: Dims = (), shape: tuple[int, ...] = ()
) -> SourcedRow:
    row = Row(
        table=table,
        name=parameter.name,
        layer=parameter.layer,
        kind=parameter.kind,
        dims=dims + parameter.dims,
        shape=shape + parameter.shape,
        dtype=_MASTER,
    )
    return SourcedRow(row=row, provenance=parameter.provenance, reason=parameter.reason)


def _layers(parameters: Sequence[ModuleParameter]) -> Iterator[SourcedRow]:
    """One row for each layer, with the elements of its parameters; ``moe`` where it has experts."""
    numels: Counter[int] = Counter()
    of_experts = set()
    for parameter in parameters:
        if parameter.layer is not None:
            numels[parameter.layer] += parameter.numel
            of_experts |= {parameter.layer} if parameter.kind == "expert" else set()
    for layer in sorted(numels):
        kind = "moe" if layer in of_experts else "dense"
        yield _counted(Table.LAYERS, f"layers.{layer}", layer, kind, numels[layer])


def _experts(parameters: Sequence[ModuleParameter]) -> Iterator[SourcedRow]:
    """One row for each expert of each layer, whether experts are modules of their own or rows of a tensor."""
    numels: Counter[tuple[int, int]] = Counter()
    for parameter in parameters:
        if parameter.kind != "expert" or parameter.layer is None:
            continue
        if parameter.expert is not None:
            numels[parameter.layer, parameter.expert] += parameter.numel
        elif "experts" in parameter.dims:
            num_experts = parameter.shape[parameter.dims.index("experts")]
            for expert in range(num_experts):
                numels[parameter.layer, expert] += parameter.numel // num_experts
    for (layer, expert), numel in sorted(numels.items()):
        name = f"layers.{layer}.experts.{expert}"
        yield _counted(Table.EXPERTS, name, layer, "expert", numel, expert=expert)


def _counted(
    table: Table, name: str, layer: int, kind: str, numel: int, *, expert: int | None = None
) -> SourcedRow:
    row = Row(
        table=table,
        name=name,
        layer=layer,
        kind=kind,
        dims=(table.value, "elements"),
        shape=(1, numel),
        dtype=_MASTER,
        expert=expert,
    )
    return SourcedRow(row=row, provenance=Provenance.INFERRED, reason="counted")


class _Trace:
    """Runs a module's forward pass without values and writes down what its parts give back."""

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[ModuleParameter],
        *,
        batch: int,
        sequence: int,
        compute: str,
    ) -> None:
        self._module = module
        self._batch, self._sequence, self._compute = batch, sequence, compute
        self._layers = layer_stacks(module)
        by_name = {parameter.name: parameter for parameter in parameters}
        self._known = {id(tensor): by_name[name] for name, tensor in module.named_parameters()}
        self._dims_of_size: dict[int, set[str]] = {}
        for parameter in parameters:
            for dim, size in zip(parameter.dims, parameter.shape, strict=True):
                self._dims_of_size.setdefault(size, set()).add(dim)
        self._calls: Counter[str] = Counter()
        self._rows: list[SourcedRow] = []

    def run(self, name: str) -> tuple[SourcedRow, ...]:
        """The rows of activations. What ``forward`` raises passes through."""
        for path, child in self._module.named_modules():
            is_part = path and not [*child.children()]
            if is_part or path in self._layers:
                child.register_forward_hook(self._hook(path))
        tokens = torch.zeros((self._batch, self._sequence), dtype=torch.long)
        inputs = (tokens, tokens) if takes_targets(self._module.forward, name) else (tokens,)
        with torch.no_grad():
            given_back = self._module(*inputs)
        self._note_logits(given_back)
        return tuple(self._rows)

    def _hook(self, path: str) -> Any:
        def note(child: nn.Module, _inputs: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) and output else output
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim():
                self._note(path, child, tuple(tensor.shape))

        return note

    def _note(self, path: str, child: nn.Module, shape: tuple[int, ...]) -> None:
        self._calls[path] += 1
        call = f":{self._calls[path]}" if self._calls[path] > 1 else ""
        last, reason = self._last_dim(child, shape[-1])
        dims = (*self._leading_dims(shape[:-1]), last)
        layer = next(
            (number for outer, number in self._layers.items() if f"{path}.".startswith(f"{outer}.")), None
        )
        self._add(path + call, layer, self._kind(path, child, last), dims, shape, reason)

    def _note_logits(self, given_back: object) -> None:
        """A row for logits that no submodule gave, as of a head that is the embedding's own matrix."""
        if isinstance(given_back, Tensor) and given_back.dim() > 1:
            shape = tuple(given_back.shape)
            if not any(sourced.row.shape == shape and sourced.row.kind == "head" for sourced in self._rows):
                dims = (*self._leading_dims(shape[:-1]), self._dim_of_size(shape[-1], prefer="vocab"))
                self._add("logits", None, "head", dims, shape, "what forward gives back")

    def _add(
        self, name: str, layer: int | None, kind: str, dims: Dims, shape: tuple[int, ...], reason: str
    ) -> None:
        row = Row(
            table=Table.ACTIVATIONS,
            name=name,
            layer=layer,
            kind=kind,
            dims=dims,
            shape=shape,
            dtype=self._compute,
        )
        self._rows.append(SourcedRow(row=row, provenance=Provenance.INFERRED, reason=reason))

    def _leading_dims(self, shape: tuple[int, ...]) -> Dims:
        """``batch``, then ``sequence``, where the sizes are theirs."""
        if shape == (self._batch, self._sequence):
            return ("batch", "sequence")
        first = ("batch",) if shape[:1] == (self._batch,) else ()
        return (*first, *(f"d{size}" for size in shape[len(first) :]))

    def _last_dim(self, child: nn.Module, size: int) -> tuple[str, str]:
        """The name of the last axis, and what it follows from: the weight that made it, else its size."""
        weight = getattr(child, "weight", None)
        known = self._known.get(id(weight))
        if known is not None and len(known.dims) in (1, 2):
            axis = 1 if isinstance(child, nn.Embedding) else 0
            if known.shape[axis] == size:
                return known.dims[axis], f"the dims of {known.name}"
        return self._dim_of_size(size, prefer="embed"), "by size"

    def _dim_of_size(self, size: int, *, prefer: str) -> str:
        """The dim of this size: the preferred one, else the only one, else the size itself."""
        dims = self._dims_of_size.get(size, set())
        if prefer in dims:
            return prefer
        return next(iter(dims)) if len(dims) == 1 else f"d{size}"

    def _kind(self, path: str, child: nn.Module, last: str) -> str:
        if path in self._layers or isinstance(child, nn.Embedding):
            return "residual"
        if is_norm(child):
            return "norm"
        known = self._known.get(id(getattr(child, "weight", None)))
        if known is not None and known.kind == "router":
            return "router"
        if is_expert(path):
            return "expert"
        if last == "vocab":
            return "head"
        return "attention" if is_attention(path) else "linear"
