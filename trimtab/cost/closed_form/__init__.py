"""What would any of a million plans take? Time and memory by closed forms over arrays, one element a plan.

``cases`` says what a plan is here, ``constants`` what is not known from first principles, ``layers`` and ``step_times``
price time, ``peak_memory`` prices memory. Only sizes and degrees enter; nothing is compiled.
"""

from trimtab.cost.closed_form.cases import Cases, Floats
from trimtab.cost.closed_form.constants import (
    MEMORY_CONSTANTS,
    THIS_RUNTIME,
    TIME_CONSTANTS,
    Constant,
    Values,
    expected,
)
from trimtab.cost.closed_form.layers import LayerTimes, layer_times
from trimtab.cost.closed_form.peak_memory import (
    LayerBytes,
    PeakMemory,
    kept_microbatches,
    layer_bytes,
    logit_bytes,
    peak_memory,
)
from trimtab.cost.closed_form.step_times import StepTimes, step_times

__all__ = [
    "MEMORY_CONSTANTS",
    "THIS_RUNTIME",
    "TIME_CONSTANTS",
    "Cases",
    "Constant",
    "Floats",
    "LayerBytes",
    "LayerTimes",
    "PeakMemory",
    "StepTimes",
    "Values",
    "expected",
    "kept_microbatches",
    "layer_bytes",
    "layer_times",
    "logit_bytes",
    "peak_memory",
    "step_times",
]
