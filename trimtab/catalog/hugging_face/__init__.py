"""What do the folders of Hugging Face hold: a network under its configuration, and its tensors under their names?"""

from trimtab.catalog.hugging_face.configurations import (
    ReadConfig,
    architecture_of,
    family_names,
    network_from_config,
    read_config,
)
from trimtab.catalog.hugging_face.tensors import (
    Block,
    Box,
    Matching,
    StoredTensor,
    boxes_of_run,
    match_names,
    stored_tensors,
)
from trimtab.catalog.hugging_face.writing import write_config

__all__ = [
    "Block",
    "Box",
    "Matching",
    "ReadConfig",
    "StoredTensor",
    "architecture_of",
    "boxes_of_run",
    "family_names",
    "match_names",
    "network_from_config",
    "read_config",
    "stored_tensors",
    "write_config",
]
