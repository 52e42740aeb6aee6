"""Which values should the next trial have? Knobs that only real runs can judge, proposed from what earlier trials said."""

from trimtab.cost.search.tuning.knobs import Category, Knob, Numbers, Range, Space, Value
from trimtab.cost.search.tuning.proposals import Seen, Told, propose
from trimtab.cost.search.tuning.slow_trials import Curve, is_behind

__all__ = [
    "Category",
    "Curve",
    "Knob",
    "Numbers",
    "Range",
    "Seen",
    "Space",
    "Told",
    "Value",
    "is_behind",
    "propose",
]
