"""What should be done now?"""

from trimtab.plan.shares import (
    Block,
    assign_shares,
    blocks_at,
    keep_only,
    own_blocks,
    shares_of,
    take_over,
    top_level,
)
from trimtab.policy.budgets import Budget
from trimtab.policy.cadence import NextSave, SaveObservations, expected_save_s, next_save, prior_mttf_s
from trimtab.policy.members import Limits
from trimtab.policy.membership import decide
from trimtab.policy.retention import Retention, best_step
from trimtab.policy.seating import Seating

__all__ = [
    "Block",
    "Budget",
    "Limits",
    "NextSave",
    "Retention",
    "SaveObservations",
    "Seating",
    "assign_shares",
    "best_step",
    "blocks_at",
    "decide",
    "expected_save_s",
    "keep_only",
    "next_save",
    "own_blocks",
    "prior_mttf_s",
    "shares_of",
    "take_over",
    "top_level",
]
