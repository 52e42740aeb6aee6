"""Rewrite rules of the physical plan, in the order in which they run; the plan is verified after each.

A rule takes a plan and gives a plan that computes the same and sends less, or the same in fewer pieces.
"""

from collections.abc import Callable

from trimtab.plan.physical import Plan
from trimtab.plan.rules.bucket_gradients import bucket_gradients
from trimtab.plan.rules.gather_blocks_at_once import gather_blocks_at_once
from trimtab.plan.rules.gather_updates_at_once import gather_updates_at_once
from trimtab.plan.rules.scatter_what_is_stored import scatter_what_is_stored

RULES: tuple[Callable[[Plan], Plan], ...] = (
    scatter_what_is_stored,
    gather_blocks_at_once,
    bucket_gradients,
    gather_updates_at_once,
)

__all__ = ["RULES"]
