"""One training step on all ranks of a plan, compared with one device as it goes."""

from collections.abc import Callable, Sequence

import numpy as np

from symbolic_comparing import check_held, check_numbers
from symbolic_data import batches_of
from symbolic_devices import Devices
from symbolic_integers import Integers
from symbolic_pieces import Array, Extent, Piece, take
from symbolic_plan import MOVES, Operator, Plan, Site
from symbolic_ranks import Held, Ranks, Scope
from symbolic_reference import Quantity


class Step:
    """Makes the step.

    Args:
        plan: To be run.
        seed: Of weights and tokens.

    Attributes:
        ranks: That run it.
        where: What is being run, for a plan that cannot be.
    """

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self._plan = plan
        self._seed = seed
        self._integers = Integers()
        self.ranks = Ranks(plan, self._integers)
        self.where = "the data"

    def run(self) -> None:
        """Run and compare.

        Raises: WrongError at the first difference; MisfitError, ValueError, KeyError, IndexError if pieces do not
            fit together or are missing.
        """
        plan = self._plan
        self._batches = batches_of(plan, self._seed)
        self._devices = Devices(plan, self._batches, self._integers, self._seed)
        self._stored = {name: self._devices.stored_pieces(found) for name, found in plan.parameters.items()}
        self._added_up: list[dict[str, Held]] = [{} for _ in plan.sites]
        self._loss: Held = {}
        for index in range(len(self._batches)):
            kept = self._forward(index)
            self._backward(index, kept)
        self._update()

    # A microbatch.

    def _forward(self, index: int) -> list[dict[str, Held]]:
        """Through all blocks; returns what each keeps for the way back."""
        batch, kept = self._batches[index], []
        stream: Held = {}
        for at, site in enumerate(self._plan.sites):
            scope = self._scope(at, site, index, "forward")
            if at == 0:
                scope.held["tokens"] = self._pieces(site, "tokens", batch.tokens)
            else:
                scope.held["in"] = self._handed(stream, self._plan.sites[at - 1], site, "forward")
            if "targets" in site.block.values:
                scope.held["targets"] = self._pieces(site, "targets", batch.targets)
            self.ranks.run(site.block.gathers, scope)
            self.ranks.run(site.block.forward, scope)
            kept.append({name: scope.held[name] for name in site.block.kept})
            self._check_kept(site, kept[-1], index)
            if at < len(self._plan.sites) - 1:
                stream = scope.held[site.block.result]
            else:
                self._add_loss(scope.held["loss"])
        return kept

    def _backward(self, index: int, kept: Sequence[dict[str, Held]]) -> None:
        """Back through all blocks, from nothing but what was kept and what is stored."""
        sites = self._plan.sites
        gradient: Held = {}
        for at in reversed(range(len(sites))):
            site = sites[at]
            scope = self._scope(at, site, index, "backward")
            scope.held.update(kept[at])
            if at < len(sites) - 1:
                scope.held["grad:out"] = self._handed(gradient, sites[at + 1], site, "backward")
            self.ranks.run(site.block.gathers, scope)
            scope.phase = "recompute"
            self.ranks.run(site.block.recompute, scope)
            scope.phase = "backward"
            self.ranks.run(site.block.backward, scope)
            if at > 0:
                gradient = scope.held[site.block.gradient]

    def _scope(self, at: int, site: Site, index: int, phase: str) -> Scope:
        """The values of a block before it runs: stored parameters, and nothing of another pass."""
        block = site.block
        where = block.name if site.layer is None else f"layer {site.layer}"
        self.where = f"{where}, {phase} pass of microbatch {index}"
        gathered = {_stored_name(name): name for operator in block.gathers for name in operator.outputs}
        scope = Scope(
            block=block.name,
            declared=block.values,
            ranks=self._plan.ranks_at(site.stage),
            parameters=lambda name: (
                scope.held[gathered[name]] if name in gathered else self._stored[site.full_name(name)]
            ),
            weights=self._batches[index].weights,
            phase=phase,
            held={
                name: self._here(site, self._stored[site.full_name(_stored_name(name))])
                for name in block.values
                if name.startswith(_STORED) and "@" not in name
            },
            added_up=self._added_up[at],
        )
        return scope

    def _here(self, site: Site, held: Held) -> Held:
        """What the ranks of a site's stage hold of it."""
        return {rank: held[rank] for rank in self._plan.ranks_at(site.stage)}

    def _pieces(self, site: Site, name: str, whole: Array) -> Held:
        extents = self._plan.mesh.extents(site.block.values[name])
        return {
            rank: Piece(extents[rank], take(whole, extents[rank])) for rank in self._plan.ranks_at(site.stage)
        }

    def _handed(self, stream: Held, source: Site, target: Site, phase: str) -> Held:
        """The stream, or its gradient, from one block to the next, through every stage between them."""
        value = source.block.values[source.block.result if phase == "forward" else source.block.gradient]
        step = 1 if source.stage < target.stage else -1
        places = self._plan.rank_of_stage
        for stage in range(source.stage, target.stage, step):
            stream = self.ranks.hand_over(
                stream, value, phase, source=places[stage], target=places[stage + step]
            )
        return stream

    def _add_loss(self, loss: Held) -> None:
        for rank, piece in loss.items():
            before = self._loss.get(rank)
            array = piece.array if before is None else self._integers.sum(before.array, piece.array)
            self._loss[rank] = Piece(piece.extent, np.asarray(array))

    def _check_kept(self, site: Site, kept: dict[str, Held], index: int) -> None:
        for name, held in kept.items():
            quantity = _quantity_of(name, site, self._plan)
            if quantity is None:
                continue
            ranks = self._plan.ranks_at(site.stage)
            wholes = {rank: self._devices.activation(rank, index, quantity) for rank in ranks}
            declared = site.block.values[name]
            check_held(f"{name!r} of {self.where}", held, wholes, self._plan.mesh, declared)

    # Once a step.

    def _update(self) -> None:
        plan = self._plan
        self.where = "the update"
        scope = Scope(
            block="update",
            declared=plan.update_values,
            ranks=plan.mesh.ranks,
            parameters=lambda name: self._stored[name],
            weights=np.zeros((0, 0), dtype=np.int64),
            phase="update",
        )
        scope.held |= {f"param:{name}": held for name, held in self._stored.items()}
        scope.held |= {"loss": self._loss, "num_tokens": self._counted()}
        for site, added_up in zip(plan.sites, self._added_up, strict=True):
            for name, held in added_up.items():
                full = f"acc:{site.full_name(name.removeprefix('acc:'))}"
                scope.held[full if full in plan.update_values else f"{full}#{site.block.name}"] = held
        self.ranks.run(plan.update, scope)
        self._check_update(scope)

    def _counted(self) -> Held:
        """The targets that each rank has seen, each counted as its weight: no two parts of a batch count alike."""
        extents = self._plan.mesh.extents(self._plan.head.values["targets"])
        found = {}
        for rank, extent in enumerate(extents):
            number = sum(int(take(batch.weights, extent).sum()) for batch in self._batches)
            found[rank] = Piece(Extent(()), np.asarray(number % self._integers.modulus))
        return found

    def _check_update(self, scope: Scope) -> None:
        plan, devices, mesh = self._plan, self._devices, self._plan.mesh

        def check_number(what: str, name: str, ranks: Sequence[int], expected: Callable[[int], int]) -> None:
            held = scope.held[_moved(name, plan.update)]
            check_numbers(what, held, {rank: expected(rank) for rank in ranks}, mesh)

        last = plan.ranks_at(len(plan.rank_of_stage) - 1)
        check_number("number of tokens", "num_tokens", mesh.ranks, devices.num_tokens)
        check_number("loss", "loss", last, devices.loss)
        for operator in plan.update:
            if operator.kind == "update":
                self._check_gradient(operator, scope)
        if "norm_square" in scope.held:
            check_number("gradient norm", "norm_square", mesh.ranks, devices.norm_square)
        for name, parameter in plan.parameters.items():
            wholes = dict.fromkeys(plan.ranks_at(*parameter.stages), devices.new(parameter))
            check_held(f"new {name!r}", scope.held[plan.results[name]], wholes, mesh, parameter.stored)

    def _check_gradient(self, operator: Operator, scope: Scope) -> None:
        (name,) = operator.parameters
        parameter = self._plan.parameters[name]
        ranks = self._plan.ranks_at(*parameter.stages)
        wholes = {rank: self._devices.gradient(parameter, rank) for rank in ranks}
        held = scope.held[operator.inputs[0]]
        check_held(f"gradient of {name!r}", held, wholes, self._plan.mesh, parameter.updated)


_STORED = "stored:"


def _stored_name(value: str) -> str:
    """The parameter that a stored piece, or what was gathered from it, is of."""
    return value.removeprefix(_STORED).partition("@")[0]


def _moved(name: str, operators: Sequence[Operator]) -> str:
    """What a value has become when everything has been moved."""
    for operator in operators:
        if operator.kind in MOVES and name in operator.inputs:
            name = operator.outputs[operator.inputs.index(name)]
    return name


def _quantity_of(name: str, site: Site, plan: Plan) -> Quantity | None:
    """Which activation of the one device a value is: what its operator makes, wherever it was moved since.

    None for tokens and targets, which are given.
    """
    makers = {output: operator for operator in site.block.forward for output in operator.outputs}
    while name in makers and makers[name].kind in MOVES:
        name = makers[name].inputs[makers[name].outputs.index(name)]
    if name in ("tokens", "targets"):
        return None
    if name == "in":
        return _stream_before(site, plan)
    operator = makers[name]
    layer = site.layer
    match operator.kind:
        case "linear" | "expert_linear":
            what = "linear" if len(operator.parameters) > 1 else "product"
            return layer, f"{what} {operator.parameters[0]}"
        case "add_bias":
            return layer, f"linear {operator.parameters[0].removesuffix('bias')}weight"
        case "norm":
            return layer, f"norm {operator.parameters[0]}"
        case "add":
            sums = [found.outputs[0] for found in site.block.forward if found.kind == "add"]
            return layer, f"add {sums.index(name)}"
        case "drop":
            return layer, f"drop {operator.call}"
        case "ring_attention":
            return layer, "attention"
        case "head_sums":
            return layer, ("vocab_max", "vocab_sums")[operator.outputs.index(name)]
        case "rescale":
            return layer, "vocab_sums"
        case kind:
            return layer, kind


def _stream_before(site: Site, plan: Plan) -> Quantity:
    layers = plan.network["layers"]
    before = (layers if site.layer is None else site.layer) - 1
    if before >= 0:
        return before, "add 1"
    if plan.network["dropout"]:
        return None, "drop 0"
    return None, "add_positions" if "positions.weight" in plan.parameters else "embed"
