"""How does a run train a plan in which ranks hold pieces: of tensors, of layers, of samples?"""

from trimtab.runtime.laid_out.elastic import ElasticEvaluator, ElasticRunner, ElasticSeat
from trimtab.runtime.laid_out.runner import LaidOutRules, LaidOutRunner, Timed
from trimtab.runtime.laid_out.seats import SeatMaker
from trimtab.runtime.laid_out.snapshots import Snapshots
from trimtab.runtime.laid_out.state import LaidOutState

__all__ = [
    "ElasticEvaluator",
    "ElasticRunner",
    "ElasticSeat",
    "LaidOutRules",
    "LaidOutRunner",
    "LaidOutState",
    "SeatMaker",
    "Snapshots",
    "Timed",
]
