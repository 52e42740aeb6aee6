"""What exists?"""

from trimtab.catalog.accelerators import Accelerator, Verified, accelerator, accelerator_names
from trimtab.catalog.clusters import (
    HOST,
    THIS_MACHINE,
    Cluster,
    Level,
    Link,
    Machine,
    Node,
)
from trimtab.catalog.errors import (
    ClusterError,
    ConfigError,
    ConfigProblem,
    FailuresError,
    NetworkError,
    PricesError,
    ProbeError,
    UnknownNameError,
)
from trimtab.catalog.named_clusters import cluster, cluster_names
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
from trimtab.catalog.price_tables import read_prices
from trimtab.catalog.prices import STALE_AFTER_DAYS, Price, PriceKind, price_of, prices_of
from trimtab.catalog.probes import CollectiveTime, Pair, Probe, ProbedRun, read_probe
from trimtab.catalog.published import published_runs, published_shapes

__all__ = [
    "HOST",
    "STALE_AFTER_DAYS",
    "THIS_MACHINE",
    "Accelerator",
    "Activation",
    "Bias",
    "Cluster",
    "ClusterError",
    "CollectiveTime",
    "ConfigError",
    "ConfigProblem",
    "FailuresError",
    "FlopConvention",
    "Level",
    "Link",
    "Machine",
    "Network",
    "NetworkError",
    "Node",
    "Norm",
    "Pair",
    "Positions",
    "Price",
    "PriceKind",
    "PricesError",
    "Probe",
    "ProbeError",
    "ProbedRun",
    "RopeScaling",
    "Tensor",
    "TensorKind",
    "UnknownNameError",
    "Verified",
    "accelerator",
    "accelerator_names",
    "changed_network",
    "cluster",
    "cluster_names",
    "network",
    "network_names",
    "price_of",
    "prices_of",
    "published_runs",
    "published_shapes",
    "read_prices",
    "read_probe",
]
