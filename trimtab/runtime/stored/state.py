"""Weights and optimizer states of one rank of a class that is stored in pieces."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from trimtab.plan.tables import Table
from trimtab.policy.wire import Form
from trimtab.runtime.laid_out import Timed
from trimtab.runtime.optimizers import OptimizerSettings, build_optimizer, is_decayed
from trimtab.runtime.process_groups import Group
from trimtab.runtime.run_state import Parts, digest_of
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

    def __init__(
        self,
        stored: StoredModule,
        optimizer: OptimizerSettings,
        initial: Callable[[], Mapping[str, Tensor]],
        timed: Timed,
    ) -> None:
        self._stored, self._initial, self._timed = stored, initial, timed
        self._shapes = {name: tuple(p.shape) for name, p in stored.parameters.items()}
        decayed = [name for name, shape in self._shapes.items() if is_decayed(shape)]
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

    def catch_up(self, group: Group, form: Form, committed: int) -> int | None:
        """See RunState. Pieces fit together if nobody was interrupted inside an update and all are at one step."""
        found = torch.tensor([int(self._is_torn), committed, -committed], dtype=torch.int64)
        group.all_reduce(found, operation="max")
        is_torn, newest, oldest = found.tolist()
        return None if is_torn or newest != -oldest else int(newest)

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """See RunState; the lead says which one, every rank reads its pieces."""
        lead = group.members[0]
        to_step = torch.tensor([load(None) if group.rank == lead else 0], dtype=torch.int64)
        group.broadcast(to_step, source=lead)
        step = int(to_step.item())
        if step and group.rank != lead:
            load(step)
        if not step:
            self._begin()
        return step

    def agree(self, group: Group, lead_says: bool) -> bool:
        """See RunState."""
        word = torch.tensor([int(lead_says)], dtype=torch.int64)
        group.broadcast(word, source=group.members[0])
        return bool(word.item())

    def shapes(self) -> Parts:
        """See RunState."""
        return {
            part: {name: torch.empty(shape, device="meta") for name, shape in self._shapes.items()}
            for part in (_PARAMETERS, *self._states)
        }

    def whole(self, group: Group) -> Parts:
        """See RunState; every rank sends its pieces to the lead."""
        found = {part: self._collected(part) for part in (_PARAMETERS, *self._states)}
        return found if group.rank == group.members[0] else {}

    def load(self, parts: Parts) -> None:
        """See RunState."""
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                self._take(part, name, tensor)
        self._is_torn = False

    def is_finite(self) -> bool:
        """See RunState."""
        return all(bool(torch.isfinite(piece.sum())) for piece in self._stored.pieces.values())

    def digest(self, group: Group) -> str:
        """See RunState; the lead hashes, and tells the others."""
        weights, lead = self._collected(_PARAMETERS), group.members[0]
        told = torch.zeros(32, dtype=torch.uint8)
        if group.rank == lead:
            told = torch.frombuffer(bytearray.fromhex(digest_of(weights)), dtype=torch.uint8)
        group.broadcast(told, source=lead)
        return bytes(told.tolist()).hex()

    def held(self) -> Mapping[str, list[Tensor]]:
        """What this rank holds now, by class."""
        states = [tensor for tensors in self._states.values() for tensor in tensors.values()]
        return {**self._stored.held(), "states": states}

    def _begin(self) -> None:
        for name, tensor in self._initial().items():
            self._take(_PARAMETERS, name, tensor)
        for tensors in self._states.values():
            for tensor in tensors.values():
                tensor.zero_()
        self.num_updates = 0
        self._is_torn = False

    def _take(self, part: str, name: str, whole: Tensor) -> None:
        """Write this rank's part of a logical tensor; of a parameter that is whole here all of it."""
        stored = self._stored.stored_tables(name)
        is_cut = (Table.PARAMS if part == _PARAMETERS else Table.STATES) in stored
        own = self._stored.pieces[name] if part == _PARAMETERS else self._states[part][name]
        flat = whole.detach().reshape(-1)
        if is_cut:
            flat = flat[self._stored.place * own.numel() :][: own.numel()]
        elif part == _PARAMETERS:
            own = self._stored.padded(name)
        own[: flat.numel()].copy_(flat)

    def _collected(self, part: str) -> dict[str, Tensor]:
        """The logical tensors on the lead; on other ranks nothing."""
        found = {}
        for name, shape in self._shapes.items():
            own = self._stored.pieces[name] if part == _PARAMETERS else self._states[part][name]
            flat: Tensor | None = own
            if Table.STATES in self._stored.stored_tables(name):
                flat = self._stored.carrier.collect(own)
            if flat is not None and self._stored.place == 0:
                found[name] = flat.reshape(-1)[: torch.Size(shape).numel()].view(shape)
        return found
