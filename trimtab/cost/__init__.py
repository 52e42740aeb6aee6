"""What would it cost?"""

from trimtab.cost.replicated import (
    ALL_REDUCE_FORMULA,
    GATHER_FORMULA,
    REDUCE_FORMULA,
    RankMemory,
    RankTraffic,
    rank_memory,
    rank_traffic,
)

__all__ = [
    "ALL_REDUCE_FORMULA",
    "GATHER_FORMULA",
    "REDUCE_FORMULA",
    "RankMemory",
    "RankTraffic",
    "rank_memory",
    "rank_traffic",
]
