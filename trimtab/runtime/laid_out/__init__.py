"""How does a run train a plan in which ranks hold pieces: of tensors, of layers, of samples?"""

from trimtab.runtime.laid_out.evaluation import LaidOutEvaluator
from trimtab.runtime.laid_out.runner import LaidOutRules, LaidOutRunner, Timed
from trimtab.runtime.laid_out.state import LaidOutState

__all__ = ["LaidOutEvaluator", "LaidOutRules", "LaidOutRunner", "LaidOutState", "Timed"]
