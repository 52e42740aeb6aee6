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
    trains_as_replicas,
)
from trimtab.plan.tables import BYTES_OF, COLUMNS, Row, Table, rows_of

__all__ = [
    "ALIGNMENT",
    "BYTES_OF",
    "BYTES_PER_ELEMENT",
    "COLUMNS",
    "TAIL",
    "ReplicatedLayout",
    "Row",
    "Table",
    "deciding_lines",
    "leaf_capacity",
    "network_of",
    "piece_elements",
    "plan_layout",
    "rows_of",
    "trains_as_replicas",
]
