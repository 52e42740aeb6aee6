"""What exists?"""

from trimtab.catalog.accelerators import Accelerator, Verified, accelerator, accelerator_names
from trimtab.catalog.clusters import (
    THIS_MACHINE,
    Cluster,
    Level,
    Link,
    Machine,
    Node,
    cluster,
    cluster_names,
)
from trimtab.catalog.errors import ClusterError, ConfigError, ConfigProblem, NetworkError, UnknownNameError
from trimtab.catalog.hugging_face import ReadConfig, family_names, network_from_config, read_config
from trimtab.catalog.hugging_face_tensors import (
    Block,
    Box,
    Matching,
    StoredTensor,
    boxes_of_run,
    match_names,
    stored_tensors,
)
from trimtab.catalog.hugging_face_writing import write_config
from trimtab.catalog.network_presets import changed_network, network, network_names
from trimtab.catalog.networks import (
    Activation,
    Bias,
    FlopConvention,
    Network,
    Norm,
    Positions,
    RopeScaling,
    Tensor,
    TensorKind,
)
from trimtab.catalog.prices import Price, PriceKind, price_of, prices_of

__all__ = [
    "THIS_MACHINE",
    "Accelerator",
    "Activation",
    "Bias",
    "Block",
    "Box",
    "Cluster",
    "ClusterError",
    "ConfigError",
    "ConfigProblem",
    "FlopConvention",
    "Level",
    "Link",
    "Machine",
    "Matching",
    "Network",
    "NetworkError",
    "Node",
    "Norm",
    "Positions",
    "Price",
    "PriceKind",
    "ReadConfig",
    "RopeScaling",
    "StoredTensor",
    "Tensor",
    "TensorKind",
    "UnknownNameError",
    "Verified",
    "accelerator",
    "accelerator_names",
    "boxes_of_run",
    "changed_network",
    "cluster",
    "cluster_names",
    "family_names",
    "match_names",
    "network",
    "network_from_config",
    "network_names",
    "price_of",
    "prices_of",
    "read_config",
    "stored_tensors",
    "write_config",
]
