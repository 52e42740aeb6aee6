"""A user's module whose parameters are whole only while they are used, and whose gradients go to who keeps them.

Parameters are gathered unit by unit: a layer when its forward begins, and again when its backward pass does; what
stands outside of layers once for a microbatch. Between uses their memory is given back to the system, and the module
has parameters without values, on torch's ``meta`` device, in their place: who uses one by another way gets an error.
What autograd has saved of parameters shares their memory, which is filled again before it is read.

Gradients that are stored leave in one order on all ranks, the last layer first, whichever is ready first: so ranks on
whose samples a layer is not used still take part. What each share adds stays apart, and meets in the fixed tree.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from trimtab.plan.module_storage import ModuleStorage, StoredParameter
from trimtab.plan.tables import Table
from trimtab.runtime import compat
from trimtab.runtime.lowering.share_sums import Tree
from trimtab.runtime.stored.carrier import Carrier
from trimtab.runtime.stored.cuts import Cut
from trimtab.runtime.stored.guards import refuse_aliases, tensors_of
from trimtab.runtime.stored.order import Order
from trimtab.runtime.stored.saved import SavedTensors
from trimtab.runtime.stored.unit import Unit, emptied
from trimtab.runtime.stored.units import users_of
from trimtab.terms import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One microbatch of a rank.

    Args:
        share: It belongs to.
        number: Inside the share.
        is_last: Of the share.
    """

    share: int
    number: int
    is_last: bool


class StoredModule:
    """The module of one rank; its parameters move into vectors of their own.

    Args:
        module: With its first weights, whole.
        storage: How it is stored.
        place: Of this rank.
        num_parts: Shares of a batch.

    Attributes:
        parameters: By name, in the order of the storage; those that are stored have memory only while they are used.
        pieces: What this rank updates of each, flat: its piece, or all of it with its padding.
        whole_grads: Cut of the gradients that are not stored.
    """

    def __init__(self, module: nn.Module, storage: ModuleStorage, *, place: int, num_parts: int) -> None:
        self.storage, self.place = storage, place
        self.parameters = dict(module.named_parameters())
        self._module, self._by_name = module, {p.name: p for p in storage.parameters}
        self._tree = Tree(num_parts)
        self._device = next(iter(self.parameters.values())).device
        self._carrier: Carrier | None = None
        self._turns: Sequence[Turn | None] = ()
        self._is_forward = False
        self._first_waiting = 0
        self._gathers = storage.keeps_in_pieces(Table.PARAMS)
        self._orders = {True: Order(), False: Order()}
        self._is_training = False
        whole = [p.name for p in storage.parameters if Table.PARAMS not in p.stored]
        self._kept_cut = self._cut(whole)
        self._kept = self._moved(self._kept_cut)
        # Gradients leave in this order.
        self._units = [self._unit(path) for path in storage.units()][::-1]
        self._units.sort(key=lambda unit: not unit.is_layer)
        gathered = [unit for unit in self._units if unit.params is not None]
        self._saved = SavedTensors({compat.storage_of(unit.full): unit for unit in gathered}, self._gather)
        self.whole_grads = self._cut(
            [p.name for p in storage.parameters if p.is_trained and Table.GRADS not in p.stored]
        )
        self.pieces = {p.name: self._piece(p) for p in storage.parameters}
        self._register_hooks()

    # What a rank keeps.

    def stored_tables(self, name: str) -> frozenset[Table]:
        """What of a parameter lies in pieces."""
        return self._by_name[name].stored

    def padded(self, name: str) -> Tensor:
        """All of a parameter that every rank keeps whole, flat, with its padding."""
        return self._kept_cut.padded(self._kept, name)

    def held(self) -> Mapping[str, list[Tensor]]:
        """What it holds now, by class: also what has no memory for the moment."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        for unit in self._units:
            gradients += [*unit.unfinished.values(), *unit.leaves.values()]
        return {
            "params": [self._kept, *(unit.row for unit in self._units)],
            "gathered": [unit.full for unit in self._units],
            "grads": gradients,
        }

    # An epoch.

    def connect(self, carrier: Carrier) -> None:
        """Take part in an epoch."""
        self._carrier = carrier
        self._orders = {True: Order(), False: Order()}

    @property
    def carrier(self) -> Carrier:
        """Of the epoch."""
        assert self._carrier is not None, "tensors are gathered inside an epoch"
        return self._carrier

    def leave(self) -> None:
        """The epoch is over; what was under way is forgotten."""
        self.forget()
        if self._carrier is not None:
            self._carrier.group.drop()
        self._carrier = None

    @property
    def needs_all(self) -> bool:
        """Whether a microbatch takes every rank."""
        return self._gathers or any(unit.grads is not None for unit in self._units)

    # A microbatch.

    def forget(self) -> None:
        """Drop all gradients, and what is gathered."""
        self._is_forward = self._is_training = False
        for unit in self._units:
            unit.release()
            unit.unfinished.clear()
            unit.leaves.clear()
        for parameter in self.parameters.values():
            parameter.grad = None

    def begin(self, turns: Sequence[Turn | None]) -> None:
        """A microbatch begins, on every rank; ``turns`` are theirs, None where the result does not count."""
        self._turns = turns
        self._first_waiting = 0
        self._is_training = True
        self._orders[True].begin()
        for unit in self._units:
            unit.missing = set(unit.waits_for)

    def end(self) -> None:
        """The backward pass is done: send what has not left, keep nothing whole."""
        self._is_forward = False
        for unit in self._units:
            unit.missing.clear()
        self._send_ready()
        self._is_training = False
        if self._gathers:
            self._orders[True].end(self.carrier)
        for unit in self._units:
            unit.release()
            if unit.grads is not None:
                self._refuse_late(unit.grads)

    def take_whole_gradients(self) -> Tensor:
        """The gradients that are not stored, as rows one behind the other; the next microbatch starts from nothing."""
        found = self.whole_grads.rows({name: self.parameters[name].grad for name in self.whole_grads.names})
        self.drop_whole_gradients()
        return found.view(-1)

    def drop_whole_gradients(self) -> None:
        """As if the microbatches since the last call had not been."""
        for name in self.whole_grads.names:
            self.parameters[name].grad = None

    def take_summed(self) -> Iterator[tuple[Cut, Tensor]]:
        """Own pieces of the gradients that are stored, summed over all shares."""
        for unit in self._units:
            if unit.grads is not None:
                yield unit.grads, unit.leaves.pop(self._tree.root)

    # After the update.

    def sum_of_pieces(self, pieces: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole gradients, with padding, of the parameters that every rank updates whole."""
        found: dict[str, Tensor] = {}
        for unit in self.storage.units():
            names = [p.name for p in self._of(unit) if p.is_trained and Table.STATES not in p.stored]
            found |= self._gathered(names, pieces)
        return found

    def spread_updates(self) -> None:
        """Give the updated pieces of parameters that are whole on every rank to all."""
        for unit in self.storage.units():
            names = [
                p.name for p in self._of(unit) if Table.STATES in p.stored and Table.PARAMS not in p.stored
            ]
            if names:
                cut = self._cut(names)
                rows = self.carrier.gather(cut.row(self.pieces))
                cut.fill({name: self.padded(name) for name in names}, rows)

    # Making.

    def _piece(self, parameter: StoredParameter) -> Tensor:
        name = parameter.name
        for unit in self._units:
            if unit.params is not None and name in unit.params.names:
                return unit.params.piece(unit.row, name)
        if Table.STATES in parameter.stored:
            return self._kept_cut.own(self._kept, name, self.place)
        return self.padded(name)

    def _of(self, unit: str) -> list[StoredParameter]:
        return [p for p in self.storage.parameters if p.unit == unit]

    def _cut(self, names: Sequence[str]) -> Cut:
        shapes = {name: self.parameters[name].shape for name in names}
        return Cut(shapes, self.storage.num_ranks, self._device)

    def _moved(self, cut: Cut) -> Tensor:
        """The values of parameters in a vector of their own, where they now lie."""
        full = torch.zeros(cut.length * cut.num_ranks, dtype=torch.float32, device=self._device)
        with torch.no_grad():
            for name in cut.names:
                view = cut.whole(full, name)
                view.copy_(self.parameters[name])
                self.parameters[name].data = view
        return full

    def _unit(self, path: str) -> Unit:
        members = self._of(path)
        params = [p.name for p in members if Table.PARAMS in p.stored]
        grads = [p.name for p in members if p.is_trained and Table.GRADS in p.stored]
        trained = {p.name for p in members if p.is_trained}
        cut = self._cut(params)
        slots = tuple(slot for name in params for slot in emptied(self._module, self.parameters, name))
        full = self._moved(cut)
        row = cut.row({name: cut.own(full, name, self.place) for name in params}) if params else full
        unit = Unit(
            path=path,
            params=cut if params else None,
            slots=slots,
            row=row,
            full=full,
            grads=self._cut(grads) if grads else None,
            waits_for=frozenset(trained & {*params, *grads}),
            has_frozen=not trained >= {*params},
            is_whole=bool(params),
        )
        unit.release()
        return unit

    def _register_hooks(self) -> None:
        for unit in self._units:
            for name in sorted(unit.waits_for):
                parameter: Any = self.parameters[name]  # Torch leaves the method untyped.
                parameter.register_post_accumulate_grad_hook(self._on_gradient(unit, name))
            if unit.params is not None and unit.is_layer:
                for part in users_of(self._module, unit.path):
                    part.register_forward_pre_hook(self._before(unit))
                    part.register_forward_hook(self._after_part(unit))
                layer = self._module.get_submodule(unit.path)
                layer.register_forward_hook(self._after_layer(unit))
        if self._gathers:
            self._module.register_forward_pre_hook(self._before_all)
            self._module.register_forward_hook(self._after_all)
            self._module.register_forward_hook(lambda *_: self._saved.end(), always_call=True)

    # Hooks of the forward pass.

    def _before_all(self, *_: object) -> None:
        self._is_forward = True
        if not self._is_training:
            self._orders[False].begin()
        for unit in self._units:
            if not unit.is_layer:
                self._gather(unit)
        if torch.is_grad_enabled():
            self._saved.begin()

    def _after_all(self, *_: object) -> None:
        self._is_forward = False
        for unit in self._units:
            if unit.is_layer or not self._is_training:
                unit.release()
        if not self._is_training:
            self._orders[False].end(self.carrier)

    def _before(self, unit: Unit) -> Callable[..., None]:
        def gather(*_: object) -> None:
            self._gather(unit)

        return gather

    def _after_part(self, unit: Unit) -> Callable[..., None]:
        """When the gradient of what a part returned arrives, its backward pass begins."""

        def watch(_module: nn.Module, _inputs: object, output: object) -> None:
            found = [tensor for tensor in tensors_of(output) if tensor.grad_fn is not None]
            if found:
                register_multi_grad_hook(found, lambda _: self._gather(unit), mode="any")

        return watch

    def _after_layer(self, unit: Unit) -> Callable[..., None]:
        def release(_module: nn.Module, _inputs: object, output: object) -> None:
            refuse_aliases(unit, output)
            if self._is_forward:  # What is computed again inside a backward pass is needed there.
                unit.release()

        return release

    # Pieces and wholes.

    def _gather(self, unit: Unit) -> None:
        if unit.is_whole or unit.params is None:
            return
        for other in self._units:
            # Of a layer whose gradients are all there nothing is needed once another one begins.
            if other.is_layer and other is not unit and (self._is_forward or not other.missing):
                other.release()
        self._orders[self._is_training].take(f"gather {unit.label}", self.carrier)
        with torch.no_grad():
            unit.fill(self.carrier.gather(unit.row))

    def _gathered(self, names: Sequence[str], pieces: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with padding, of everybody's pieces."""
        if not names:
            return {}
        cut = self._cut(names)
        rows = self.carrier.gather(cut.row(pieces))
        full = torch.empty(cut.length * cut.num_ranks, dtype=torch.float32, device=rows.device)
        found = {name: cut.padded(full, name) for name in names}
        cut.fill(found, rows)
        return found

    # Gradients.

    def _on_gradient(self, unit: Unit, name: str) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            unit.missing.discard(name)
            if not unit.missing:
                if not unit.has_frozen:
                    unit.release()
                self._send_ready()

        return note

    def _send_ready(self) -> None:
        while self._first_waiting < len(self._units) and not self._units[self._first_waiting].missing:
            unit = self._units[self._first_waiting]
            self._first_waiting += 1
            if unit.grads is not None:
                self._send(unit, unit.grads)

    @torch.no_grad()
    def _send(self, unit: Unit, cut: Cut) -> None:
        """Give every rank its pieces of a microbatch's gradients, and keep what comes apart by share."""
        rows = cut.rows({name: self.parameters[name].grad for name in cut.names})
        for name in cut.names:
            self.parameters[name].grad = None
        if self._gathers:
            self._orders[True].take(f"sum gradients of {unit.label}", self.carrier)
        found = self.carrier.swap(rows)
        for turn, row in zip(self._turns, found, strict=True):
            if turn is None:
                continue
            if turn.number == 0:
                unit.unfinished[turn.share] = row
            else:
                unit.unfinished[turn.share].add_(row)
            if turn.is_last:
                unit.leaves[turn.share, 1] = unit.unfinished.pop(turn.share)
        self._tree.fold(unit.leaves)

    def _refuse_late(self, cut: Cut) -> None:
        late = [name for name in cut.names if self.parameters[name].grad is not None]
        if late:
            raise InputError(
                f"the gradient of {late[0]} came in two parts: its share of the sum had left when the second came.\n"
                "  Use torch.utils.checkpoint with use_reentrant=False, or keep its gradient whole: STORE states OVER …"
            )
