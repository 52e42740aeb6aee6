"""What is gathered together: a layer's parameters, or those outside of layers; and the gradients that leave together."""

import math
import weakref
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab.plan.module_storage import ROOT
from trimtab.runtime import compat
from trimtab.runtime.lowering.share_sums import Leaves
from trimtab.runtime.stored.cuts import Cut
from trimtab.terms import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A place where a module keeps a parameter.

    Args:
        owner: The module.
        name: Inside it.
        whole: What stands there while the parameter is whole.
        without: What stands there otherwise.
    """

    owner: nn.Module
    name: str
    whole: nn.Parameter
    without: nn.Parameter


@dataclass(kw_only=True)
class Unit:
    """Parameters that are gathered together, and gradients that leave together.

    Args:
        path: Of the layer.
        params: Cut of the parameters that are stored; None if all are whole.
        slots: Where the module keeps them.
        row: Own pieces of them.
        full: All of them; without memory between uses.
        grads: Cut of the gradients that are stored; None if there are none.
        waits_for: Parameters whose gradients end the unit's part of a backward pass.
        has_frozen: Whether a stored parameter has no gradient, and so may be needed after the last one came.
        is_whole: Whether ``full`` has memory, and the module its parameters.
        missing: Of ``waits_for``, those that have not come in this backward pass.
        unfinished: By share, own pieces of gradients of which microbatches are still to come.
        leaves: Own pieces of gradients of whole shares.
    """

    path: str
    params: Cut | None
    slots: tuple[Slot, ...]
    row: Tensor
    full: Tensor
    grads: Cut | None
    waits_for: frozenset[str]
    has_frozen: bool
    is_whole: bool = False
    missing: set[str] = field(default_factory=set)
    unfinished: dict[int, Tensor] = field(default_factory=dict)
    leaves: Leaves = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What errors call it."""
        return self.path or "what is outside of layers"

    @property
    def is_layer(self) -> bool:
        """Whether it is gathered for a layer's time, and not for a microbatch's."""
        return self.path != ROOT

    def fill(self, rows: Tensor) -> None:
        """Make it whole, of the pieces of all ranks."""
        assert self.params is not None, "there is nothing to gather"
        self.full.untyped_storage().resize_(self.full.numel() * self.full.element_size())
        self.params.fill({name: self.params.padded(self.full, name) for name in self.params.names}, rows)
        for slot in self.slots:
            compat.place_parameter(slot.owner, slot.name, slot.whole)
        self.is_whole = True

    def release(self) -> None:
        """Give back the memory of what is gathered."""
        if self.is_whole:
            for slot in self.slots:
                compat.place_parameter(slot.owner, slot.name, slot.without)
            self.full.untyped_storage().resize_(0)
            self.is_whole = False


def emptied(module: nn.Module, parameters: MutableMapping[str, nn.Parameter], name: str) -> Iterator[Slot]:
    """Replace a parameter by one without values, wherever somebody has it.

    Args:
        module: Whose.
        parameters: All of them; there the one with values takes its place.
        name: Of the parameter.

    Yields: Its places in the module.
    Raises: InputError for a parameter that has hooks of its own.
    """
    known = parameters[name]
    if compat.has_hooks(known):
        raise InputError(
            f"{name} has hooks on its gradient, which it would lose when it is stored in pieces.\n"
            "  Leave it whole: STORE params WHERE name != …"
        )
    owners = [
        (owner, own)
        for owner in module.modules()
        for own, found in owner.named_parameters(recurse=False, remove_duplicate=False)
        if found is known
    ]
    whole = nn.Parameter(known.detach(), requires_grad=known.requires_grad)
    whole.__dict__.update(known.__dict__)
    without = nn.Parameter(torch.empty_like(known, device="meta"), known.requires_grad)
    if weakref.getweakrefs(known):
        # Recurrent modules of torch have some. They take another parameter by setattr; who else has this one gets nan.
        known.data = torch.full((), math.nan, device=known.device).expand(known.shape)
    else:
        compat.swap_tensors(known, without)
        without = known
    parameters[name] = whole
    for owner, own in owners:
        compat.place_parameter(owner, own, without)
        yield Slot(owner=owner, name=own, whole=whole, without=without)
