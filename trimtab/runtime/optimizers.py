"""How do gradients change the weights?

Optimizers work on flat fp32 vectors: pieces of one buffer that holds all parameters. A piece may start at
any multiple of ``ALIGNMENT`` elements; so cut, it gets the bits that the whole buffer would get (fused CPU
kernels work in vectors of at most 16 fp32 numbers and treat the rest after the last vector apart).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

FUSED_DEVICES = ("cpu", "cuda")
"""Devices that have fused kernels of optimizers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """What one step changes.

    Args:
        weights: Flat fp32, written in place.
        gradient: Of the same shape.
        states: In the order of their names, written in place.
        count: Steps so far [], of optimizers that count; written in place.
    """

    weights: Tensor
    gradient: Tensor
    states: Sequence[Tensor]
    count: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    lr: float
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the vectors kept beside the weights."""
        return ("exp_avg", "exp_avg_sq")

    def apply(self, vector: Vector, *, decay: float, lr: float, fused: bool) -> None:
        """One step of one vector, as torch's optimizer takes it; without gradients of its own."""
        first, second = vector.states
        assert vector.count is not None, "Adam counts steps"
        adamw(
            [vector.weights],
            [vector.gradient],
            [first],
            [second],
            [],
            [vector.count],
            fused=fused,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=decay,
            eps=self.eps,
            maximize=False,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sgd:
    """Gradient descent, with momentum and coupled weight decay if wanted."""

    lr: float
    """Peak learning rate."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the vectors kept beside the weights."""
        return ("momentum_buffer",) if self.momentum else ()

    def apply(self, vector: Vector, *, decay: float, lr: float, fused: bool) -> None:
        """See AdamW."""
        sgd(
            [vector.weights],
            [vector.gradient],
            list(vector.states),
            fused=fused,
            weight_decay=decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )


class Optimizer(Protocol):
    """What a step, a save and a recovery need of an optimizer over the flat state."""

    def step(self, gradients: Sequence[Tensor], *, lr: float) -> None:
        """Apply one step. ``gradients``: the decayed and the other part of a vector of the flat layout."""

    @property
    def num_steps(self) -> int:
        """Steps applied so far; set it after filling states."""

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None: ...

    def state_tensors(self) -> dict[str, list[Tensor]]:
        """The state vectors themselves by name, cut like the gradients; write to them to load."""


OptimizerSettings = AdamW | Sgd

OPTIMIZERS: Mapping[str, type[OptimizerSettings]] = {"adamw": AdamW, "sgd": Sgd}
"""Settings by the name that a job file uses; the fields are the job file's too."""


def is_decayed(shape: Sequence[int], *, is_trained: bool = True) -> bool:
    """Whether a parameter of this shape decays: matrices do; biases, norms and what is frozen do not."""
    return len(shape) >= 2 and is_trained


def build_optimizer(
    settings: OptimizerSettings, *, decayed: Sequence[Tensor], undecayed: Sequence[Tensor]
) -> "FlatOptimizer":
    """An optimizer that updates flat fp32 vectors in place.

    Args:
        settings: Which optimizer.
        decayed: Vectors of elements that weight decay acts on; see ``is_decayed``.
        undecayed: Vectors of the other elements. Either sequence may be empty or hold empty vectors.
    """
    return FlatOptimizer(settings, decayed, undecayed)


class FlatOptimizer:
    """Updates flat vectors from flat gradients. States exist, as zeros, from the start.

    Torch's kernels are called without its ``Optimizer``, whose bookkeeping loads the compiler, a second and more.
    """

    def __init__(
        self, settings: OptimizerSettings, decayed: Sequence[Tensor], undecayed: Sequence[Tensor]
    ) -> None:
        self._settings = settings
        self._weights = [_flat(vector) for vector in (*decayed, *undecayed)]
        self._decays = [settings.weight_decay] * len(decayed) + [0.0] * len(undecayed)
        self._is_fused = all(vector.device.type in FUSED_DEVICES for vector in self._weights)
        self._states = [[torch.zeros_like(vector) for _ in settings.states] for vector in self._weights]
        self._counts = [torch.zeros((), device=vector.device) for vector in self._weights]
        self._num_steps = 0

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor], *, lr: float) -> None:
        """Apply one step at learning rate ``lr``.

        Args:
            gradients: One fp32 vector for each vector, decayed first, in the order given to the
                constructor.
            lr: The rate of this step; the peak in the settings is not consulted.
        """
        vectors = zip(self._weights, gradients, self._states, self._counts, self._decays, strict=True)
        for weights, gradient, states, count, decay in vectors:
            vector = Vector(weights=weights, gradient=gradient, states=states, count=count)
            self._settings.apply(vector, decay=decay, lr=lr, fused=self._is_fused)
        self._num_steps += 1

    @property
    def num_steps(self) -> int:
        """Steps applied so far, as bias correction counts them; set it after filling states."""
        return self._num_steps

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None:
        self._num_steps = num_steps
        for count in self._counts:
            count.fill_(num_steps)

    def state_tensors(self) -> dict[str, list[Tensor]]:
        """The state vectors themselves by name, in the order of the vectors; write to them to load."""
        return {
            name: [states[index] for states in self._states]
            for index, name in enumerate(self._settings.states)
        }


def _flat(vector: Tensor) -> Tensor:
    assert vector.dtype is torch.float32, vector.dtype
    assert vector.dim() == 1, vector.shape
    return vector.detach()
