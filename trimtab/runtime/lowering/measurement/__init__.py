"""What do the steps of a plan take on real processes: memory by class, bytes, time?"""

from trimtab.runtime.lowering.measurement.measuring import (
    RankMeasurement,
    Trial,
    measure,
)
from trimtab.runtime.lowering.measurement.memory import MemoryMeasurement
from trimtab.runtime.lowering.measurement.times import StepTimes, Waits, waits_of

__all__ = [
    "MemoryMeasurement",
    "RankMeasurement",
    "StepTimes",
    "Trial",
    "Waits",
    "measure",
    "waits_of",
]
