"""Weights and optimizer states of one rank of a class that is stored in pieces."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.ledger import WeightsDigest
from trimtab.plan.tables import Table
from trimtab.policy.wire import Form
from trimtab.runtime.checkpoint.pieces import box_name
from trimtab.runtime.laid_out import Timed
from trimtab.runtime.lowering import Extent, boxes, read_piece
from trimtab.runtime.lowering.extents import take
from trimtab.runtime.optimizers import OptimizerSettings, build_optimizer, is_decayed
from trimtab.runtime.process_groups import Group
from trimtab.runtime.run_state import (
    CaughtUp,
    Parts,
    StateSource,
    as_lead_says,
    fit_together,
    go_back_together,
    hashable,
)
from trimtab.runtime.stored.carrier import Carrier
from trimtab.runtime.stored.module import StoredModule

_PARAMETERS = "parameters"


class StoredState:
    """See RunState. Nobody has all of it: a lost piece is only in checkpoints.

    Args:
        stored: The module, with its pieces.
        optimizer: Settings of what updates them.
        initial: Makes the first weights again, by name.
        timed: Is told of waits.
    """

    layout = ""

    def __init__(
        self,
        stored: StoredModule,
        optimizer: OptimizerSettings,
        initial: Callable[[], Mapping[str, Tensor]],
        timed: Timed,
    ) -> None:
        self._stored, self._initial, self._timed = stored, initial, timed
        self._shapes = {name: tuple(p.shape) for name, p in stored.parameters.items()}
        decayed = [
            name
            for name, parameter in stored.parameters.items()
            if is_decayed(parameter.shape, is_trained=parameter.requires_grad)
        ]
        others = [name for name in self._shapes if name not in decayed]
        self._order = (*decayed, *others)
        self._optimizer = build_optimizer(
            optimizer,
            decayed=[stored.pieces[name] for name in decayed],
            undecayed=[stored.pieces[name] for name in others],
        )
        self._states = {
            part: dict(zip(self._order, tensors, strict=True))
            for part, tensors in self._optimizer.state_tensors().items()
        }
        self._is_torn = False

    @property
    def num_updates(self) -> int:
        """See RunState."""
        return self._optimizer.num_steps

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        self._optimizer.num_steps = number

    def apply(self, gradients: Mapping[str, Tensor], *, lr: float) -> None:
        """Update what this rank updates; a parameter without a gradient has one of zeros."""
        found = [
            gradients[name] if name in gradients else torch.zeros_like(self._stored.pieces[name])
            for name in self._order
        ]
        self._optimizer.step(found, lr=lr)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """A block after which the state is that of one step again; of one that is left early it is of none."""
        self._is_torn = True
        yield
        self._is_torn = False

    def enter(self, group: Group) -> None:
        """See RunState; from here on tensors can be gathered."""
        self._stored.connect(Carrier(group, self._timed))

    def catch_up(self, group: Group, form: Form, committed: int, saved: Callable[[], int]) -> CaughtUp | None:
        """See RunState. Pieces fit together if nobody was interrupted inside an update and all are at one step."""
        return fit_together(group, is_torn=self._is_torn, committed=committed)

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """See RunState; the lead says which one, every rank reads its pieces."""
        return go_back_together(group, load, self._begin)

    def agree(self, group: Group, lead_says: bool) -> bool:
        """See RunState."""
        return as_lead_says(group, lead_says)

    def shapes(self) -> Parts:
        """See RunState."""
        return {
            part: {name: torch.empty(shape, device="meta") for name, shape in self._shapes.items()}
            for part in (_PARAMETERS, *self._states)
        }

    def saved_by(self, group: Group) -> Mapping[int, Parts]:
        """See RunState; what every rank has whole is saved by the first."""
        found = {rank: self._boxes(place, None) for place, rank in enumerate(group.members)}
        return {rank: parts for rank, parts in found.items() if parts}

    def saved(self) -> Parts:
        """See RunState."""
        return self._boxes(self._stored.place, self._own)

    def load(self, source: StateSource, *, is_same_layout: bool = True) -> None:
        """See RunState."""
        for part in (_PARAMETERS, *self._states):
            weights = source.part(part)
            for name in self._shapes:
                target, extent = self._target(part, name)
                target.copy_(read_piece(weights, name, extent).reshape(-1))
        self._is_torn = False

    def is_finite(self) -> bool:
        """See RunState."""
        return all(bool(torch.isfinite(piece.sum())) for piece in self._stored.pieces.values())

    def digest(self, group: Group) -> str:
        """See RunState; the lead gets one tensor after the other, hashes it and lets it go, and tells the others."""
        digest, lead = WeightsDigest(), group.members[0]
        for name in sorted(self._shapes):
            tensor = self._collected(name)
            if tensor is not None:
                digest.add(*hashable(name, tensor))
        told = torch.zeros(32, dtype=torch.uint8)
        if group.rank == lead:
            told = torch.frombuffer(bytearray.fromhex(digest.hexadecimal), dtype=torch.uint8)
        group.broadcast(told, source=lead)
        return bytes(told.tolist()).hex()

    def held(self) -> Mapping[str, list[Tensor]]:
        """What this rank holds now, by class."""
        states = [tensor for tensors in self._states.values() for tensor in tensors.values()]
        return {**self._stored.held(), "states": states}

    def _begin(self) -> None:
        for name, whole in self._initial().items():
            target, extent = self._target(_PARAMETERS, name)
            target.copy_(take(whole.detach(), extent).reshape(-1))
        for tensors in self._states.values():
            for tensor in tensors.values():
                tensor.zero_()
        self.num_updates = 0
        self._is_torn = False

    def _own(self, part: str, name: str) -> Tensor:
        """What this rank updates of a tensor, flat, with its padding."""
        return self._stored.pieces[name] if part == _PARAMETERS else self._states[part][name]

    def _extent(self, name: str, place: int, table: Table) -> Extent:
        """What a rank has of a tensor."""
        whole = Extent.of(self._shapes[name])
        if table not in self._stored.stored_tables(name):
            return whole
        return replace(whole, stored=whole.flat.cut_storage(self._stored.storage.num_ranks, place))

    def _target(self, part: str, name: str) -> tuple[Tensor, Extent]:
        """Where this rank has a tensor, flat, and what of it: of a parameter that is whole here all of it."""
        is_parameter = part == _PARAMETERS
        extent = self._extent(name, self._stored.place, Table.PARAMS if is_parameter else Table.STATES)
        is_whole = is_parameter and Table.PARAMS not in self._stored.stored_tables(name)
        flat = self._stored.padded(name) if is_whole else self._own(part, name)
        return flat[: extent.flat.length], extent

    def _boxes(self, place: int, own: Callable[[str, str], Tensor] | None) -> Parts:
        """What a rank saves, by the names of boxes; without numbers for ranks whose tensors are not at hand."""
        found: dict[str, dict[str, Tensor]] = {}
        for part in (_PARAMETERS, *self._states):
            for name, shape in self._shapes.items():
                extent = self._extent(name, place, Table.STATES)
                if extent.stored is None and place:
                    continue
                length = extent.flat.length
                flat = torch.empty(length, device="meta") if own is None else own(part, name)[:length]
                for view, box in boxes(flat.view(extent.shape), extent):
                    found.setdefault(part, {})[box_name(name, box, shape)] = view
        return found

    def _collected(self, name: str) -> Tensor | None:
        """A parameter on the lead; None on other ranks."""
        flat: Tensor | None = self._stored.pieces[name]
        if Table.STATES in self._stored.stored_tables(name):
            flat = self._stored.carrier.collect(self._stored.pieces[name])
        if flat is None or self._stored.place:
            return None
        shape = torch.Size(self._shapes[name])
        return flat.reshape(-1)[: shape.numel()].view(shape)
