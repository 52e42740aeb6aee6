"""The same training on one device: as a plan without a strategy, and for dense networks as the decoder itself."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.catalog import THIS_MACHINE, Machine, Network, cluster
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.runtime.decoder import Decoder, token_loss_sum
from trimtab.runtime.lowering.batches import Microbatch
from trimtab.runtime.lowering.experts import Region
from trimtab.runtime.lowering.host_memory import HostMemory
from trimtab.runtime.lowering.masks import Masks
from trimtab.runtime.lowering.observing import Recorder
from trimtab.runtime.lowering.rank import Rank
from trimtab.runtime.lowering.replicas import Replica, averaged_axes
from trimtab.runtime.lowering.share_sums import shares_by_replica
from trimtab.runtime.lowering.updating import Outcome, OuterOptimizer, PieceOptimizer, Rules
from trimtab.runtime.lowering.wires import Wires
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.spec import Mesh, parse_strategy


def plan_of_one_device(plan: Plan, rows: int) -> Plan:
    """The plan of the same network without a strategy.

    Args:
        plan: Whose microbatches it computes.
        rows: Samples of one of them.
    """
    training = Training(
        network=plan.network,
        batch=rows * plan.work.microbatches,
        microbatch=rows,
        sequence=plan.work.sequence,
        shares=None,
        compute="fp32",
        num_states=2,
    )
    here = cluster(THIS_MACHINE, machine=Machine(num_devices=1, cores=1, memory_bytes=2**40))
    program = parse_strategy("", source="one device")
    return compile_program(program, training, mesh=Mesh(axes=(("dp", 1),)), cluster=here)


class OneDevice:
    """A replica's training on one device, by the plan without a strategy."""

    def __init__(
        self, plan: Plan, replica: Replica, rules: Rules, seed: int, regions: Mapping[int, Sequence[Region]]
    ) -> None:
        alone = plan_of_one_device(plan, len(replica.rows))
        self.recorder = Recorder(alone, plan.work.microbatches - 1)
        masks = Masks(plan.work, plan.network.dropout, seed=seed, rows=replica.rows)
        self.rank = Rank(
            alone, 0, Wires(0, 1), rules, seed=seed, regions=regions, masks=masks, observe=self.recorder
        )
        self._rows = torch.tensor(replica.rows)
        self.outcomes: list[Outcome] = []

    def step(self, microbatches: Sequence[Microbatch], number: int) -> None:
        """One step on the replica's rows."""
        self.recorder.step = number
        own = own_rows(microbatches, self._rows)
        self.outcomes.append(self.rank.step(own, number))


class DecoderDevice:
    """The same by ``trimtab.runtime.decoder`` and autograd, which know nothing of plans."""

    def __init__(self, network: Network, replica: Replica, rules: Rules, seed: int, plan: Plan) -> None:
        self._keyed, self._seed = KeyedRandom(), seed
        self._decoder = Decoder(network, self._keyed)
        self._decoder.initialize(seed)
        self._work, self._shares = plan.work, shares_by_replica(plan.work)
        self._rules = rules
        self._optimizer = PieceOptimizer(
            rules.optimizer,
            {
                name: (plan.parameters[name], parameter.numel())
                for name, parameter in self._decoder.named_parameters()
            },
            HostMemory(),
        )
        self._rows = torch.tensor(replica.rows)
        self.outcomes: list[Outcome] = []
        self.gradients: list[dict[str, Tensor]] = []

    @property
    def weights(self) -> dict[str, Tensor]:
        """By name."""
        return {name: parameter.data for name, parameter in self._decoder.named_parameters()}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with other weights."""
        for name, parameter in self._decoder.named_parameters():
            parameter.data = weights[name]

    def step(self, microbatches: Sequence[Microbatch], number: int) -> None:
        """One step on the replica's rows."""
        self._decoder.zero_grad()
        total, num_tokens = 0.0, 0
        for tokens, targets in self._begun(microbatches, number):
            loss, count = token_loss_sum(self._decoder(tokens), targets)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += float(loss.detach())
            num_tokens += count
        gradients = {
            name: parameter.grad.detach().clone()
            for name, parameter in self._decoder.named_parameters()
            if parameter.grad is not None
        }
        square = sum(float(gradient.double().square().sum()) for gradient in gradients.values())
        norm = math.sqrt(square) / num_tokens
        clip = self._rules.clip
        scale = 1.0 / num_tokens if clip is None or norm <= clip else clip / norm / num_tokens
        rate = self._rules.learning_rate(number)
        for name, parameter in self._decoder.named_parameters():
            parameter.data = self._optimizer.step(name, parameter.data, gradients[name], scale=scale, lr=rate)
        self.gradients.append(gradients)
        self.outcomes.append(Outcome(num_tokens=num_tokens, loss=total / num_tokens, norm=norm))

    def _begun(self, microbatches: Sequence[Microbatch], step: int) -> Iterator[Microbatch]:
        """What the decoder computes at once, its random numbers begun: with dropout one replica's rows after another's."""
        if not self._decoder.network.dropout:
            yield from own_rows(microbatches, self._rows)
            return
        for index, whole in enumerate(microbatches):
            turn, microbatch = divmod(index, self._work.microbatches_per_part)
            for rows in torch.split(self._rows, self._work.microbatch):
                shares = self._shares[int(rows[0]) // self._work.microbatch]
                if turn < len(shares):
                    self._keyed.start_microbatch(
                        seed=self._seed, step=step, share=shares[turn], microbatch=microbatch
                    )
                    yield from own_rows([whole], rows)


class Meeting:
    """Averages the weights of devices that train apart, as a plan's AVERAGE does."""

    def __init__(
        self, plan: Plan, replicas: Sequence[Replica], weights: Sequence[Mapping[str, Tensor]]
    ) -> None:
        self._averages = plan.bound.averages
        self._axes = averaged_axes(plan)
        self._replicas = replicas
        self._outer = [OuterOptimizer(self._averages) for _ in replicas]
        for outer, tensors in zip(self._outer, weights, strict=True):
            for name, tensor in tensors.items():
                outer.begin(name, tensor)

    def after(self, step: int, weights: Sequence[dict[str, Tensor]]) -> None:
        """Let weights meet, axis by axis, where the step is one at which they do."""
        for name, by_axis in self._averages.items():
            for at, axis in enumerate(self._axes):
                if axis in by_axis and (step + 1) % by_axis[axis].every == 0:
                    self._meet(name, axis, at, weights)

    def _meet(self, name: str, axis: str, at: int, weights: Sequence[dict[str, Tensor]]) -> None:
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, replica in enumerate(self._replicas):
            groups.setdefault((*replica.place[:at], *replica.place[at + 1 :]), []).append(index)
        for members in groups.values():
            mean = torch.stack([weights[index][name] for index in members]).mean(0)
            for index in members:
                weights[index][name] = self._outer[index].meet(name, axis, mean.clone())


def own_rows(microbatches: Sequence[Microbatch], rows: Tensor) -> tuple[Microbatch, ...]:
    """Some samples of each microbatch."""
    return tuple((tokens[rows], targets[rows]) for tokens, targets in microbatches)
