"""Plans of small networks, for tests of what runs them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.catalog import Machine, cluster, network
from trimtab.catalog.hugging_face import Box
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.runtime.lowering import Question
from trimtab.runtime.optimizers import AdamW
from trimtab.spec import parse_strategy, resolve_mesh

LEARNED: dict[str, Any] = {
    "layers": 4,
    "embed": 32,
    "heads": 4,
    "kv_heads": 4,
    "mlp": 64,
    "vocab": 67,
    "context": 32,
    "dropout": 0.0,
}
"""Layer norms, biases, learned positions, a tied head, a vocabulary that nothing divides."""

ROTARY: dict[str, Any] = {
    **LEARNED,
    "heads": 8,
    "kv_heads": 4,
    "head_size": 8,
    "positions": "rotary",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "bias": "none",
    "tied": False,
    "qk_norm": True,
}
"""RMS norms, rotated and normalised queries and keys, heads that share keys, a gate."""

WINDOWED: dict[str, Any] = {**ROTARY, "window": 6, "full_layers": 1}
"""The same under a window, shorter than most pieces of a sample are long, in all layers but the first."""

DROPPING: dict[str, Any] = {**LEARNED, "dropout": 0.3}
"""LEARNED with masks."""

EXPERTS: dict[str, Any] = {**ROTARY, "experts": 4, "top_k": 2}

_MACHINE = Machine(num_devices=8, cores=8, memory_bytes=64 * 2**30)


def small_plan(
    text: str,
    devices: int,
    *,
    batch: int = 8,
    microbatch: int = 1,
    sequence: int = 16,
    shares: int | None = None,
    on: str = "512xH100",
    clips: bool = True,
    **fields: Any,
) -> Plan:
    """The plan of a strategy for a small network; LEARNED unless fields say otherwise."""
    program = parse_strategy(text, source="run.trim")
    training = Training(
        network=network("gpt-3m", **(fields or LEARNED)),
        batch=batch,
        microbatch=microbatch,
        sequence=sequence,
        shares=shares,
        compute="fp32",
        num_states=2,
        clips=clips,
    )
    mesh = resolve_mesh(program, devices)
    return compile_program(program, training, mesh=mesh, cluster=cluster(on, machine=_MACHINE))


def question(plan: Plan, *, steps: int = 2) -> Question:
    """A plan to be verified as a job with AdamW and clipping would."""
    return Question(plan=plan, optimizer=AdamW(lr=1e-3), clip=0.5, seed=3, steps=steps)


class Named:
    """Weights of a whole network."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        ends = box or tuple((0, length) for length in self.tensors[name].shape)
        return self.tensors[name][tuple(slice(*pair) for pair in ends)].to(dtype, copy=True)
