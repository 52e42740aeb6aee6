"""What does a plan say of itself?"""

from trimtab.plan.explanation.collectives import CollectiveUse, LevelBytes, collective_uses, sent_in_step
from trimtab.plan.explanation.decisions import Decided, DecisionChange, RowClass, decision_changes, decisions
from trimtab.plan.explanation.ranges import ranges
from trimtab.plan.explanation.rank_groups import RankGroup, rank_groups
from trimtab.plan.explanation.same_bits import Obstacle, obstacle_to_same_bits
from trimtab.plan.explanation.survival import Survival, replica_axes, survival

__all__ = [
    "CollectiveUse",
    "Decided",
    "DecisionChange",
    "LevelBytes",
    "Obstacle",
    "RankGroup",
    "RowClass",
    "Survival",
    "collective_uses",
    "decision_changes",
    "decisions",
    "obstacle_to_same_bits",
    "ranges",
    "rank_groups",
    "replica_axes",
    "sent_in_step",
    "survival",
]
