"""What shall run where?"""

from trimtab.plan.layout import (
    ALIGNMENT,
    BYTES_PER_ELEMENT,
    TAIL,
    ReplicatedLayout,
    deciding_lines,
    leaf_capacity,
    network_of,
    piece_elements,
    plan_layout,
)

__all__ = [
    "ALIGNMENT",
    "BYTES_PER_ELEMENT",
    "TAIL",
    "ReplicatedLayout",
    "deciding_lines",
    "leaf_capacity",
    "network_of",
    "piece_elements",
    "plan_layout",
]
