"""What would it cost?"""

from trimtab.cost.replicated import (
    ALL_REDUCE_FORMULA,
    GATHER_FORMULA,
    REDUCE_FORMULA,
    RankMemory,
    RankTraffic,
    num_states,
    rank_memory,
    rank_traffic,
)

__all__ = [
    "ALL_REDUCE_FORMULA",
    "GATHER_FORMULA",
    "REDUCE_FORMULA",
    "RankMemory",
    "RankTraffic",
    "num_states",
    "rank_memory",
    "rank_traffic",
]
