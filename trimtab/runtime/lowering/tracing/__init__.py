"""What would the ranks of a plan send and compute? Their program says it, run without numbers and without peers."""

from trimtab.runtime.lowering.tracing.judging import judged
from trimtab.runtime.lowering.tracing.rank_classes import RankClass, rank_classes
from trimtab.runtime.lowering.tracing.tracing import RankTrace, Trace, rules_of, trace, trace_rank

__all__ = [
    "RankClass",
    "RankTrace",
    "Trace",
    "judged",
    "rank_classes",
    "rules_of",
    "trace",
    "trace_rank",
]
