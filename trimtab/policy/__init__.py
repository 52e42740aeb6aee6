"""What should be done now?"""

from trimtab.policy.membership import Limits
from trimtab.policy.shares import (
    Block,
    assign_shares,
    blocks_at,
    keep_only,
    own_blocks,
    shares_of,
    take_over,
    top_level,
)

__all__ = [
    "Block",
    "Limits",
    "assign_shares",
    "blocks_at",
    "keep_only",
    "own_blocks",
    "shares_of",
    "take_over",
    "top_level",
]
