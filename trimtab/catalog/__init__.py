"""What exists?"""

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
    "Activation",
    "FlopConvention",
    "Network",
    "NetworkError",
    "Norm",
    "Positions",
    "Tensor",
    "TensorKind",
    "UnknownNameError",
    "network",
    "network_names",
]
