"""What a rank loads before it trains: torch, and not its compiler, which takes as long again."""

import subprocess
import sys

PROGRAM = """
import sys, torch
from trimtab.runtime.devices import prepare
from trimtab.runtime.optimizers import OPTIMIZERS, build_optimizer
prepare("cpu", 1)
weights = torch.ones(64)
for settings in (OPTIMIZERS["adamw"](lr=0.1), OPTIMIZERS["sgd"](lr=0.1, momentum=0.9)):
    build_optimizer(settings, decayed=[weights], undecayed=[]).step([torch.ones(64)], lr=0.1)
assert torch.are_deterministic_algorithms_enabled()
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules], end="")
import torch._inductor.config
assert torch._inductor.config.deterministic
"""


def test_a_step_of_an_optimizer_leaves_the_compiler_where_it_is() -> None:
    """And whoever loads it later finds that it has been told to be deterministic."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout == "[]"
