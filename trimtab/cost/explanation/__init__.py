"""What does a plan hold, compute, send and cost, and which line decided it?

Comparisons stand in ``comparing`` and schemas in ``schema``: who explains one job does not load them.
"""

from trimtab.cost.explanation.building import Asked, explanation, unplanned
from trimtab.cost.explanation.document import Explanation, document_of

__all__ = ["Asked", "Explanation", "document_of", "explanation", "unplanned"]
