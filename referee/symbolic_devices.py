"""What one device makes of a step. With averaging there are several that train by themselves, each on its own samples."""

import itertools
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from symbolic_data import Batch, WrongError
from symbolic_integers import NO_TARGET, Integers, Routing
from symbolic_pieces import Array, Piece, take
from symbolic_plan import Parameter, Plan, Value
from symbolic_ranks import Held
from symbolic_reference import DealtTokens, OneDevice, Passed, Quantity

Key = tuple[int, ...]
"""Coordinates on the averaged axes: the device that a rank is a part of."""


class Devices:
    """Runs a step without a mesh.

    Args:
        plan: For names and shapes of parameters, and for who trains by themselves.
        batches: The microbatches.
        integers: Arithmetic.
        seed: Of the weights.

    Raises: WrongError if ranks are to train by themselves that need each other's activations.
    """

    def __init__(self, plan: Plan, batches: Sequence[Batch], integers: Integers, seed: int) -> None:
        _check_averaging(plan)
        self._plan, self._integers, self._seed = plan, integers, seed
        self._axes = plan.averaged_axes
        self._keys = list(itertools.product(*(range(plan.mesh.sizes[axis]) for axis in self._axes)))
        dealt = _dealt_by_layer(plan)
        self._weights: dict[tuple[str, Key], Array] = {}
        self._batches = {key: [self._own(batch, key) for batch in batches] for key in self._keys}
        self._passes: dict[Key, list[Passed]] = {}
        for key in self._keys:
            weights = {name: self._initial(parameter, key) for name, parameter in plan.parameters.items()}
            device = OneDevice(plan.network, weights, dealt, integers)
            self._passes[key] = [device.run(batch) for batch in self._batches[key]]

    def stored_pieces(self, parameter: Parameter) -> Held:
        """What each rank that holds a parameter has of it before the step."""
        extents = self._plan.mesh.extents(parameter.stored)
        return {
            rank: Piece(extents[rank], take(self._initial(parameter, self._key(rank)), extents[rank]))
            for rank in self._plan.ranks_at(*parameter.stages)
        }

    def activation(self, rank: int, microbatch: int, quantity: Quantity) -> Array:
        """On the device that a rank is a part of."""
        return self._passes[self._key(rank)][microbatch].activations[quantity]

    def gradient(self, parameter: Parameter, rank: int) -> Array:
        """The sum over all samples of the device that a rank is a part of."""
        return self._gradient(parameter, self._key(rank))

    def new(self, parameter: Parameter) -> Array:
        """The parameter after the step: updated, then the mean over the devices."""
        modulus = self._integers.modulus
        copies = [
            (self._initial(parameter, key) - 3 * self._gradient(parameter, key)) % modulus
            for key in self._keys
        ]
        total: Array = np.sum(copies, axis=0) % modulus
        return total * self._integers.inverse(len(copies)) % modulus

    def loss(self, rank: int) -> int:
        """Over all samples of the device."""
        return sum(found.loss for found in self._passes[self._key(rank)]) % self._integers.modulus

    def num_tokens(self, rank: int) -> int:
        """Targets of the device that are not masked, each counted as its weight."""
        counted = sum(int(batch.weights.sum()) for batch in self._batches[self._key(rank)])
        return counted % self._integers.modulus

    def norm_square(self, rank: int) -> int:
        """Of all gradients of the device."""
        gradients = (self.gradient(parameter, rank) for parameter in self._plan.parameters.values())
        squares = (int((gradient * gradient % self._integers.modulus).sum()) for gradient in gradients)
        return sum(squares) % self._integers.modulus

    def _initial(self, parameter: Parameter, key: Key) -> Array:
        """Any residues, others on every device."""
        if (parameter.name, key) not in self._weights:
            chance = np.random.default_rng([self._seed, 2, zlib.crc32(parameter.name.encode()), *key])
            drawn = chance.integers(0, self._integers.modulus, parameter.computed.shape)
            self._weights[parameter.name, key] = drawn
        return self._weights[parameter.name, key]

    def _gradient(self, parameter: Parameter, key: Key) -> Array:
        found: Array = np.sum([passed.gradients[parameter.name] for passed in self._passes[key]], axis=0)
        return found % self._integers.modulus

    def _key(self, rank: int) -> Key:
        coordinates = self._plan.mesh.coordinates[rank]
        return tuple(coordinates[axis] for axis in self._axes)

    def _own(self, batch: Batch, key: Key) -> Batch:
        """A microbatch in which only the samples of one device count."""
        if not self._axes:
            return batch
        extents = self._plan.mesh.extents(self._plan.head.values["targets"])
        ranks = [rank for rank in self._plan.mesh.ranks if self._key(rank) == key]
        rows = {row for rank in ranks for row in extents[rank].indices[0]}
        is_own = np.isin(np.arange(batch.tokens.shape[0]), list(rows))[:, None]
        return Batch(
            tokens=batch.tokens,
            targets=np.where(is_own, batch.targets, NO_TARGET),
            weights=batch.weights * is_own,
        )


def _check_averaging(plan: Plan) -> None:
    """Refuse averaging over ranks that are not devices of their own.

    Raises: WrongError.
    """
    for axis in plan.averaged_axes:
        for block in plan.blocks:
            for value in block.values.values():
                cut = next(
                    (dim for found, kind, dim in value.placements if found == axis and kind == "split"), None
                )
                if cut not in (None, "batch", "slots"):
                    raise WrongError(
                        f"ranks along {axis} train by themselves, and {value.name!r} is split along {cut} over it"
                    )


def _dealt_by_layer(plan: Plan) -> Mapping[int, DealtTokens]:
    found: dict[int, DealtTokens] = {}
    for site in plan.sites:
        operator = next((operator for operator in site.block.forward if operator.kind == "dispatch"), None)
        if operator is not None and site.layer is not None:
            values = site.block.values
            found[site.layer] = _dealt(plan, values[operator.inputs[1]], values[operator.outputs[0]])
    return found


def _dealt(plan: Plan, gates: Value, given: Value) -> DealtTokens:
    """Where the tokens of a microbatch go, if every rank deals those that it has into its own slots.

    Raises: WrongError if there are too few slots.
    """
    top_k, experts = plan.network["top_k"], plan.network["experts"]
    shape = (*gates.shape[:2], top_k)
    found = DealtTokens(
        experts=np.zeros(shape, dtype=np.int64),
        slots=np.zeros(shape, dtype=np.int64),
        num_slots=given.shape[1],
    )
    for tokens, slots in zip(plan.mesh.extents(gates), plan.mesh.extents(given), strict=True):
        samples, sequence = tokens.indices[:2]
        own = [slot for slot in slots.indices[1] if slot >= 0]
        routing = Routing(len(samples) * len(sequence), top_k, experts)
        if routing.num_slots > len(own):
            raise WrongError(
                f"a rank has {len(samples) * len(sequence)} tokens for {experts} experts, each to {top_k}: that takes "
                f"{routing.num_slots} slots of each expert, and {len(own)} of {given.shape[1]} are the rank's"
            )
        corner = np.ix_(samples, sequence)
        by_token = (len(samples), len(sequence), top_k)
        found.experts[corner] = routing.experts.reshape(by_token)
        found.slots[corner] = np.array(own, dtype=np.int64)[routing.slots].reshape(by_token)
    return found
