"""What exists?"""

from trimtab.catalog.accelerators import Accelerator, Verified, accelerator, accelerator_names
from trimtab.catalog.errors import NetworkError, UnknownNameError
from trimtab.catalog.networks import (
    Activation,
    FlopConvention,
    Network,
    Norm,
    Positions,
    Tensor,
    TensorKind,
    network,
    network_names,
)

__all__ = [
    "Accelerator",
    "Activation",
    "FlopConvention",
    "Network",
    "NetworkError",
    "Norm",
    "Positions",
    "Tensor",
    "TensorKind",
    "UnknownNameError",
    "Verified",
    "accelerator",
    "accelerator_names",
    "network",
    "network_names",
]
